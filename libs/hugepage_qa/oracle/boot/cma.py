"""hugetlb_cma=: areas that gigantic pages are allocated from later, or with hugetlb_cma_only= as soon as at boot.

Sources: Documentation/admin-guide/kernel-parameters.txt hugetlb_cma, hugetlb_cma_only; hugetlb_cma_reserve(),
hugetlb_early_cma().
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hugepage_qa.oracle.architecture import Machine
from hugepage_qa.oracle.boot.asked_areas import AskedAreas, AskedSize, read_asked_areas
from hugepage_qa.oracle.boot.cstring import kstrtobool
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.parameters import Parameter
from hugepage_qa.sizes import MIB
from hugepage_qa.version import KernelVersion

#: from here on sizes that are no multiple of the gigantic page are dropped; 6.12 and earlier round them up
DROPS_UNALIGNED = KernelVersion(7, 2)
ROUNDS_UP = KernelVersion(6, 13)
#: sizes may be a percentage of the memory that firmware reports, rounded down to gigantic pages; and what is asked for
#: takes the place of what was asked for before, where the size of a node stayed behind one of all
_PERCENT = KernelVersion(7, 3)
#: memory of a node that firmware reports and no zone has, such as what e820__memblock_setup() trims, is less than this
_NOT_PRESENT = 64 * MIB
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
    has_percentages = machine.version >= _PERCENT
    if not has_percentages and len(values) > 1 and any(":" in value for value in values):
        return CmaPlan(open_because="counts for nodes in more than one hugetlb_cma=: no document says what that means")
    asked = read_asked_areas(values, has_percentages=has_percentages)
    if asked.are_none:
        return CmaPlan(messages=asked.messages)
    page = machine.mmu.cma_page
    if page is None or page not in machine.sizes:
        if asked.have_percentages:
            return CmaPlan(open_because="a percentage where no area can be had")
        # architectures that never call hugetlb_cma_reserve() are warned about in hugetlb_init(), which needs huge pages
        is_told = machine.version >= DROPS_UNALIGNED or machine.supports_huge_pages
        told = ("hugetlb_cma: the option isn't supported by current arch",) if is_told else ()
        return CmaPlan(messages=(*asked.messages, *told))
    if ROUNDS_UP <= machine.version < DROPS_UNALIGNED and _is_unaligned(asked, page):
        return CmaPlan(open_because="no multiple of the gigantic page: rounded up by 6.12, dropped by 7.2")
    plan = _plan_of_nodes(asked, page, machine) if asked.of_nodes else _plan_of_all(asked.of_all, page, machine, follow)
    return replace(plan, messages=(*asked.messages, *plan.messages))


def _is_unaligned(asked: AskedAreas, page: int) -> bool:
    return any(size.number % page for size in (asked.of_all, *asked.of_nodes.values()))


def _plan_of_all(asked: AskedSize, page: int, machine: Machine, follow: frozenset[Quirk]) -> CmaPlan:
    if not asked.is_percentage:
        return _over_all_nodes(asked.number, page, machine, follow)
    size = _rounded_down(asked.number, sum(node.present for node in machine.memory_nodes), page)
    if not size:
        return CmaPlan(open_because=_NOT_DECIDED)
    plan = _over_all_nodes(size, page, machine, follow)
    first, *others = plan.messages
    return replace(plan, messages=(_with_percentage(first, asked.number), *others))


def _plan_of_nodes(asked: AskedAreas, page: int, machine: Machine) -> CmaPlan:
    present = {node.number: node.present for node in machine.memory_nodes}
    percentages = {node: size.number for node, size in asked.of_nodes.items() if size.is_percentage}
    wanted = {node: size.number for node, size in asked.of_nodes.items() if not size.is_percentage}
    # of a node that is not there it is nothing, and nothing is said of it
    for node in percentages.keys() & present.keys():
        size = _rounded_down(percentages[node], present[node], page)
        if not size:
            return CmaPlan(open_because=_NOT_DECIDED)
        wanted[node] = size
    plan = _on_nodes(wanted, page, machine)
    told = plan.messages
    for node, percent in percentages.items():
        of_node = f" on node {node}"
        told = tuple(_with_percentage(line, percent) if line.endswith(of_node) else line for line in told)
    return replace(plan, messages=told)


def _with_percentage(line: str, percent: int) -> str:
    """Return a ``line`` of the log as it is told with a percentage behind its first size."""
    return line.replace(" MiB", f" MiB ({percent}%)", 1)


def _rounded_down(percent: int, present: int, page: int) -> int | None:
    """Return so much of memory in bytes, rounded down to a multiple of ``page``; None where that is not decided."""
    least, most = ((present + more) * percent // 100 // page * page for more in (0, _NOT_PRESENT))
    return least if least == most else None


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
