"""What a prediction is made of: expectations about facts and about the kernel log, each with its rule."""

from dataclasses import dataclass, field

from hugepage_qa.model.known import Quirk
from hugepage_qa.model.rules import Rule

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


Expected = Exactly | Between | OneOf | Absent | Present | SumOf


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
