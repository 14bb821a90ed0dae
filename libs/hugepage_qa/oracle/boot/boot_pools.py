"""What the pools, /proc/meminfo and the kernel log must show of the hugetlb parameters."""

from collections.abc import Mapping

from hugepage_qa.oracle.boot.boot_reservation import Bounds, Pool, Reservation, reserve
from hugepage_qa.oracle.boot.cma import read_cma_only
from hugepage_qa.oracle.boot.cma_areas import expect_cma, has_room_for_cma
from hugepage_qa.oracle.boot.cstring import kstrtoul, string_get_size
from hugepage_qa.oracle.boot.hugetlb_parameters import (
    EARLY_PARAMETERS,
    HugetlbPlan,
    is_count_everywhere,
    plan_hugetlb,
)
from hugepage_qa.oracle.boot.movable_zone import has_movable_words
from hugepage_qa.oracle.boot.set_before_init import expect_set_before_init, is_set_before_init
from hugepage_qa.oracle.prediction import (
    Absent,
    AtLeast,
    Between,
    Draft,
    Exactly,
    Expected,
    Freeable,
    PreAllocated,
    Present,
    Shortage,
    SumOf,
    pool_subject,
)
from hugepage_qa.oracle.rules import (
    ALL_FREE,
    ALLOC_THREADS,
    CMA_AREA,
    CMA_ONLY,
    CMA_SKIPS_GIGANTIC,
    DEFAULT_FILES,
    DEFAULT_SIZE,
    HUGETLB_TOTAL,
    LOG_FREEABLE,
    LOG_POOL,
    LOG_SHORTAGE,
    LOG_WARNING,
    MEMPOLICY_VIEW,
    NO_SUPPORT,
    NODE_FORM,
    NODE_SPREAD,
    NODE_SUM,
    POOL_BOUNDED,
    POOL_EXISTS,
    POOL_SIZE,
    POOL_UNASKED,
    TOTAL_COMES_BACK,
    TOTAL_HAS_POOLS,
    TOTAL_IS_THERE,
    Rule,
)
from hugepage_qa.sizes import KIB, MIB
from hugepage_qa.version import KernelVersion

#: a system with less left than this may panic for want of memory before it reaches its init
_ROOM_TO_BOOT = 192 * MIB
#: the kernel keeps this share of the memory for itself at most, struct pages twice, and so much besides: less than GIB
_SHARE_OF_KERNEL, _KEPT_BY_KERNEL = 32, 256 * MIB
_RESERVING = ("crashkernel", "memmap", "reserve_mem", "page_owner", "swiotlb")
_SHADOWS = ("KASAN", "KMSAN")
_GIVEN_BACK = "HugeTLB: freed 1 cross-zone hugepages of size "
#: numbers of an unsigned long: what falls below 0 wraps to the last of them
_UNSIGNED_LONG = 1 << 64
#: hugetlb_register_all_nodes() walks over all nodes that are online, before over those with memory
_FILES_OF_ALL_NODES = KernelVersion(6, 1)
#: hugetlb_bootmem_page_zones_valid(): gigantic pages that lie in two zones are given back
_KEEPS_TO_ZONES = KernelVersion(6, 15)


def expect_pools(draft: Draft) -> None:
    """Add all that follows from hugepages=, hugepagesz=, default_hugepagesz=, hugetlb_cma= and their kin."""
    if draft.machine.is_configured("HUGETLB_PAGE") is False:
        draft.expect("meminfo/HugePages_Total", Absent(), NO_SUPPORT)
        return
    if not NODE_FORM.holds_for(draft.machine.version) and not all(map(is_count_everywhere, _counts(draft))):
        # distributions have brought the node form back to 5.14 and others
        draft.leave_open("hugepages", f"kernel {draft.machine.version} may have the node form, of 5.16, or not")
        draft.tolerate("HugeTLB: ")
        draft.may_exhaust_memory = True
        return
    plan = plan_hugetlb(draft.words, draft.machine, draft.follow)
    draft.quirks |= plan.quirks
    cma_only, messages = read_cma_only(draft.words)
    draft.expect_messages((*plan.messages, *messages), LOG_WARNING)
    if plan.default is None:
        draft.expect("meminfo/HugePages_Total", Absent(), NO_SUPPORT)
        draft.expect("meminfo/Hugepagesize", Absent(), NO_SUPPORT)
        draft.expect_messages(draft.cma.messages, CMA_AREA)
        return
    reservation = reserve(
        plan.allocations,
        draft.machine,
        cma=draft.cma.nodes,
        cma_only=cma_only,
        threads=_threads(draft),
        zones_meet=_gives_back(draft),
        quirks=draft.follow,
    )
    draft.quirks |= reservation.quirks
    room = sum(node.managed for node in draft.machine.nodes) - _ROOM_TO_BOOT
    if 0 < reservation.bytes_at_most > room:
        draft.may_exhaust_memory = True
    _expect_sizes(draft)
    expect_cma(draft, plan, cma_only=cma_only)
    as_reserved = _pools_as_reserved(draft, plan.default, reservation)
    _expect_counts(draft, plan, as_reserved, CMA_ONLY if cma_only else CMA_SKIPS_GIGANTIC)
    for size in as_reserved:
        draft.pre_allocated.append(PreAllocated(pool_subject(size, "nr_hugepages"), string_get_size(size), LOG_POOL))
    for size in draft.machine.sizes:
        _expect_consistency(draft, size)
        _expect_freeable(draft, size)
    _expect_total(draft)
    if _gives_back(draft):
        draft.tolerate(_GIVEN_BACK)
    _expect_default(draft, plan.default)
    _expect_vm_nr_hugepages(draft, plan.default, plan, reservation)
    _expect_threads(draft, plan)


def _pools_as_reserved(draft: Draft, default: int, reservation: Reservation) -> Mapping[int, Pool]:
    """Return the pools that are as boot has reserved them: all, but for one that a word sets before init."""
    if not is_set_before_init(draft):
        return reservation.pools
    is_empty = reservation.pools[default].total.high == 0
    expect_set_before_init(draft, default, is_certain=is_empty and has_room_for_cma(draft))
    return {size: pool for size, pool in reservation.pools.items() if size != default}


def _expect_freeable(draft: Draft, size: int) -> None:
    if not LOG_FREEABLE.holds_for(draft.machine.version):
        return
    cannot = draft.machine.is_configured("HUGETLB_PAGE_OPTIMIZE_VMEMMAP") is False
    most = 0 if cannot else draft.machine.mmu.freeable_struct_pages(size)
    draft.freeable.append(Freeable(string_get_size(size), most // KIB, LOG_FREEABLE))


def _counts(draft: Draft) -> list[str]:
    return [value for value in draft.values("hugepages") if value is not None]


def _expect_sizes(draft: Draft) -> None:
    present = draft.machine.sizes
    for size in draft.machine.mmu.hugetlb:
        draft.expect(pool_subject(size, "nr_hugepages"), Present() if size in present else Absent(), POOL_EXISTS)


def _expect_vm_nr_hugepages(draft: Draft, default: int, plan: HugetlbPlan, reservation: Reservation) -> None:
    """Expect the pool in vm.nr_hugepages; or, following that issue, what was counted less what memory lacked."""
    subject = "vm/nr_hugepages"
    if plan.shown is None:
        draft.expect(subject, _same(default, "nr_hugepages"), DEFAULT_FILES)
        return
    counts = [allocation.pages for allocation in plan.allocations if allocation.size == default]
    total = reservation.pools[default].total
    if len(counts) > 1 and not total.is_exact:
        # two shortages may be taken off one count, and what is shown falls below 0 and wraps
        draft.leave_open(subject, "shortages of two reservations of one size are taken off one count")
        return
    shown = Bounds(plan.shown - (sum(counts) - total.low), plan.shown - (sum(counts) - total.high))
    if shown.low < 0 <= shown.high:
        draft.leave_open(subject, "memory decides whether what is shown falls below 0 and wraps")
        return
    if shown.high < 0:
        shown = Bounds(shown.low + _UNSIGNED_LONG, shown.high + _UNSIGNED_LONG)
    draft.expect(subject, _expected(shown), DEFAULT_FILES)


def _expect_default(draft: Draft, default: int) -> None:
    draft.expect("meminfo/Hugepagesize", Exactly(default), DEFAULT_SIZE)
    names = {"Total": "nr_hugepages", "Free": "free_hugepages", "Rsvd": "resv_hugepages", "Surp": "surplus_hugepages"}
    for meminfo_name, name in names.items():
        draft.expect(f"meminfo/HugePages_{meminfo_name}", _same(default, name), DEFAULT_FILES)
    draft.expect("vm/nr_overcommit_hugepages", _same(default, "nr_overcommit_hugepages"), DEFAULT_FILES)
    total = SumOf(tuple((pool_subject(size, "nr_hugepages"), size) for size in draft.machine.sizes))
    draft.expect("meminfo/Hugetlb", total, HUGETLB_TOTAL)


def _expect_total(draft: Draft) -> None:
    """Expect MemTotal to have what the pools took, wherever from: boot takes gigantic pages out of it for a while."""
    machine = draft.machine
    _expect_total_of(draft, None, sum(node.present for node in machine.nodes))
    if draft.has_nodes:
        with_files = _nodes_with_files(draft)
        for node in (one for one in machine.nodes if one.number in with_files):
            _expect_total_of(draft, node.number, node.present)


def _expect_total_of(draft: Draft, node: int | None, present: int) -> None:
    meminfo = "meminfo" if node is None else f"node{node}/meminfo"
    pools = ((pool_subject(size, "nr_hugepages", node), size) for size in draft.machine.sizes)
    draft.expect(f"{meminfo}/MemTotal", AtLeast(SumOf(((f"{meminfo}/MemFree", 1), *pools))), TOTAL_HAS_POOLS)
    if present:
        draft.expect(f"{meminfo}/MemTotal", Between(0, present), TOTAL_IS_THERE)
    least = present - present // _SHARE_OF_KERNEL - _KEPT_BY_KERNEL
    if least > 0 and has_movable_words(draft) and not _keeps_more(draft):
        draft.expect(f"{meminfo}/MemTotal", Between(least, present), TOTAL_COMES_BACK)


def _gives_back(draft: Draft) -> bool:
    """Tell whether boot may give gigantic pages back, for they lie in two zones."""
    return has_movable_words(draft) and draft.machine.version >= _KEEPS_TO_ZONES


def _keeps_more(draft: Draft) -> bool:
    """Tell whether boot keeps memory for other reasons, or may: words that reserve it, and shadows of memory."""
    machine = draft.machine
    return any(draft.values(name) for name in _RESERVING) or any(machine.is_configured(name) for name in _SHADOWS)


def _expect_consistency(draft: Draft, size: int) -> None:
    """Expect what holds for a pool however many pages it got."""
    subject = pool_subject(size, "nr_hugepages")
    draft.expect(pool_subject(size, "free_hugepages"), _same(size, "nr_hugepages"), ALL_FREE)
    for name in ("resv_hugepages", "surplus_hugepages", "nr_overcommit_hugepages"):
        draft.expect(pool_subject(size, name), Exactly(0), ALL_FREE)
    numbers = _nodes_with_files(draft)
    if draft.has_nodes:
        draft.expect(pool_subject(size, "nr_hugepages_mempolicy"), _same(size, "nr_hugepages"), MEMPOLICY_VIEW)
        nodes = SumOf(tuple((pool_subject(size, "nr_hugepages", number), 1) for number in numbers))
        draft.expect(subject, nodes, NODE_SUM)
        for number in numbers:
            free = SumOf(((pool_subject(size, "nr_hugepages", number), 1),))
            draft.expect(pool_subject(size, "free_hugepages", number), free, ALL_FREE)
            draft.expect(pool_subject(size, "surplus_hugepages", number), Exactly(0), ALL_FREE)


def _expect_counts(draft: Draft, plan: HugetlbPlan, pools: Mapping[int, Pool], rule_of_cma: Rule) -> None:
    on_nodes = {allocation.size for allocation in plan.allocations if allocation.nodes}
    for size, pool in pools.items():
        by_cma = bool(draft.cma.total or draft.cma.open_because) and draft.machine.mmu.is_gigantic(size)
        if by_cma and (draft.cma.open_because or not has_room_for_cma(draft)):
            draft.leave_open(pool_subject(size, "nr_hugepages"), "memory decides whether the CMA area comes about")
            continue
        rule = rule_of_cma if by_cma else _count_rule(pool, size in on_nodes)
        draft.expect(pool_subject(size, "nr_hugepages"), _expected(pool.total), rule)
        _expect_nodes(draft, pool, NODE_FORM if size in on_nodes else NODE_SPREAD)
        _expect_shortages(draft, pool)


def _count_rule(pool: Pool, on_nodes: bool) -> Rule:
    if not pool.total.is_exact or any(asked.pages > pool.total.high for asked in pool.asked):
        return POOL_BOUNDED
    if pool.total.high == 0:
        return POOL_UNASKED
    return NODE_FORM if on_nodes else POOL_SIZE


def _expect_nodes(draft: Draft, pool: Pool, rule: Rule) -> None:
    if draft.has_nodes:
        for number in sorted(set(pool.nodes) & set(_nodes_with_files(draft))):
            draft.expect(pool_subject(pool.size, "nr_hugepages", number), _expected(pool.nodes[number]), rule)


def _nodes_with_files(draft: Draft) -> list[int]:
    """Return the numbers of the nodes that have files of pools for sure: those without memory have them since 6.1."""
    nodes = draft.machine.nodes if draft.machine.version >= _FILES_OF_ALL_NODES else draft.machine.memory_nodes
    return [node.number for node in nodes]


def _expect_shortages(draft: Draft, pool: Pool) -> None:
    if pool.asked_elsewhere:
        draft.tolerate_shortage(string_get_size(pool.size))
    if pool.reservations > 1:
        # which of them fell short cannot be told from the pool
        draft.leave_open("kernel log", f"{pool.reservations} reservations of pages of {pool.size} bytes")
        draft.tolerate_shortage(string_get_size(pool.size))
        return
    for asked in pool.asked:
        if asked.node is not None and not (draft.has_nodes and NODE_FORM.holds_for(draft.machine.version)):
            continue
        subject = pool_subject(pool.size, "nr_hugepages", asked.node)
        shown = string_get_size(pool.size)
        draft.shortages.append(Shortage(subject, asked.pages, shown, asked.node, LOG_SHORTAGE))


def _threads(draft: Draft) -> int | None:
    threads = None
    for value in draft.values("hugepage_alloc_threads"):
        number = kstrtoul(value) if value is not None else None
        threads = number or threads
    return threads


def _expect_threads(draft: Draft, plan: HugetlbPlan) -> None:
    if draft.machine.version < EARLY_PARAMETERS:
        return
    spread = [
        allocation
        for allocation in plan.allocations
        if not allocation.nodes and not draft.machine.mmu.is_gigantic(allocation.size)
    ]
    threads = _threads(draft) or max(1, draft.machine.cpus // 4)
    draft.expect_messages([f"with hugepage_allocation_threads={threads}"] * len(spread), ALLOC_THREADS)


def _same(size: int, name: str) -> SumOf:
    return SumOf(((pool_subject(size, name), 1),))


def _expected(bounds: Bounds) -> Expected:
    return Exactly(bounds.low) if bounds.is_exact else Between(bounds.low, bounds.high)
