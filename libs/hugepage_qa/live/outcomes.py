"""How a case ends before its last line."""

from hugepage_qa.model.compare import Difference
from hugepage_qa.model.known import KnownIssue


class CannotRun(Exception):
    """This machine cannot run the case; the message is the fact that proves it."""


class KnownBug(Exception):
    """The kernel did wrong exactly as the known ``issue`` says; what it does after that says nothing."""

    def __init__(self, issue: KnownIssue) -> None:
        self.issue = issue
        super().__init__(f"{issue.quirk.value}: {issue.summary}")


class Failed(Exception):
    """The case cannot go on after this difference."""

    def __init__(self, difference: Difference) -> None:
        self.difference = difference
        super().__init__(str(difference))
