"""hugetlb_cma=: areas that gigantic pages are allocated from later, or with hugetlb_cma_only= as soon as at boot.

Sources: Documentation/admin-guide/kernel-parameters.txt hugetlb_cma, hugetlb_cma_only; hugetlb_cma_reserve(),
hugetlb_early_cma().
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hugepage_qa.oracle.architecture import Machine
from hugepage_qa.oracle.boot.cstring import kstrtobool, memparse, scan_decimal
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.parameters import Parameter
from hugepage_qa.sizes import MIB
from hugepage_qa.version import KernelVersion

#: from here on sizes that are no multiple of the gigantic page are dropped; 6.12 and earlier round them up
DROPS_UNALIGNED = KernelVersion(7, 2)
ROUNDS_UP = KernelVersion(6, 13)
#: sizes may be a percentage of the memory that firmware reports, rounded down to gigantic pages
_PERCENT = KernelVersion(7, 3)
#: memory of a node that firmware reports and no zone has, such as what e820__memblock_setup() trims, is less than this
_NOT_PRESENT = 64 * MIB
_ALL = 100
_NOT_DECIDED = "a percentage of memory that is about a multiple of the gigantic page, or less than one"


@dataclass(frozen=True)
class CmaPlan:
    """What hugetlb_cma= reserves: bytes on each node, and what the log says."""

    nodes: dict[int, int] = field(default_factory=dict)
    messages: tuple[str, ...] = ()
    #: why the outcome is left open, or empty
    open_because: str = ""
    #: known issues that make a difference
    quirks: frozenset[Quirk] = frozenset()

    @property
    def total(self) -> int:
        """Bytes over all nodes."""
        return sum(self.nodes.values())


def plan_cma(words: Sequence[Parameter], machine: Machine, follow: frozenset[Quirk]) -> CmaPlan:
    """Return what the hugetlb_cma= among ``words`` reserves on ``machine``, if memory allows it.

    ``follow`` are the known issues that it deviates by.
    """
    values = [word.value for word in words if word.canonical == "hugetlb_cma" and word.value is not None]
    if not values:
        return CmaPlan()
    if len(values) > 1 and any(":" in value for value in values):
        return CmaPlan(open_because="counts for nodes in more than one hugetlb_cma=: no document says what that means")
    if machine.version >= _PERCENT and any("%" in value for value in values):
        return _plan_percentages(values, machine, follow)
    # each one sets the size anew: the last one wins
    asked, per_node = _parse(values[-1])
    if not asked and not per_node:
        return CmaPlan()
    page = machine.mmu.cma_page
    if page is None or page not in machine.sizes:
        # architectures that never call hugetlb_cma_reserve() are warned about in hugetlb_init(), which needs huge pages
        is_told = machine.version >= DROPS_UNALIGNED or machine.supports_huge_pages
        return CmaPlan(messages=("hugetlb_cma: the option isn't supported by current arch",) if is_told else ())
    if ROUNDS_UP <= machine.version < DROPS_UNALIGNED and any(size % page for size in (asked, *per_node.values())):
        return CmaPlan(open_because="no multiple of the gigantic page: rounded up by 6.12, dropped by 7.2")
    if per_node:
        return _on_nodes(per_node, page, machine)
    return _over_all_nodes(asked, page, machine, follow)


@dataclass(frozen=True)
class _Percentages:
    """What one hugetlb_cma= asks for: per cent of all memory, or of nodes, or bytes of nodes beside them."""

    of_all: int | None
    of_nodes: dict[int, int]
    bytes_of_nodes: dict[int, int]
    messages: tuple[str, ...] = ()


def _plan_percentages(values: Sequence[str], machine: Machine, follow: frozenset[Quirk]) -> CmaPlan:
    """Return what follows where a size may be a percentage (mm/hugetlb_cma.c cmdline_parse_hugetlb_cma())."""
    page = machine.mmu.cma_page
    if len(values) > 1:
        return CmaPlan(open_because="a percentage beside another hugetlb_cma=: no document says what that means")
    if page is None or page not in machine.sizes:
        return CmaPlan(open_because="a percentage where no area can be had")
    asked = _parse_percentages(values[0])
    if asked.of_all is None:
        return _percentages_of_nodes(asked, page, machine)
    size = _rounded_down(asked.of_all, sum(node.present for node in machine.memory_nodes), page)
    if size is None or (asked.of_all and not size):
        return CmaPlan(open_because=_NOT_DECIDED)
    if not size:
        return CmaPlan(messages=asked.messages)
    plan = _over_all_nodes(size, page, machine, follow)
    first, *others = plan.messages
    return replace(plan, messages=(*asked.messages, _with_percentage(first, asked.of_all), *others))


def _percentages_of_nodes(asked: _Percentages, page: int, machine: Machine) -> CmaPlan:
    present = {node.number: node.present for node in machine.memory_nodes}
    sizes = {
        node: _rounded_down(percent, present[node], page)
        for node, percent in asked.of_nodes.items()
        if percent and node in present
    }
    if not all(sizes.values()):
        return CmaPlan(open_because=_NOT_DECIDED)
    wanted = asked.bytes_of_nodes | {node: size for node, size in sizes.items() if size}
    if not wanted:
        return CmaPlan(messages=asked.messages)
    plan = _on_nodes(wanted, page, machine)
    told = plan.messages
    for node in sizes:
        of_node = f" on node {node}"
        told = tuple(_with_percentage(line, asked.of_nodes[node]) if line.endswith(of_node) else line for line in told)
    return replace(plan, messages=(*asked.messages, *told))


def _with_percentage(line: str, percent: int) -> str:
    """Return a ``line`` of the log as it is told with a percentage behind its first size."""
    return line.replace(" MiB", f" MiB ({percent}%)", 1)


def _rounded_down(percent: int, present: int, page: int) -> int | None:
    """Return so much of memory in bytes, rounded down to a multiple of ``page``; None where that is not decided."""
    least, most = ((present + more) * percent // 100 // page * page for more in (0, _NOT_PRESENT))
    return least if least == most else None


def _parse_percentages(text: str) -> _Percentages:
    of_nodes: dict[int, int] = {}
    of_bytes: dict[int, int] = {}
    rest = text
    while scanned := scan_decimal(rest):
        node, after = scanned
        if not after.startswith(":"):
            percent, after = memparse(text)
            if after.startswith("%") and percent <= _ALL:
                return _Percentages(percent, {}, {})
            return _Percentages(0, {}, {}, (f"hugetlb_cma: invalid percentage {percent}",))
        size, rest = memparse(after[1:])
        if rest.startswith("%"):
            if size > _ALL:
                message = f"hugetlb_cma: invalid percentage {size} for node {node}"
                return _Percentages(None, of_nodes, of_bytes, (message,))
            of_nodes[node] = size
            of_bytes.pop(node, None)
            rest = rest[1:]
        else:
            of_bytes[node] = size
            of_nodes.pop(node, None)
        if not rest.startswith(","):
            break
        rest = rest[1:]
    return _Percentages(None, of_nodes, {node: size for node, size in of_bytes.items() if size})


def read_cma_only(words: Sequence[Parameter]) -> tuple[bool, tuple[str, ...]]:
    """Return whether gigantic pages come from CMA areas alone, and what the log says of bad hugetlb_cma_only=."""
    only, messages = False, []
    for word in words:
        if word.canonical == "hugetlb_cma_only":
            value = kstrtobool(word.value)
            if value is None:
                messages.append(f"Malformed early option '{word.name}'")
            else:
                only = value
    return only, tuple(messages)


def _parse(text: str) -> tuple[int, dict[int, int]]:
    """Return (bytes over all nodes, bytes by node); one of both is empty."""
    per_node: dict[int, int] = {}
    rest = text
    while rest:
        scanned = scan_decimal(rest)
        if scanned is None:
            break
        node, after = scanned
        if not after.startswith(":"):
            return memparse(text)[0], {}
        per_node[node], rest = memparse(after[1:])
        if not rest.startswith(","):
            break
        rest = rest[1:]
    return 0, {node: size for node, size in per_node.items() if size}


def _on_nodes(per_node: dict[int, int], page: int, machine: Machine) -> CmaPlan:
    if machine.version >= DROPS_UNALIGNED:
        numbers = {node.number for node in machine.memory_nodes}
    else:
        numbers = {node.number for node in machine.nodes}
    messages, nodes = [], {}
    for number, size in sorted(per_node.items()):
        if number not in numbers:
            messages.append(f"hugetlb_cma: invalid node {number} specified")
        elif machine.version >= DROPS_UNALIGNED and size % page:
            messages.append(f"hugetlb_cma: cma area of node {number} must be a multiple of {page // MIB} MiB")
        elif size < page:
            messages.append(f"hugetlb_cma: cma area of node {number} should be at least {page // MIB} MiB")
        else:
            nodes[number] = _round_up(size, page)
    return CmaPlan(nodes, (*messages, *_reserved(nodes)))


def _over_all_nodes(asked: int, page: int, machine: Machine, follow: frozenset[Quirk]) -> CmaPlan:
    if machine.version >= DROPS_UNALIGNED:
        if asked % page:
            return CmaPlan(messages=(f"hugetlb_cma: cma area must be a multiple of {page // MIB} MiB",))
        numbers = [node.number for node in machine.memory_nodes]
    else:
        if asked < page:
            return CmaPlan(messages=(f"hugetlb_cma: cma area should be at least {page // MIB} MiB",))
        numbers = [node.number for node in machine.nodes]
    part = -(-asked // len(numbers))
    share = _round_up(part, page)
    nodes: dict[int, int] = {}
    for number in numbers:
        left = asked - sum(nodes.values())
        if left <= 0:
            break
        nodes[number] = _round_up(min(share, left), page)
    told = part if Quirk.CMA_SHARE_UNROUNDED in follow else share
    head = f"hugetlb_cma: reserve {asked // MIB} MiB, up to {told // MIB} MiB per node"
    quirks = frozenset({Quirk.CMA_SHARE_UNROUNDED} if part != share else ())
    return CmaPlan(nodes, (head, *_reserved(nodes)), quirks=quirks)


def _reserved(nodes: dict[int, int]) -> list[str]:
    return [f"hugetlb_cma: reserved {size // MIB} MiB on node {number}" for number, size in nodes.items()]


def _round_up(size: int, page: int) -> int:
    return -(-size // page) * page
