"""What a workload is: something that runs on pages of any kind, and the metrics that it gives."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from hugepage_qa.bench.backing import Backing

#: a fact about a program or a machine, as files hold it
Fact = str | int | float | bool | None

#: samples of each metric, in the order in which they were taken
Figures = Mapping[str, list[float]]


@dataclass(frozen=True)
class Metric:
    """A metric as the gate knows it; a ``count`` is the same number each time, or nearly."""

    name: str
    unit: str
    direction: Literal["lower", "higher", "equal"]
    kind: Literal["measured", "count"] = "measured"


@dataclass(frozen=True)
class Program:
    """A program that a workload starts, and the packages that bring it.

    ``outside_path`` is a pattern, below /, of where it is on distributions that keep it out of PATH.
    """

    name: str
    debian: str
    rpm: str
    outside_path: str = ""

    def installed(self) -> str:
        """Return the path of the program where it lies outside of PATH, else its name."""
        found = sorted(Path("/").glob(self.outside_path)) if self.outside_path else []
        return str(found[-1]) if found else self.name


@dataclass(frozen=True)
class Prepared:
    """A workload that can run now.

    ``block`` starts the programs anew on the given pages and returns their figures; it raises Unavailable where they
    cannot run on these, InputError when they fail or print what nobody understands. ``huge_bytes`` is what a block
    needs of a pool. ``identity`` are facts that must agree between two measurements, ``subject`` versions of what is
    judged.
    """

    block: Callable[[Backing], Figures]
    huge_bytes: int
    identity: Mapping[str, Fact]
    subject: Mapping[str, Fact]


class Workload(Protocol):
    """A workload with its profiles: ``quick`` takes seconds per block, ``reference`` has the numbers of a study."""

    @property
    def name(self) -> str:
        """What it is called: also the suite of its baselines."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """All metrics that a block gives; a block may lack some that this machine cannot tell."""

    @property
    def programs(self) -> tuple[Program, ...]:
        """What has to be installed."""

    @property
    def profiles(self) -> Mapping[str, Mapping[str, Fact]]:
        """Profile -> parameters, which are part of the identity of a measurement."""

    def backings(self, there: Sequence[Backing]) -> tuple[Backing, ...]:
        """Return what it is measured on, of the pages that are there and asked for; each is a configuration."""

    def prepare(self, profile: str, scratch: Path, disk: Path) -> AbstractContextManager[Prepared]:
        """Make it ready; all that it started has ended and all files are removed after the block.

        ``scratch`` is a directory in memory for programs, ``disk`` one for large files. Raises Unavailable.
        """
