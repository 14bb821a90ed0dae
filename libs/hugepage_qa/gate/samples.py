"""One measurement in memory: series of blocks of samples, and the machine and programs that they come from."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float64]

#: a fact about a machine or program, as files hold it
Scalar = str | int | float | bool | None


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
    """One metric in one configuration (``thp``, ``shp``; empty where there is only one), whatever its blocks are."""

    metric: str
    unit: str
    direction: Direction
    kind: Kind
    configuration: str

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
        """Yield the series."""
        return iter(self.series)

    @property
    def hosts(self) -> frozenset[str]:
        """Names of the machines that blocks ran on, as far as they are known."""
        own = self.environment.get("hostname")
        named = {block.host or own for one in self.series for block in one.blocks}
        return frozenset(str(host) for host in named if host is not None)
