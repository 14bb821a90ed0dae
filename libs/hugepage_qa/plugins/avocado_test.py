"""The Avocado tests of the suite: each judges many cases, and ends as the worst of them did."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from avocado import Test

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.judge import run_area
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.errors import InputError
from hugepage_qa.machine.backend import Backend
from hugepage_qa.machine.host import Host
from hugepage_qa.machine.real_machine import real_machine
from hugepage_qa.plugins.asked import Asked
from hugepage_qa.report.case_recorder import CaseRecorder, append_result


class CaseTest(Test):  # type: ignore[misc] # Avocado has no types
    """Base of the tests that judge cases; each case is a result of its own."""

    def setUp(self) -> None:
        """Begin without a case."""
        self.cases = CaseRecorder(Path(self.outputdir))
        self.asked = Asked.from_environment()

    def record(self, judgement: Result) -> None:
        """Keep one case; the whiteboard is complete at any time."""
        self.cases.add(judgement)
        self.whiteboard = self.cases.text
        if self.asked.told_to is not None:
            append_result(self.asked.told_to, judgement)
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
    #: whether it can be one test with those of other files: it only runs areas, and on this machine alone
    needs_only_areas = True

    def run_area(self, area: Area) -> None:
        """Run the cases of ``area`` and end as the worst of them did."""
        self.run_areas([area])

    def run_areas(self, areas: Sequence[Area]) -> None:
        """Run the cases of ``areas`` that were asked for and end as the worst of them did."""

        def is_over() -> bool:
            return self.asked.exit_first and self.cases.has_failed

        def run(host: Host) -> None:
            for area in areas:
                run_area(area, host, self.record, self.asked.selection, is_over)

        self.run_on_machine(run)

    def run_on_machine(self, run: Callable[[Host], None]) -> None:
        """Call ``run`` with the machine and end as the worst case did."""
        try:
            with self.machine() as machine:
                run(Host(machine))
        except InputError as error:
            self.error(str(error))
        self.conclude()

    def conclude(self) -> None:
        """End as the worst case did; a test can have none of the cases that were asked for."""
        if not self.cases.text and self.asked.selection.cases:
            self.cancel("none of its cases was asked for")
        super().conclude()

    def machine(self) -> AbstractContextManager[Backend]:
        return real_machine(Path(self.workdir))
