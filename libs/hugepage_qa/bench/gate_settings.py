"""The environment variables that say what the test of the performance gate does."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.bench.workloads import PROFILES, USUAL
from hugepage_qa.errors import InputError

BASELINES = "HUGEPAGE_QA_BASELINES"
ACCEPT = "HUGEPAGE_QA_ACCEPT"
PROFILE = "HUGEPAGE_QA_PROFILE"
BLOCKS = "HUGEPAGE_QA_BLOCKS"
WORKLOADS = "HUGEPAGE_QA_WORKLOADS"
CONFIGURATIONS = "HUGEPAGE_QA_CONFIGURATIONS"
MIN_BOOTS = "HUGEPAGE_QA_MIN_BOOTS"
STAND_IN = "HUGEPAGE_QA_STAND_IN"

MEANING = {
    BASELINES: "directory of accepted baselines, under tmt below its tree (default: baselines)",
    ACCEPT: "reason to accept a first baseline where this machine has none; then measure again and compare",
    PROFILE: "quick (minutes, default) or reference (the studies' own numbers)",
    BLOCKS: "most sessions to measure for a verdict: 1 to 5 (default 3)",
    WORKLOADS: f"names of workloads, separated by spaces (default: {' '.join(USUAL)})",
    CONFIGURATIONS: "names such as 4k thp-64K thp-defrag-defer, separated by spaces (default: 4k thp and static pages)",
    MIN_BOOTS: "boots that a baseline has to be of (default 1 in the quick profile, else 2)",
    STAND_IN: "NAME=OTHER: measure NAME on the pages of OTHER, to see that the gate notices",
}

#: sessions after which a verdict may be asked for (the looks of the gate)
_LOOKS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class GateSettings:
    """What is measured and compared. ``accept`` is empty where no first baseline is to be accepted."""

    baselines: Path
    accept: str
    profile: str
    most_sessions: int
    workloads: tuple[str, ...]
    configurations: tuple[str, ...]
    min_boots: int
    stand_ins: tuple[str, ...]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "GateSettings":
        """Return the settings in ``environment``; an empty variable is the same as none. Raises InputError."""
        profile = environment.get(PROFILE) or PROFILES[0]
        if profile not in PROFILES:
            raise InputError(f"{PROFILE}={profile}: expected one of {', '.join(PROFILES)}")
        settings = cls(
            # tmt starts a test in the directory of its metadata
            baselines=Path(environment.get("TMT_TREE", ""), environment.get(BASELINES) or "baselines"),
            accept=environment.get(ACCEPT, "").strip(),
            profile=profile,
            most_sessions=_one_of(environment, BLOCKS, 3, _LOOKS),
            workloads=tuple(environment.get(WORKLOADS, "").split()),
            configurations=tuple(environment.get(CONFIGURATIONS, "").split()),
            min_boots=_one_of(environment, MIN_BOOTS, 1 if profile == "quick" else 2, (1, 2, 3)),
            stand_ins=tuple(environment.get(STAND_IN, "").split()),
        )
        if settings.accept and settings.stand_ins:
            raise InputError(f"{STAND_IN}={environment[STAND_IN]}: would become the baseline; leave {ACCEPT} out")
        return settings

    @property
    def looks(self) -> tuple[int, ...]:
        """Sessions after which it is looked."""
        return tuple(look for look in _LOOKS if look <= self.most_sessions)

    @property
    def next_look(self) -> int | None:
        """Sessions after which there would be one more look, None when there is none."""
        return next((look for look in _LOOKS if look > self.most_sessions), None)


def _one_of(environment: Mapping[str, str], name: str, default: int, allowed: tuple[int, ...]) -> int:
    text = environment.get(name) or str(default)
    if text not in map(str, allowed):
        raise InputError(f"{name}={text}: expected one of {', '.join(map(str, allowed))}")
    return int(text)
