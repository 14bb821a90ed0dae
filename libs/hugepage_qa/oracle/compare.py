"""The comparison of a prediction with the facts: every difference with both values and the rule that it breaks."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from hugepage_qa.kernel.log import tells_of_trouble
from hugepage_qa.oracle.prediction import (
    Absent,
    AtLeast,
    Between,
    Exactly,
    Expectation,
    Freeable,
    OneOf,
    PreAllocated,
    Prediction,
    Present,
    Shortage,
    SumOf,
    Value,
)
from hugepage_qa.oracle.rules import LOG_QUIET, Rule

Observations = Mapping[str, Value]

#: lines about huge pages that are no complaint
_INFORMATION = re.compile(
    r"HugeTLB:? registered |HugeTLB: \d+ KiB vmemmap can be freed|HugeTLB: allocation took "
    r"|hugetlb_cma: reserved? \d+ MiB"
)
#: lines that complain about huge pages or their parameters
_COMPLAINT = re.compile(
    r"^HugeTLB: |^hugetlb_cma: |^huge_memory: |transparent_hugepage\w*= cannot parse|hugetext= cannot parse"
    r"|^(?:\w+: )?thp_(?:anon|shmem)=|Malformed early option '[\w-]*huge"
    r"|invalid for parameter `[\w-]*huge|page allocation failure"
)
#: what a kernel says when its parameters took all its memory
_OUT_OF_MEMORY = re.compile(r"page allocation failure|Out of memory")
#: the reason that the kernel gives before it gives up on a list of THP sizes; the line after it is the one expected
_DETAIL = re.compile(r"invalid (?:size|policy) .* in thp_(?:anon|shmem) boot parameter")


@dataclass(frozen=True)
class Difference:
    """A fact that is not as predicted."""

    subject: str
    rule: Rule
    expected: str
    found: str

    def __str__(self) -> str:
        return told([self])


def told(differences: Iterable[Difference], at_most: int | None = None) -> str:
    """Return ``differences`` in one line, each rule once behind those in a row that break it.

    Of these the first ``at_most`` are told, and how many more there are.
    """
    groups = groupby(differences, lambda difference: difference.rule)
    return "; ".join(f"{_found([*found], at_most)} (rule {rule.name}: {rule.statement})" for rule, found in groups)


def _found(differences: Sequence[Difference], at_most: int | None) -> str:
    shown = [f"{each.subject}: expected {each.expected}, found {each.found}" for each in differences[:at_most]]
    left = len(differences) - len(shown)
    return "; ".join([*shown, *([f"and {left} more"] if left else [])])


def compare(prediction: Prediction, observations: Observations, log: Sequence[str]) -> list[Difference]:
    """Return where ``observations`` and the texts of the kernel ``log`` differ from ``prediction``."""
    differences = []
    for expectation in prediction.expectations:
        difference = _check(expectation, observations)
        if difference is not None:
            differences.append(difference)
    return differences + _check_log(prediction, observations, log)


def expected_value(expectation: Expectation, observations: Observations) -> str:
    """Return what is expected as text; sums are worked out from the facts they refer to."""
    expected = expectation.expected
    if isinstance(expected, SumOf):
        return _worked_out(expected, observations)
    if isinstance(expected, AtLeast):
        return f"at least {_worked_out(expected.sum, observations)}"
    return str(expected)


def _worked_out(expected: SumOf, observations: Observations) -> str:
    total = _sum(expected, observations)
    return f"{expected}" if total is None else f"{total} (= {expected})"


def is_met(expectation: Expectation, observations: Observations) -> bool:
    """Tell whether what was observed is as expected."""
    found = observations.get(expectation.subject)
    expected = expectation.expected
    match expected:
        case Absent():
            return found is None
        case Present():
            return found is not None
        case Exactly(value):
            return found == value
        case OneOf(values):
            return found in values
        case Between(low, high):
            return isinstance(found, int) and low <= found <= high
        case SumOf():
            return found is not None and found == _sum(expected, observations)
        case AtLeast(total):
            least = _sum(total, observations)
            return isinstance(found, int) and least is not None and found >= least


def _check(expectation: Expectation, observations: Observations) -> Difference | None:
    if is_met(expectation, observations):
        return None
    found = observations.get(expectation.subject)
    return Difference(
        expectation.subject,
        expectation.rule,
        expected_value(expectation, observations),
        "nothing" if found is None else str(found),
    )


def _sum(expected: SumOf, observations: Observations) -> int | None:
    total = 0
    for subject, weight in expected.terms:
        value = observations.get(subject)
        if not isinstance(value, int):
            return None
        total += value * weight
    return total


# --- the kernel log ---


def _check_log(prediction: Prediction, observations: Observations, log: Sequence[str]) -> list[Difference]:
    lines = list(log)
    differences = []
    for message in prediction.messages:
        index = next((index for index, line in enumerate(lines) if message.text in line), None)
        if index is None:
            differences.append(Difference("kernel log", message.rule, f"a line with {message.text!r}", "none"))
        else:
            del lines[index]
    for pre_allocated in prediction.pre_allocated:
        differences += _check_pre_allocated(pre_allocated, observations, lines)
    differences += _check_freeable(prediction.freeable, lines)
    for shortage in prediction.shortages:
        differences += _check_shortage(shortage, observations, lines)
    return differences + [
        Difference("kernel log", LOG_QUIET, "no such line", line)
        for line in lines
        if _is_complaint(line) and not any(re.match(pattern, line) for pattern in prediction.tolerated)
        if not (prediction.may_exhaust_memory and _OUT_OF_MEMORY.search(line))
    ]


def _is_complaint(line: str) -> bool:
    if tells_of_trouble(line):
        return True
    return bool(_COMPLAINT.search(line)) and not _INFORMATION.search(line) and not _DETAIL.search(line)


def _check_pre_allocated(expected: PreAllocated, observations: Observations, lines: list[str]) -> list[Difference]:
    pattern = re.compile(rf"HugeTLB:? registered {re.escape(expected.size)} page size, pre-allocated (\d+) pages")
    counts = [int(match[1]) for line in lines if (match := pattern.search(line))]
    found = observations.get(expected.subject)
    if counts == [found]:
        return []
    wanted = f"one line with pre-allocated {found} pages of {expected.size}"
    shown = ", ".join(f"pre-allocated {count}" for count in counts) or "none"
    return [Difference("kernel log", expected.rule, wanted, shown)]


def _check_freeable(expected: Sequence[Freeable], lines: list[str]) -> list[Difference]:
    found = [(one, int(match[1]), line) for one in expected for line in lines if (match := one.pattern.search(line))]
    if not any(kib for _one, kib, _line in found):
        return []
    return [
        Difference("kernel log", one.rule, f"{one.kib} KiB for a page of {one.size}, or 0 for those of each size", line)
        for one, kib, line in found
        if kib != one.kib
    ]


def _check_shortage(expected: Shortage, observations: Observations, lines: list[str]) -> list[Difference]:
    """Check the warning of one reservation and remove it from ``lines``."""
    node = "" if expected.node is None else f" node{expected.node}"
    pattern = re.compile(
        rf"HugeTLB: allocating {expected.asked} of page size {re.escape(expected.size)} failed{node}\. +"
        r"Only allocated (\d+) hugepages"
    )
    found = observations.get(expected.subject)
    short = isinstance(found, int) and found < expected.asked
    warnings = [(index, match) for index, line in enumerate(lines) if (match := pattern.search(line))]
    if not warnings:
        if not short:
            return []
        return [Difference("kernel log", expected.rule, f"a warning: {found} of {expected.asked} pages", "none")]
    index, match = warnings[0]
    line = lines.pop(index)
    if short and int(match[1]) == found:
        return []
    wanted = f"{found} of {expected.asked} pages as {expected.subject} says"
    return [Difference("kernel log", expected.rule, wanted, line)]
