"""One measurement in memory: series of blocks of samples, where they come from, and what a comparison can end with."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float64]

#: a fact about a machine or program, as files hold it
Scalar = str | int | float | bool | None


#: what stands for a fact that the machine does not tell
UNKNOWN = frozenset({"n/a", "unknown"})


def host_of(environment: Mapping[str, Scalar]) -> str | None:
    """Return the name of the machine, None where it is not known."""
    host = environment.get("hostname")
    return None if host is None or host in UNKNOWN else str(host)


class Direction(StrEnum):
    """Which values of a metric are good."""

    LOWER = "lower"
    HIGHER = "higher"
    #: only for counts: any other number is wrong
    EQUAL = "equal"


class Kind(StrEnum):
    """How a metric varies."""

    #: times, rates: noise around a level
    MEASURED = "measured"
    #: page faults, page table kB, pages used: the same number each time, or nearly
    COUNT = "count"


@dataclass(frozen=True)
class Block:
    """The samples of one boot, virtual machine or process: what is started anew is one block.

    Samples are in the order in which they were taken. ``order`` is the place of the block among all of its session,
    whatever the configuration. ``sentinel`` is the time of a fixed program that uses no huge pages before
    the block, ``sentinel_after`` after it.
    """

    samples: Samples
    order: int
    started: datetime | None = None
    session: str | None = None
    boot: str | None = None
    host: str | None = None
    sentinel: float | None = None
    sentinel_after: float | None = None
    warmup: bool = False


_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def in_time(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """Return ``blocks`` in the order in which they were measured: looks take the first ones first."""
    return tuple(sorted(blocks, key=lambda one: (one.started or _LONG_AGO, one.order)))


@dataclass(frozen=True)
class SeriesIdentity:
    """One metric in one configuration (``thp``, ``shp``; empty where there is only one), whatever its blocks are.

    ``same_as`` is the metric that this one is computed from: bytes per second from seconds.
    """

    metric: str
    unit: str
    direction: Direction
    kind: Kind
    configuration: str
    same_as: str | None = field(default=None, kw_only=True)

    @property
    def key(self) -> tuple[str, str]:
        """Metric and configuration: what a series is found by."""
        return self.metric, self.configuration

    @property
    def name(self) -> str:
        """``metric`` or ``metric [configuration]`` for people."""
        return f"{self.metric} [{self.configuration}]" if self.configuration else self.metric


@dataclass(frozen=True)
class Series(SeriesIdentity):
    """All blocks of one metric in one configuration."""

    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class SampleSet:
    """What one side of a comparison consists of.

    ``environment`` says on what machine, ``subject`` which programs were judged; nested keys are joined by dots.
    ``reference`` is the configuration that the others are set against. ``mixed`` are hard facts that are not the same
    in all files.
    """

    source: str
    suite: str
    environment: Mapping[str, Scalar]
    subject: Mapping[str, Scalar]
    series: tuple[Series, ...]
    reference: str | None = None
    mixed: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[Series]:
        return iter(self.series)

    @property
    def hosts(self) -> frozenset[str]:
        """Names of the machines that blocks ran on, as far as they are known."""
        own = host_of(self.environment)
        named = {block.host or own for one in self.series for block in one.blocks}
        return frozenset(host for host in named if host is not None)


class Verdict(StrEnum):
    """How a metric, or a whole comparison, was judged."""

    PASS = "pass"  # noqa: S105 - no password
    IMPROVED = "improved"
    REGRESSED = "regressed"
    #: no sign of a change, but so noisy that its margin cannot be seen
    BLIND = "blind"
    #: the data cannot decide, or not yet
    UNDECIDED = "undecided"
    #: another machine, or more than one thing has changed
    NOT_COMPARABLE = "not-comparable"
    #: something else used the machine meanwhile
    DISTURBED = "disturbed"
    #: too few blocks or boots in the baseline
    BASELINE_THIN = "baseline-thin"
    #: the newest block of the baseline is too old
    BASELINE_STALE = "baseline-stale"


#: the first of these that occurs among the metrics is the verdict on all of them
WORST_FIRST = (
    Verdict.NOT_COMPARABLE,
    Verdict.REGRESSED,
    Verdict.DISTURBED,
    Verdict.BASELINE_THIN,
    Verdict.BASELINE_STALE,
    Verdict.UNDECIDED,
    Verdict.BLIND,
    Verdict.IMPROVED,
    Verdict.PASS,
)

_GOOD, _REGRESSED, _UNDECIDED = 0, 1, 2


def exit_code(verdict: Verdict) -> int:
    """Return 0 for pass and improved, 1 for regressed, 2 for what decides nothing; wrong input (3) has no verdict."""
    if verdict in (Verdict.PASS, Verdict.IMPROVED):
        return _GOOD
    return _REGRESSED if verdict is Verdict.REGRESSED else _UNDECIDED


def verdict_on_all(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on a comparison from those on its metrics; without any it is undecided."""
    seen = set(verdicts)
    return next((verdict for verdict in WORST_FIRST if verdict in seen), Verdict.UNDECIDED)
