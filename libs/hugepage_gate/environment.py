"""The identity of the machine: which facts must agree before two measurements may be compared at all.

Every fact that is not known to be harmless is hard: a key that somebody adds makes measurements different, never
silently alike. CPU models that a cloud swaps inside one machine class are the reason: nothing had changed, and 97 % of
the pairs differed by more than 5 %. What neither side knows agrees on one and the same host only. A fact may be waived
for one comparison, by whoever says why: a microcode update, of which one wants to know what it costs.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hugepage_gate.samples import UNKNOWN, Scalar

#: facts that may differ; they add variance and are shown. The last part of a nested key counts, too, unless the key is
#: of what a benchmark was told to do: its "time" is a limit
SOFT_KEYS = frozenset(
    {
        "hostname",
        "bios",
        "nic_firmware",
        "uptime",
        "temperature",
        "free_memory",
        "fragmentation",
        "load",
        "serial_number",
        "time",
        "date",
        "timestamp",
    }
)


#: facts that follow from the subject, and may differ when it is the one under test
FOLLOWS_SUBJECT = {"kernel": frozenset({"kernel_config", "kernel_release"})}


@dataclass(frozen=True)
class Difference:
    """A fact that is not the same on both sides; ``kind`` is hard, waived (for a ``reason``), subject or soft."""

    key: str
    kind: str
    baseline: Scalar
    new: Scalar
    reason: str = ""

    def __str__(self) -> str:
        if self.baseline == self.new:
            what = f"{_text(self.new)} on both sides, which may be different machines"
        else:
            what = f"{_text(self.baseline)} in the baseline, {_text(self.new)} now"
        return f"{self.key}: {what}" + (f" ({self.reason})" if self.reason else "")


def hard_keys(environment: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the facts of ``environment`` that must agree."""
    return {key: value for key, value in environment.items() if not _is_soft(key)}


def env_id(environment: Mapping[str, Scalar]) -> str:
    """Return the identity of a machine: the first 16 digits of the sha256 of its hard facts as canonical JSON."""
    text = json.dumps(hard_keys(environment), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def environment_differences(
    baseline: Mapping[str, Scalar],
    new: Mapping[str, Scalar],
    subject: str | None,
    waivers: Mapping[str, str],
    *,
    is_same_host: bool,
) -> list[Difference]:
    """Return the facts about the machine that differ, or that nobody knows of different machines.

    What follows from ``subject`` counts as soft. ``waivers`` are the keys that may differ, and why.
    """
    follows = FOLLOWS_SUBJECT.get(subject or "", frozenset())
    unknown = [key for key, value in hard_keys(new).items() if value in UNKNOWN and baseline.get(key) in UNKNOWN]
    keys = {*_different_keys(baseline, new), *([] if is_same_host else unknown)}
    found = []
    for key in sorted(keys):
        kind = "soft" if _is_soft(key) or key in follows else "waived" if key in waivers else "hard"
        reason = waivers[key] if kind == "waived" else ""
        found.append(Difference(key, kind, baseline.get(key), new.get(key), reason))
    return found


def subject_differences(
    baseline: Mapping[str, Scalar], new: Mapping[str, Scalar], subject: str | None, allowed: Collection[str]
) -> tuple[list[Difference], list[Difference]]:
    """Return what differs between the programs: what is under test or allowed to differ, and confounds.

    Where nobody said which one is under test, a single difference is.
    """
    differences = [
        Difference(key, "subject", baseline.get(key), new.get(key)) for key in _different_keys(baseline, new)
    ]
    if subject is None and len([one for one in differences if one.key not in allowed]) <= 1:
        return differences, []
    named = {subject, *allowed}
    return [one for one in differences if one.key in named], [one for one in differences if one.key not in named]


def _different_keys(one: Mapping[str, Scalar], other: Mapping[str, Scalar]) -> list[str]:
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


def _is_soft(key: str) -> bool:
    parent, _, last = key.rpartition(".")
    return last in SOFT_KEYS and "parameters" not in parent.split(".")


def _text(value: Scalar) -> str:
    return "unknown" if value is None else str(value)
