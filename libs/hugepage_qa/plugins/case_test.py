"""What the Avocado tests of the suite have in common: each judges many cases, and ends as the gravest of them did."""

from pathlib import Path
from typing import Any

from avocado import Test

from hugepage_qa.report.case_result import Outcome
from hugepage_qa.report.whiteboard import CaseRecorder, JudgedCase


class CaseTest(Test):  # type: ignore[misc] # Avocado has no types
    """Base of the tests that judge cases; each case is a result of its own."""

    def setUp(self) -> None:
        """Begin without a case."""
        self.cases = CaseRecorder(Path(self.outputdir))

    def record(self, judgement: JudgedCase) -> None:
        """Keep one case; the whiteboard is complete at any time."""
        self.cases.add(judgement)
        self.whiteboard = self.cases.text
        self.log.info("%s %s %s", judgement.verdict.value, judgement.name, judgement.reason)

    def conclude(self) -> None:
        """End as the gravest case did."""
        conclude(self, self.cases)


def conclude(test: Any, cases: CaseRecorder) -> None:
    """End the Avocado test ``test`` as the gravest of its ``cases`` did (``case_result.worst``)."""
    if failures := cases.summary(Outcome.FAIL):
        test.fail(failures)
    if errors := cases.summary(Outcome.ERROR):
        test.error(errors)
    if not cases.text:
        test.error("no case was run")
    if cases.all_skipped:
        test.cancel(cases.summary(Outcome.SKIP))
