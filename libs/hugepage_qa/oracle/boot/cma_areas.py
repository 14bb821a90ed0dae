"""What /proc/meminfo, the zones and the kernel log must show of the areas of hugetlb_cma=, which need room."""

from hugepage_qa.oracle.boot.boot_reservation import contiguous_room
from hugepage_qa.oracle.boot.cstring import string_get_size
from hugepage_qa.oracle.boot.hugetlb_parameters import HugetlbPlan
from hugepage_qa.oracle.prediction import Between, Draft
from hugepage_qa.oracle.rules import CMA_AREA, CMA_ON_NODE, CMA_SKIPS_GIGANTIC
from hugepage_qa.sizes import MIB

#: areas that are none of huge pages, such as that of cma= or CONFIG_CMA_SIZE_MBYTES
_OTHER_AREAS = 512 * MIB
_CMA_SKIPS = "HugeTLB: hugetlb_cma is enabled, skip boot time allocation"


def expect_cma(draft: Draft, plan: HugetlbPlan, *, cma_only: bool) -> None:
    """Add what the areas of hugetlb_cma= bring about; with ``cma_only`` gigantic pages come from them."""
    if draft.cma.open_because:
        _leave_cma_open(draft, draft.cma.open_because)
        return
    if draft.cma.total and not has_room_for_cma(draft):
        _leave_cma_open(draft, "memory decides whether the area can be reserved")
        return
    draft.expect_messages(draft.cma.messages, CMA_AREA)
    if draft.cma.total:
        draft.expect("meminfo/CmaTotal", Between(draft.cma.total, draft.cma.total + _OTHER_AREAS), CMA_AREA)
        for node in draft.machine.nodes:
            area = draft.cma.nodes.get(node.number, 0)
            draft.expect(f"node{node.number}/zoneinfo/cma", Between(area, area + _OTHER_AREAS), CMA_ON_NODE)
        if cma_only:
            return
        if any(draft.machine.mmu.is_gigantic(allocation.size) for allocation in plan.allocations):
            draft.expect_messages([_CMA_SKIPS], CMA_SKIPS_GIGANTIC)
        else:
            # said also of a gigantic size that was only named, or asked for with 0 pages
            draft.tolerate(_CMA_SKIPS)


def has_room_for_cma(draft: Draft) -> bool:
    """Tell whether every node has room for its CMA area for sure.

    It is one range; several are tried since 6.15, of memory above 4 GiB (mm/cma.c cma_declare_contiguous_multi()).
    """
    page = draft.machine.mmu.cma_page or 0
    nodes = [node for node in draft.machine.nodes if node.number in draft.cma.nodes]
    return all(contiguous_room(node, page, draft.machine) >= draft.cma.nodes[node.number] for node in nodes)


def _leave_cma_open(draft: Draft, reason: str) -> None:
    """Take what the log says of CMA areas, and of gigantic pages that depend on them, as it comes."""
    draft.leave_open("hugetlb_cma", reason)
    draft.tolerate("hugetlb_cma: ")
    draft.tolerate(_CMA_SKIPS)
    for size in draft.machine.sizes:
        if draft.machine.mmu.is_gigantic(size):
            draft.tolerate_shortage(string_get_size(size))
