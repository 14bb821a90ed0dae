"""A random program while it is drawn: what there is to draw from, and what is done with an operation."""

from collections.abc import Sequence
from typing import ClassVar, Protocol

from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from hugepage_qa.live.random_pool.present import Present
from hugepage_qa.live.random_pool.scale import FIRST_PROCESS, Scale
from hugepage_qa.live.random_pool.step import PoolRun
from hugepage_qa.model.compare import Difference
from hugepage_qa.model.hugetlb_pool.operation import Operation


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
