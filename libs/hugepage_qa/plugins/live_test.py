"""The Avocado test that runs the cases of an area, or random operations, on the running machine."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from avocado import Test

from hugepage_qa.errors import InputError
from hugepage_qa.live.case import Area
from hugepage_qa.live.host import Backend, Host
from hugepage_qa.live.judge import LiveJudgement, run_area
from hugepage_qa.live.pool_view import read_pool_view
from hugepage_qa.live.random_pool.run import run_random_programs
from hugepage_qa.live.real_machine import real_machine
from hugepage_qa.report.case_result import Outcome
from hugepage_qa.report.whiteboard import CaseRecorder


class LiveTest(Test):  # type: ignore[misc] # Avocado has no types
    """Base of the tests below tests/ that change the running machine; one result for each case and page size."""

    def run_area(self, area: Area) -> None:
        """Run the cases of ``area`` and end as the gravest of them did."""
        self._run(lambda host: run_area(area, host, self._record))

    def run_random(self, seed: int, operations: int) -> None:
        """Run random programs of ``operations`` for each page size and end as the gravest verdict says."""
        self.log.info("seed %d, %d operations of each page size", seed, operations)

        def run(host: Host) -> None:
            for size in read_pool_view(host).pools:
                self._record(run_random_programs(host, size, seed, operations, lambda _done: None))

        self._run(run)

    def _run(self, run: Callable[[Host], None]) -> None:
        self.cases = CaseRecorder(Path(self.outputdir))
        try:
            with self.machine() as machine:
                run(Host(machine))
        except InputError as error:
            self.error(str(error))
        conclude(self, self.cases)

    def machine(self) -> AbstractContextManager[Backend]:
        """Return the machine that the cases act on."""
        return real_machine(Path(self.workdir))

    def _record(self, judgement: LiveJudgement) -> None:
        self.cases.add(judgement)
        self.whiteboard = self.cases.text
        self.log.info("%s %s %s", judgement.verdict.value, judgement.name, judgement.reason)


def conclude(test: Any, cases: CaseRecorder) -> None:
    """End the Avocado test ``test`` as the gravest of its ``cases`` did."""
    if errors := cases.summary(Outcome.ERROR):
        test.error(errors)
    if failures := cases.summary(Outcome.FAIL):
        test.fail(failures)
    if not cases.text:
        test.error("no case was run")
    if cases.all_skipped:
        test.cancel(cases.summary(Outcome.SKIP))
