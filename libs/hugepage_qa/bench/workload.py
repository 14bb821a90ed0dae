"""What a workload is: something that runs on pages of any kind, and the metrics that it gives.

The order of its blocks is drawn for each session, and mirrored, so that a drift hits all configurations alike.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hugepage_qa.bench.backing import Backing, ProgramText, text_backings

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


class Workload(ABC):
    """A workload with its profiles: ``quick`` takes seconds per block, ``reference`` has the numbers of a study."""

    #: also that of the suite of its baselines
    name: str
    #: all that a block gives; a block may lack some that this machine cannot tell
    metrics: tuple[Metric, ...]
    #: what has to be installed
    programs: tuple[Program, ...]
    #: profile -> parameters, which are part of the identity of a measurement
    profiles: Mapping[str, Mapping[str, Fact]]
    #: what makes the text of its programs huge; each is a configuration, where all else is on base pages
    texts: tuple[ProgramText, ...] = ()

    def configurations(self, chosen: Sequence[Backing]) -> tuple[Backing, ...]:
        """Return what it is measured on, of what was chosen: its text in the ways that are among that, or in all."""
        pages = [one for one in chosen if one.text is None]
        texts = [one for one in chosen if one.text is not None] or text_backings(pages)
        return (*self.backings(pages), *(one for one in texts if one.text in self.texts))

    def backings(self, there: Sequence[Backing]) -> tuple[Backing, ...]:
        """Return the pages that it is measured on, of those that are there and asked for."""
        return tuple(there)

    @abstractmethod
    def prepare(self, profile: str, scratch: Path, disk: Path) -> AbstractContextManager[Prepared]:
        """Make it ready; all that it started has ended and all files are removed after the block.

        ``scratch`` is a directory in memory for programs, ``disk`` one for large files. Raises Unavailable.
        """


class Unavailable(Exception):
    """This machine cannot run a workload, or not on these pages; the text is the fact that proves it."""


@dataclass(frozen=True)
class Cell:
    """One block to measure: ``order`` is its place among the blocks of ``workload`` in ``session``, from 0."""

    session: int
    workload: str
    order: int
    configuration: str

    @property
    def name(self) -> str:
        """The name of the file that holds it; sorts by time."""
        return f"{self.session:04}-{self.workload}-{self.order:02}-{self.configuration}"


def draw_session(seed: int, session: int, configurations: Mapping[str, Sequence[str]]) -> list[Cell]:
    """Return the cells of one session: workloads in turn, each as ABC...CBA with its ``configurations`` A, B, C drawn.

    The same seed and session give the same order, however many sessions there are.
    """
    generator = random.Random(f"{seed}/{session}")  # noqa: S311 - an order, no secret
    cells = []
    for workload in generator.sample(list(configurations), len(configurations)):
        drawn = generator.sample(list(configurations[workload]), len(configurations[workload]))
        mirrored = [*drawn, *reversed(drawn)]
        cells += [Cell(session, workload, order, name) for order, name in enumerate(mirrored)]
    return cells
