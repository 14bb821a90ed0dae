"""A prediction: expectations about facts and about the kernel log, each with its rule; the areas add to it in turn."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from hugepage_qa.oracle.architecture import Machine
from hugepage_qa.oracle.boot.cma import plan_cma
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.parameters import Parameter

Value = int | str


@dataclass(frozen=True)
class Exactly:
    """The fact has this value."""

    value: Value

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Between:
    """The fact is a number from ``low`` to ``high``, both included."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


@dataclass(frozen=True)
class OneOf:
    """The fact is one of these values."""

    values: tuple[Value, ...]

    def __str__(self) -> str:
        return " or ".join(str(value) for value in self.values)


@dataclass(frozen=True)
class Absent:
    """There is no such fact."""

    def __str__(self) -> str:
        return "absent"


@dataclass(frozen=True)
class Present:
    """There is such a fact, whatever its value."""

    def __str__(self) -> str:
        return "present"


@dataclass(frozen=True)
class SumOf:
    """The fact is the sum of other facts, each times its weight."""

    terms: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return " + ".join(subject if weight == 1 else f"{weight} x {subject}" for subject, weight in self.terms) or "0"


@dataclass(frozen=True)
class AtLeast:
    """The fact is a number no less than what ``sum`` comes to."""

    sum: SumOf

    def __str__(self) -> str:
        return f"at least {self.sum}"


Expected = Exactly | Between | OneOf | Absent | Present | SumOf | AtLeast


@dataclass(frozen=True)
class Expectation:
    """What one fact must be, and the rule that says so."""

    subject: str
    expected: Expected
    rule: Rule


@dataclass(frozen=True)
class Message:
    """A line that the kernel log must hold: it contains ``text``."""

    text: str
    rule: Rule


@dataclass(frozen=True)
class PreAllocated:
    """The log must name the pool of ``size`` (as it shows sizes) with as many pages as ``subject`` has."""

    subject: str
    size: str
    rule: Rule


@dataclass(frozen=True)
class Freeable:
    """Where the log tells how much of the struct pages of a page of ``size`` can be freed, it is ``kib`` KiB.

    A kernel whose struct pages do not fill base pages evenly frees none, of pages of each size.
    """

    size: str
    kib: int
    rule: Rule

    @property
    def pattern(self) -> re.Pattern[str]:
        """What the line looks like; its group is the number of KiB."""
        return re.compile(rf"HugeTLB: (\d+) KiB vmemmap can be freed for a {re.escape(self.size)} page")


@dataclass(frozen=True)
class Shortage:
    """The log must tell of a reservation that fell short, if and only if ``subject`` is below ``asked``.

    ``size`` is the page size as the log shows it; ``node`` is None for a reservation over all nodes.
    """

    subject: str
    asked: int
    size: str
    node: int | None
    rule: Rule


@dataclass(frozen=True)
class Unjudged:
    """Something that this prediction leaves open, and why."""

    subject: str
    reason: str


@dataclass(frozen=True)
class Prediction:
    """What a machine must show after a boot."""

    command_line: str
    expectations: tuple[Expectation, ...]
    messages: tuple[Message, ...] = ()
    shortages: tuple[Shortage, ...] = ()
    pre_allocated: tuple[PreAllocated, ...] = ()
    freeable: tuple[Freeable, ...] = ()
    unjudged: tuple[Unjudged, ...] = ()
    #: patterns of the beginnings of log lines that may or may not be there
    tolerated: tuple[str, ...] = ()
    #: what the suite has to say about the command line itself, such as a misspelt word
    remarks: tuple[str, ...] = ()
    #: the parameters ask for so much memory that the kernel may panic for want of it
    may_exhaust_memory: bool = False
    #: deviations of known issues that this prediction follows or would follow
    quirks: frozenset[Quirk] = field(default_factory=frozenset)


def pool_subject(size: int, name: str, node: int | None = None) -> str:
    """Return the subject of a pool's file: ``hugepages-2048kB/nr_hugepages``, ``node0/hugepages-2048kB/...``."""
    pool = f"hugepages-{size // 1024}kB/{name}"
    return pool if node is None else f"node{node}/{pool}"


class Draft:
    """Collects expectations; a rule that does not hold for the machine's kernel adds none."""

    def __init__(self, machine: Machine, words: tuple[Parameter, ...], follow: frozenset[Quirk]) -> None:
        self.machine = machine
        #: the words of the command line, without huge page parameters that the kernel does not know
        self.words = words
        #: known issues that this prediction follows
        self.follow = follow
        self.cma = plan_cma(words, machine, follow)
        self.expectations: list[Expectation] = []
        self.messages: list[Message] = []
        self.shortages: list[Shortage] = []
        self.pre_allocated: list[PreAllocated] = []
        self.freeable: list[Freeable] = []
        self.unjudged: list[Unjudged] = []
        self.tolerated: list[str] = []
        self.remarks: list[str] = []
        self.may_exhaust_memory = False
        #: known issues that make a difference here
        self.quirks: set[Quirk] = set(self.cma.quirks)

    @property
    def has_nodes(self) -> bool:
        """Whether each node shows its pools: the kernel's configuration says so, or else its files."""
        configured = self.machine.is_configured("NUMA")
        return self.machine.interfaces.get("numa", True) if configured is None else configured

    def values(self, name: str) -> list[str | None]:
        """Return the values that ``name`` has on the command line, in order; None for the bare word."""
        return [word.value for word in self.words if word.canonical == name]

    def expect(self, subject: str, expected: Expected, rule: Rule) -> None:
        """Expect ``subject`` to be as ``expected``, on kernels that ``rule`` holds for."""
        if rule.holds_for(self.machine.version):
            self.expectations.append(Expectation(subject, expected, rule))

    def expect_messages(self, texts: Sequence[str], rule: Rule) -> None:
        """Expect lines in the kernel log, each as often as it is given."""
        if rule.holds_for(self.machine.version):
            self.messages += [Message(text, rule) for text in texts]

    def leave_open(self, subject: str, reason: str) -> None:
        """Say that ``subject`` is not judged, and why."""
        self.unjudged.append(Unjudged(subject, reason))

    def tolerate(self, start: str) -> None:
        """Take log lines that begin with ``start`` as they come."""
        self.tolerated.append(re.escape(start))

    def tolerate_shortage(self, size: str) -> None:
        """Take warnings about too few pages of ``size`` (as the log shows sizes) as they come."""
        self.tolerated.append(rf"HugeTLB: allocating \d+ of page size {re.escape(size)} failed")

    def finish(self, command_line: str) -> Prediction:
        """Return what was collected, as the prediction for ``command_line``."""
        return Prediction(
            command_line,
            tuple(self.expectations),
            tuple(self.messages),
            tuple(self.shortages),
            tuple(self.pre_allocated),
            tuple(self.freeable),
            tuple(self.unjudged),
            tuple(self.tolerated),
            tuple(self.remarks),
            self.may_exhaust_memory,
            frozenset(self.quirks),
        )
