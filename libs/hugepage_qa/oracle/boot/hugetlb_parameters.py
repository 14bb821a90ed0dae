"""The parser of the hugetlb parameters: from words of a command line to reservations.

It follows Documentation/admin-guide/mm/hugetlbpage.rst and, where that is silent, hugepages_setup(), hugepagesz_setup()
and default_hugepagesz_setup() in mm/hugetlb.c (the same since 5.8, node form since 5.16).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hugepage_qa.oracle.architecture import Machine
from hugepage_qa.oracle.boot.cstring import memparse, scan_decimal, string_get_size
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.parameters import Parameter
from hugepage_qa.version import KernelVersion

NAMES = ("hugepages", "hugepagesz", "default_hugepagesz")

#: hugetlb parameters are collected as early parameters and parsed once page sizes are known (commit 5b47c02967ab)
EARLY_PARAMETERS = KernelVersion(6, 15)

_COUNT = re.compile(r"[0-9]+(?![0-9:])|$")


@dataclass(frozen=True)
class Allocation:
    """One reservation: ``total`` pages of ``size`` bytes, or ``nodes`` (node number to pages) where given."""

    size: int
    total: int
    nodes: Mapping[int, int] = field(default_factory=dict)

    @property
    def pages(self) -> int:
        """The pages that are reserved: counts for nodes go before the total."""
        return sum(self.nodes.values()) if self.nodes else self.total


@dataclass(frozen=True)
class HugetlbPlan:
    """What the hugetlb parameters ask for."""

    #: default page size in bytes; None on a machine without huge pages
    default: int | None
    #: in the order in which the kernel reserves
    allocations: tuple[Allocation, ...]
    messages: tuple[str, ...]
    #: pages of the default size that vm.nr_hugepages shows, where that is not what is reserved
    shown: int | None
    #: known issues that make a difference to this command line
    quirks: frozenset[Quirk]


def is_count_everywhere(value: str) -> bool:
    """Tell whether kernels without the node form (before 5.16) read ``value`` of hugepages= as later ones do.

    These read a number and pass over the rest, and take what is none for 0 without a word.
    """
    return _COUNT.match(value) is not None


def plan_hugetlb(words: Sequence[Parameter], machine: Machine, quirks: frozenset[Quirk]) -> HugetlbPlan:
    """Return what the hugetlb parameters among ``words`` ask of ``machine``, with the deviations of ``quirks``."""
    return _Parser(machine, quirks).run(words)


@dataclass
class _Count:
    """Pages asked for so far of one size."""

    total: int = 0
    nodes: dict[int, int] = field(default_factory=dict)

    def clear(self) -> None:
        self.total = 0
        self.nodes.clear()


class _InvalidCountError(Exception):
    """The text of hugepages= cannot be parsed from here on."""


class _Parser:
    """The kernel's state while it walks over the hugetlb parameters."""

    def __init__(self, machine: Machine, quirks: frozenset[Quirk]) -> None:
        self._machine = machine
        self._follow = quirks
        self._counts: dict[int, _Count] = {}  # in the order in which sizes are added
        self._implicit = _Count()  # hugepages= before any size
        self._size: int | None = None  # the size that a following hugepages= is for
        self._size_is_valid = True
        self._default: int | None = None
        self._last: _Count | None = None
        self._reserved_while_parsing: list[Allocation] = []
        self._messages: list[str] = []
        self._relevant: set[Quirk] = set()

    def run(self, words: Sequence[Parameter]) -> HugetlbPlan:
        """Parse ``words`` and return the plan."""
        handlers = {
            "hugepages": self._hugepages,
            "hugepagesz": self._hugepagesz,
            "default_hugepagesz": self._default_hugepagesz,
        }
        accepted = self._accepted(words)
        if not self._machine.supports_huge_pages and self._machine.version >= EARLY_PARAMETERS:
            return self._refuse_all(accepted)
        for name, value in accepted:
            handlers[name](value)
        if not self._machine.supports_huge_pages:
            return self._nothing_reserved()
        default = self._choose_default()
        allocations = self._allocations()
        shown = self._shown(default, allocations)
        return HugetlbPlan(default, allocations, tuple(self._messages), shown, frozenset(self._relevant))

    def _accepted(self, words: Sequence[Parameter]) -> list[tuple[str, str]]:
        early = self._machine.version >= EARLY_PARAMETERS
        accepted: list[tuple[str, str]] = []
        # no bug: HUGE_MAX_CMDLINE_ARGS has room for one pair of each page size and one default_hugepagesz=
        limit = 2 * self._machine.mmu.slots + 1
        for word in words:
            if word.canonical not in NAMES:
                continue
            if word.value is None or (early and len(accepted) >= limit):
                if early:
                    self._messages.append(f"Malformed early option '{word.name}'")
                continue
            accepted.append((word.canonical, word.value))
        return accepted

    # --- the three parameters ---

    def _hugepages(self, text: str) -> None:
        if not self._size_is_valid:
            self._say(f"hugepages={text} does not follow a valid hugepagesz, ignoring")
            self._size_is_valid = True
            return
        count = self._implicit if self._size is None else self._counts[self._size]
        if count is self._last:
            self._say(f"hugepages= specified twice without interleaving hugepagesz=, ignoring hugepages={text}")
            return
        try:
            accepted = self._read_count(text, count)
        except _InvalidCountError as error:
            self._say(f"Invalid hugepages parameter {error}")
            count.clear()
            return
        if accepted:
            if self._size is not None:
                self._reserve_if_gigantic(self._size)
            self._last = count

    def _read_count(self, text: str, count: _Count) -> bool:
        """Add what ``text`` asks for to ``count``; return False where the node form is not supported."""
        rest = text
        while rest:
            number, rest_after = _number(rest)
            if not rest_after.startswith(":"):
                if rest != text:
                    raise _InvalidCountError(rest)
                count.total = number
                return True
            if not self._machine.mmu.node_form:
                self._say("architecture can't support node specific alloc, ignoring!")
                return False
            if number not in {node.number for node in self._machine.nodes}:
                raise _InvalidCountError(rest)
            node = number
            number, rest = _number(rest_after[1:])
            count.nodes[node] = number
            count.total += number
            if not rest.startswith(","):
                return True
            rest = rest[1:]
        return True

    def _hugepagesz(self, text: str) -> None:
        self._size_is_valid = False
        size, _ = memparse(text)
        if size not in self._machine.sizes:
            self._say(f"unsupported hugepagesz={text}")
            return
        if size in self._counts:
            # the default size may be named once more as long as no count was given for it
            if self._default != size or self._counts[size].total:
                self._say(f"hugepagesz={text} specified twice, ignoring")
                return
        else:
            self._counts[size] = _Count()
        self._size = size
        self._size_is_valid = True

    def _default_hugepagesz(self, text: str) -> None:
        self._size_is_valid = False
        if self._default is not None:
            self._say(f"default_hugepagesz previously specified, ignoring {text}")
            return
        size, _ = memparse(text)
        if size not in self._machine.sizes:
            self._say(f"unsupported default_hugepagesz={text}")
            return
        if size not in self._counts:
            self._counts[size] = _Count()
            self._size = size
        elif self._size != size:
            self._relevant.add(Quirk.DEFAULT_SIZE_NAMED_BEFORE)
            if Quirk.DEFAULT_SIZE_NAMED_BEFORE not in self._follow:
                self._size = size
        self._size_is_valid = True
        self._default = size
        if self._implicit.total:
            self._take_implicit_count(self._counts[size])
            self._reserve_if_gigantic(size)
            self._implicit.total = 0

    def _take_implicit_count(self, count: _Count) -> None:
        nodes = dict(self._implicit.nodes)
        if self._machine.version >= EARLY_PARAMETERS and set(count.nodes) - set(nodes):
            self._relevant.add(Quirk.IMPLICIT_COUNT_KEEPS_NODES)
            if Quirk.IMPLICIT_COUNT_KEEPS_NODES in self._follow:
                nodes = count.nodes | nodes
        count.total = self._implicit.total
        count.nodes = nodes

    # --- the end ---

    def _refuse_all(self, words: Sequence[tuple[str, str]]) -> HugetlbPlan:
        """Return the plan of a kernel since 6.15 on a CPU without huge pages: each parameter is refused by name."""
        for name, value in words:
            self._say(f"hugepages unsupported, ignoring {name}={value} cmdline")
        return HugetlbPlan(None, (), tuple(self._messages), None, frozenset(self._relevant))

    def _nothing_reserved(self) -> HugetlbPlan:
        """Return the plan of an older kernel on a CPU without huge pages: no size is valid, counts are dropped."""
        if self._implicit.total:
            self._say("huge pages not supported, ignoring associated command-line parameters")
        return HugetlbPlan(None, (), tuple(self._messages), None, frozenset())

    def _choose_default(self) -> int:
        if self._default is not None:
            return self._default
        default = self._machine.mmu.default
        count = self._counts.setdefault(default, _Count())
        if self._implicit.total:
            if count.total:
                self._say(f"Ignoring hugepages={count.total} associated with {string_get_size(default)} page size")
                self._say(f"Using hugepages={self._implicit.total} for number of default huge pages")
            count.total = self._implicit.total
            count.nodes = dict(self._implicit.nodes)
        return default

    def _reserve_if_gigantic(self, size: int) -> None:
        """Note a reservation that kernels before 6.15 make at once, since gigantic pages come from memblock."""
        if self._machine.version < EARLY_PARAMETERS and self._machine.mmu.is_gigantic(size):
            count = self._counts[size]
            if count.total:
                self._reserved_while_parsing.append(Allocation(size, count.total, dict(count.nodes)))

    def _allocations(self) -> tuple[Allocation, ...]:
        final = [
            Allocation(size, count.total, {node: pages for node, pages in count.nodes.items() if pages})
            for size, count in self._counts.items()
            if count.total
        ]
        gigantic = [allocation for allocation in final if self._machine.mmu.is_gigantic(allocation.size)]
        small = [allocation for allocation in final if not self._machine.mmu.is_gigantic(allocation.size)]
        if self._was_reserved_twice(gigantic):
            self._relevant.add(Quirk.GIGANTIC_COUNTED_TWICE)
            if Quirk.GIGANTIC_COUNTED_TWICE in self._follow:
                gigantic = self._reserved_while_parsing
        elif self._reserved_while_parsing:
            order = [allocation.size for allocation in self._reserved_while_parsing]
            gigantic.sort(key=lambda allocation: order.index(allocation.size))
        return (*gigantic, *small)

    def _shown(self, default: int, allocations: tuple[Allocation, ...]) -> int | None:
        counted = self._counts[default].total
        reserved = sum(allocation.pages for allocation in allocations if allocation.size == default)
        if counted == reserved:
            return None
        self._relevant.add(Quirk.COUNT_NOT_RESERVED)
        return counted if Quirk.COUNT_NOT_RESERVED in self._follow else None

    def _was_reserved_twice(self, gigantic: list[Allocation]) -> bool:
        if self._machine.version >= EARLY_PARAMETERS:
            return False
        reserved = {(allocation.size, allocation.total) for allocation in self._reserved_while_parsing}
        wanted = {(allocation.size, allocation.total) for allocation in gigantic}
        return len(self._reserved_while_parsing) != len(gigantic) or reserved != wanted

    def _say(self, text: str) -> None:
        self._messages.append(f"HugeTLB: {text}")


def _number(text: str) -> tuple[int, str]:
    scanned = scan_decimal(text)
    if scanned is None:
        raise _InvalidCountError(text)
    return scanned
