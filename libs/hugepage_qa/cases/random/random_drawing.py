"""How large random programs are, and one while it is drawn: what there is to draw from, what an operation does."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from hugepage_qa.cases.random.random_step import PoolRun
from hugepage_qa.oracle.compare import Difference
from hugepage_qa.oracle.pool.pool_machine import PoolMachine
from hugepage_qa.oracle.pool.pool_operation import Operation, area_of

#: the process that a program starts with
FIRST_PROCESS = "a"


@dataclass(frozen=True)
class Scale:
    """How large programs are: pages of ``size`` bytes in the pool and in a file or mapping, and what there may be."""

    size: int
    pool: int
    pages: int
    steps: int = 40
    processes: int = 4
    mounts: int = 2
    groups: int = 2


class Present:
    """What there is in ``machine``, whose programs use pages of ``size`` bytes."""

    def __init__(self, machine: PoolMachine, size: int) -> None:
        self._machine = machine
        self._size = size

    @property
    def processes(self) -> list[str]:
        """The names of the processes."""
        return list(self._machine.processes)

    @property
    def mounts(self) -> list[str]:
        """The names of the mounts."""
        return list(self._machine.mounts)

    @property
    def groups(self) -> list[str]:
        """The names of the control groups."""
        return list(self._machine.groups)

    @property
    def open_files(self) -> list[tuple[str, str]]:
        """(process, file) for each file that is open."""
        return [
            (process, name)
            for process, owner in self._machine.processes.items()
            for name, file in self._machine.files.items()
            if file in owner.open_files
        ]

    @property
    def segments(self) -> list[str]:
        """SysV segments that can be attached."""
        return [name for name, file in self._machine.files.items() if file.is_segment and file.is_linked]

    @property
    def linked_files(self) -> list[str]:
        """What can be unlinked: files on mounts, and segments."""
        mounts = list(self._machine.mounts.values())
        on_mounts = [name for name, file in self._machine.files.items() if file.is_linked and file.mount in mounts]
        return on_mounts + self.segments

    @property
    def pieces(self) -> list[tuple[str, int, int, int]]:
        """(process, area, first page, pages) for each mapping, of which an area may hold several."""
        return [
            (process, *area_of(mapping.address, self._size), mapping.count)
            for process, owner in self._machine.processes.items()
            for mapping in owner.mappings
        ]

    def segment_pages(self, segment: str) -> int:
        """Return how many pages a segment has."""
        return self._machine.files[segment].length


class Search(Protocol):
    """Who wants programs."""

    scale: Scale

    def start(self) -> PoolRun:
        """Begin a program."""

    def judge(self, run: PoolRun, differences: Sequence[Difference]) -> None:
        """Note how a program ended. Raises an AssertionError for Hypothesis if it failed."""


class Drawing(RuleBasedStateMachine):
    """A program that is drawn while it runs: what the rules of ``program`` draw with."""

    search: ClassVar[Search]

    def __init__(self) -> None:
        super().__init__()
        self._scale = self.search.scale
        self._size = self._scale.size
        self._started: PoolRun | None = None
        self._differences: list[Difference] = []
        self._made = 0
        #: process -> area -> pages that were mapped there
        self._areas: dict[str, dict[int, int]] = {FIRST_PROCESS: {}}

    def teardown(self) -> None:
        """End what the program has left, which has to go as predicted, too."""
        if self._started is None:
            return
        try:
            differences = self._differences or self._run.finish()
        finally:
            self._run.target.close()
        if not self._differences:
            self.search.judge(self._run, differences)

    @property
    def _run(self) -> PoolRun:
        if self._started is None:
            raise RuntimeError("begin() comes first")
        return self._started

    def _do(self, operation: Operation) -> bool:
        """Do it, and tell whether it succeeded; end the program where model and machine differ."""
        self._differences = self._run.take(operation)
        if self._differences:
            self.search.judge(self._run, self._differences)
            reject()
        return self._run.succeeded

    # --- drawing ---

    def _new(self, letter: str) -> str:
        self._made += 1
        return f"{letter}{self._made}"

    @property
    def _there(self) -> Present:
        return Present(self._run.machine, self._size)

    @property
    def _mapped(self) -> list[tuple[str, int, int]]:
        """(process, area, pages) for all that was mapped, which may be gone in part."""
        areas = self._areas.items()
        alive = self._there.processes
        return [(process, area, pages) for process, of in areas if process in alive for area, pages in of.items()]

    @staticmethod
    def _range(data: st.DataObject, pages: int) -> tuple[int, int]:
        """Draw a range of at least one of ``pages`` pages."""
        first = data.draw(st.integers(0, pages - 1))
        return first, data.draw(st.integers(1, pages - first))

    def _choose(self, data: st.DataObject, **kinds: tuple[int, bool]) -> str:
        """Draw one of the kinds that are possible, each given with its weight."""
        return str(
            data.draw(st.sampled_from([name for name, (weight, can) in kinds.items() if can for _ in range(weight)]))
        )
