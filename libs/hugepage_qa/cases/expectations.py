"""What a case expects, the differences that it found, and how it ends before its last line."""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any, NoReturn

from hugepage_qa.oracle.compare import Difference
from hugepage_qa.oracle.issue_tables import ALL_ISSUES
from hugepage_qa.oracle.known_issues import KnownIssue, Quirk
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.process.actor import Fault, Refused
from hugepage_qa.version import KernelVersion


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


_OURS = Path(__file__).parents[1]


class Expectations:
    """Compares what a case found with what its rule demands; differences are kept, and the case goes on."""

    def __init__(self, rule: Rule, kernel_version: KernelVersion, architecture: str) -> None:
        self.rule = rule
        #: the version of the running kernel
        self.kernel_version = kernel_version
        self._architecture = architecture
        self.differences: list[Difference] = []
        #: what the suite could not do or see, which leaves nothing to judge by
        self.problems: list[str] = []
        #: whether memory ran out on a machine that others use, too: what a case did not get then is nobody's fault
        self.ran_out_of_memory = False
        self.traceback = ""
        #: facts on which the verdict depends, told with a pass
        self.notes: list[str] = []

    def expect(
        self, subject: str, expected: object, found: object, known: Mapping[Quirk, object] | None = None
    ) -> None:
        """Expect ``found`` to be ``expected``; ``known`` tells what it is with a known bug. Raises KnownBug.

        Where that is no other value, what is right is right.
        """
        for quirk, value in (known or {}).items():
            self._end_if_known(quirk, found == value != expected)
        self._compare(subject, expected, found)

    def has_bug(self, quirk: Quirk) -> bool:
        """Tell whether the running kernel has a known bug, by its version and architecture."""
        return ALL_ISSUES[quirk].applies_to(self.kernel_version, self._architecture)

    def _end_if_known(self, quirk: Quirk, deviates: bool) -> None:
        """End the case where what it saw ``deviates`` as ``quirk`` does on this kernel. Raises KnownBug."""
        if deviates and self.has_bug(quirk):
            raise KnownBug(ALL_ISSUES[quirk])

    @contextmanager
    def about(self, what: str) -> Iterator[None]:
        """Have the differences that are found in the block tell that they are about ``what``, a row of a table."""
        before = len(self.differences)
        try:
            yield
        except Failed as error:
            raise Failed(_about(what, error.difference)) from error
        finally:
            self.differences[before:] = [_about(what, difference) for difference in self.differences[before:]]

    def expect_errno(
        self,
        number: int,
        call: Callable[..., Any],
        *arguments: Any,
        known: Mapping[Quirk, int] | None = None,
        **named: Any,
    ) -> None:
        """Expect ``call`` to fail with errno ``number``; ``known`` tells which other it is with a known bug.

        Raises KnownBug.
        """
        try:
            call(*arguments, **named)
        except Refused as error:
            for quirk, other in (known or {}).items():
                self._end_if_known(quirk, error.errno == other != number)
            self._compare("errno", os.strerror(number), os.strerror(error.errno or 0))
        else:
            self._compare("errno", os.strerror(number), "success")

    def expect_success(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Expect ``call`` not to be refused: with ``about`` the row of a table tells which it was. Raises Failed."""
        try:
            call(*arguments)
        except Refused as error:
            self.fail("errno", "success", os.strerror(error.errno or 0))

    def expect_signal(
        self, number: signal.Signals, access: Callable[..., Any], *arguments: Any, at: int | None = None
    ) -> None:
        """Expect ``access`` to memory to end in signal ``number``, which tells the address ``at``, if one is given."""
        try:
            access(*arguments)
        except Fault as fault:
            self._compare("signal", number.name, fault.signal.name)
            if at is not None:
                self._compare("si_addr", f"{at:#x}", f"{fault.address:#x}")
        else:
            self._compare("signal", number.name, "none")

    def fail(self, subject: str, expected: object, found: object) -> NoReturn:
        """End the case, which makes no sense after this difference: raises Failed."""
        raise Failed(Difference(subject, self.rule, str(expected), str(found)))

    def _compare(self, subject: str, expected: object, found: object) -> None:
        """Record a difference where ``found`` is not ``expected``, with the line of the case."""
        if expected != found:
            file, line = _line_of_the_case()
            where = f"{subject} at {Path(file).name}:{line}"
            self.differences.append(Difference(where, self.rule, str(expected), str(found)))


def _about(what: str, difference: Difference) -> Difference:
    return replace(difference, subject=f"{what}: {difference.subject}")


def _line_of_the_case() -> tuple[str, int]:
    """Return the file and the line of the case itself: it may call functions of its own, and is called by ``judge``."""
    # no extract_stack(): it looks for the sources of all callers, and a case may differ often
    stack = ((frame.f_code.co_filename, line) for frame, line in traceback.walk_stack(sys._getframe()))
    return list(takewhile(_is_of_a_case, dropwhile(lambda place: not _is_of_a_case(place), stack)))[-1]


def _is_of_a_case(place: tuple[str, int]) -> bool:
    return not Path(place[0]).is_relative_to(_OURS)
