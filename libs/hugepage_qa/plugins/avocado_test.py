"""The Avocado tests of the suite: each judges many cases, and ends as the worst of them did."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from avocado import Test

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.judge import run_area
from hugepage_qa.cases.pool_view import NO_HUGETLB, read_pool_view
from hugepage_qa.cases.random.random_run import run_random_programs
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.errors import InputError
from hugepage_qa.machine.host import Backend, Host
from hugepage_qa.machine.real_machine import real_machine
from hugepage_qa.report.avocado_results import CaseRecorder


class CaseTest(Test):  # type: ignore[misc] # Avocado has no types
    """Base of the tests that judge cases; each case is a result of its own."""

    def setUp(self) -> None:
        """Begin without a case."""
        self.cases = CaseRecorder(Path(self.outputdir))

    def record(self, judgement: Result) -> None:
        """Keep one case; the whiteboard is complete at any time."""
        self.cases.add(judgement)
        self.whiteboard = self.cases.text
        self.log.info("%s %s %s", judgement.verdict.value, judgement.name, judgement.reason)

    def conclude(self) -> None:
        """End as the worst case did."""
        conclude(self, self.cases)


def conclude(test: Any, cases: CaseRecorder) -> None:
    """End the Avocado test ``test`` as the worst of its ``cases`` did (``result.worst``)."""
    if failures := cases.summary(Verdict.FAIL):
        test.fail(failures)
    if errors := cases.summary(Verdict.ERROR):
        test.error(errors)
    if not cases.text:
        test.error("no case was run")
    if cases.all_skipped:
        test.cancel(cases.summary(Verdict.SKIP))


class LiveTest(CaseTest):
    """Base of the tests below tests/ that change the running machine; one result for each case and page size."""

    #: seconds: the last resort. What hangs in a case is ended long before, and a busy or emulated machine is slow
    timeout = 55 * 60

    def run_area(self, area: Area) -> None:
        """Run the cases of ``area`` and end as the worst of them did."""
        self._run(lambda host: run_area(area, host, self.record))

    def run_random(self, seed: int, operations: int) -> None:
        """Run random programs of ``operations`` for each page size and end as the worst verdict says."""
        self.log.info("seed %d, %d operations of each page size", seed, operations)

        def run(host: Host) -> None:
            sizes = read_pool_view(host).pools
            if not sizes:
                self.record(Result("/random", Verdict.SKIP, (NO_HUGETLB,)))
            for size in sizes:
                self.record(run_random_programs(host, size, seed, operations, lambda _done: None))

        self._run(run)

    def _run(self, run: Callable[[Host], None]) -> None:
        try:
            with self.machine() as machine:
                run(Host(machine))
        except InputError as error:
            self.error(str(error))
        self.conclude()

    def machine(self) -> AbstractContextManager[Backend]:
        """Return the machine that the cases act on."""
        return real_machine(Path(self.workdir))
