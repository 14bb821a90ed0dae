"""A prediction while it is being made: the areas of the oracle add to it in turn."""

import re
from collections.abc import Sequence

from hugepage_qa.model.cma import plan_cma
from hugepage_qa.model.known import Quirk
from hugepage_qa.model.machine import Machine
from hugepage_qa.model.prediction import (
    Expectation,
    Expected,
    Message,
    PreAllocated,
    Prediction,
    Shortage,
    Unjudged,
)
from hugepage_qa.model.rules import Rule
from hugepage_qa.parameters import Parameter


class Draft:
    """Collects expectations; a rule that does not hold for the machine's kernel adds none."""

    def __init__(self, machine: Machine, words: tuple[Parameter, ...], follow: frozenset[Quirk]) -> None:
        self.machine = machine
        #: the words of the command line, without huge page parameters that the kernel does not know
        self.words = words
        #: known issues that this prediction follows
        self.follow = follow
        self.cma = plan_cma(words, machine)
        self._expectations: list[Expectation] = []
        self._messages: list[Message] = []
        self._shortages: list[Shortage] = []
        self._pre_allocated: list[PreAllocated] = []
        self._unjudged: list[Unjudged] = []
        self._tolerated: list[str] = []
        self._remarks: list[str] = []
        self._quirks: set[Quirk] = set()
        self._may_exhaust_memory = False

    @property
    def has_nodes(self) -> bool:
        """Whether each node shows its pools: the kernel's configuration says so, or else its files."""
        configured = self.machine.is_configured("NUMA")
        return self.machine.interfaces.get("numa", True) if configured is None else configured

    def values(self, name: str) -> list[str | None]:
        """Return the values that ``name`` has on the command line, in order; None for the bare word."""
        return [word.value for word in self.words if word.canonical == name]

    def expect(self, subject: str, expected: Expected, rule: Rule) -> None:
        """Expect a fact."""
        if rule.holds_for(self.machine.version):
            self._expectations.append(Expectation(subject, expected, rule))

    def expect_messages(self, texts: Sequence[str], rule: Rule) -> None:
        """Expect lines in the kernel log, each as often as it is given."""
        if rule.holds_for(self.machine.version):
            self._messages += [Message(text, rule) for text in texts]

    def expect_shortage(self, shortage: Shortage) -> None:
        """Expect the log to tell of a shortage if there is one."""
        self._shortages.append(shortage)

    def expect_pre_allocated(self, message: PreAllocated) -> None:
        """Expect the log to name a pool and its pages."""
        self._pre_allocated.append(message)

    def leave_open(self, subject: str, reason: str) -> None:
        """Say that ``subject`` is not judged, and why."""
        self._unjudged.append(Unjudged(subject, reason))

    def tolerate(self, start: str) -> None:
        """Take log lines that begin with ``start`` as they come."""
        self._tolerated.append(re.escape(start))

    def tolerate_shortage(self, size: str) -> None:
        """Take warnings about too few pages of ``size`` (as the log shows sizes) as they come."""
        self._tolerated.append(rf"HugeTLB: allocating \d+ of page size {re.escape(size)} failed")

    def remark(self, text: str) -> None:
        """Say something about the command line itself."""
        self._remarks.append(text)

    def note_quirks(self, quirks: frozenset[Quirk]) -> None:
        """Note known issues that make a difference here."""
        self._quirks |= quirks

    def note_memory_may_run_out(self) -> None:
        """Note that the parameters ask for so much memory that the kernel may panic."""
        self._may_exhaust_memory = True

    def finish(self, command_line: str) -> Prediction:
        """Return the prediction."""
        return Prediction(
            command_line,
            tuple(self._expectations),
            tuple(self._messages),
            tuple(self._shortages),
            tuple(self._pre_allocated),
            tuple(self._unjudged),
            tuple(self._tolerated),
            tuple(self._remarks),
            self._may_exhaust_memory,
            frozenset(self._quirks),
        )
