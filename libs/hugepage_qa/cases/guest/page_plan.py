"""What guests take of the pools, held against what a host has: which of them start, and what has to be reserved."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hugepage_qa.cases.pool_view import PoolView, read_pool_view
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.pools import DIRECTORY
from hugepage_qa.kernel.proc_tables import MOUNTS, read_mounts
from hugepage_qa.kernel.tree import Tree, size_name
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.qemu.guest.foreign_domain import WantedGuest
from hugepage_qa.qemu.guest.guest_description import Pool, pages_of_cells, whole_pages
from hugepage_qa.sizes import MIB, format_size, parse_size

KVM_HPAGE = "sys/module/kvm/parameters/hpage"
KVM_NEEDS_HPAGE = Rule(
    "kvm-needs-hpage",
    "on s390x KVM refuses guests on huge pages unless it was loaded with hpage=1",
    "Documentation/virt/kvm/api.rst 7.14 KVM_CAP_S390_HPAGE_1M; arch/s390/kvm/kvm-s390.c",
)

#: of QEMU without the guest's memory: heap, firmware, and what TCG translates; see ``lab.probe`` for what was measured
QEMU_MEMORY = 256 * MIB
_ENTRY = 8
# of QEMU's page table and of KVM's, which maps the same pages for the guest
_TABLES = 2
_BASE_PAGE = 4096


@dataclass(frozen=True)
class Supply:
    """Pages of a host that are neither in use nor reserved: of each size, and those of them on each node.

    ``reserved`` is what each pool has now. ``mounted`` are the sizes that a hugetlbfs is mounted for; None: not known.
    """

    whole: Mapping[int, int]
    nodes: Mapping[Pool, int]
    reserved: Mapping[Pool, int]
    mounted: frozenset[int] | None = None


@dataclass(frozen=True)
class PoolPlan:
    """What is asked of one pool: pages ``needed``, those ``available`` in it now, and all that are ``reserved``."""

    pool: Pool
    needed: int
    available: int
    reserved: int = 0

    @property
    def missing(self) -> int:
        """Pages that have to be reserved before the guests can start."""
        return max(0, self.needed - self.available)

    @property
    def left(self) -> int:
        """Pages that are free when the guests run."""
        return max(0, self.available - self.needed)

    @property
    def wanted(self) -> int:
        """How many pages the pool has to have."""
        return self.reserved + self.missing

    @property
    def file(self) -> str:
        """The file that reserves pages for this pool."""
        name = f"{size_name(self.pool.size)}/nr_hugepages"
        if self.pool.node is None:
            return f"/{DIRECTORY}/{name}"
        return f"/sys/devices/system/node/node{self.pool.node}/hugepages/{name}"


@dataclass(frozen=True)
class GuestPlan:
    """What guests need of each pool, and of ordinary memory in bytes; ``refusals`` tell of those that cannot start."""

    pools: tuple[PoolPlan, ...]
    ordinary_memory: int
    refusals: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    #: sizes that a hugetlbfs has to be mounted for
    unmounted: tuple[int, ...] = ()
    #: whether it is known what the host has
    is_held_against_a_host: bool = True

    @property
    def is_met(self) -> bool:
        """Whether the guests can start now, as far as that is known."""
        return not self.is_held_against_a_host or not (self.refusals or any(pool.missing for pool in self.pools))


def ordinary_memory(guest: WantedGuest) -> int:
    """Return the bytes that a guest takes besides its huge pages: of QEMU, page tables, and cells on ordinary pages."""
    tables = sum(_TABLES * _ENTRY * cell.memory // (cell.page or _BASE_PAGE) for cell in guest.cells)
    return QEMU_MEMORY + tables + sum(cell.memory for cell in guest.cells if cell.page is None)


def plan_for_any_host(guests: Sequence[WantedGuest]) -> GuestPlan:
    """Return the plan for ``guests`` on a host of which nothing is known."""
    return replace(_plan(guests, Supply({}, {}, {})), refusals=(), is_held_against_a_host=False)


def plan_for_pool(guests: Sequence[WantedGuest], pages: int) -> GuestPlan:
    """Return the plan for ``guests`` on a host with ``pages`` pages in each pool that they need."""
    pools = {pool for guest in guests for pool in pages_of_cells(guest.cells)}
    sizes = {pool.size for pool in pools}
    whole = {size: pages * max(1, sum(pool.size == size for pool in pools)) for size in sizes}
    return _plan(guests, Supply(whole, dict.fromkeys(pools, pages), dict.fromkeys(pools, pages)))


def plan_for_machine(guests: Sequence[WantedGuest], tree: Tree) -> GuestPlan:
    """Return the plan for ``guests``, started in this order, on the machine of ``tree``.

    Raises InputError for what the machine can never have: a page size, a node, more memory than there is, and for
    KVM on s390x that was loaded without huge pages.
    """
    view = read_pool_view(tree)
    for guest in guests:
        _refuse_impossible(guest, view)
    _refuse_more_than_memory(guests, view)
    if kvm_refuses(tree) and any(pages_of_cells(guest.cells) for guest in guests):
        raise InputError(f"/{KVM_HPAGE} is 0: {KVM_NEEDS_HPAGE.statement}; boot with kvm.hpage=1")
    return _plan(guests, _supply(view, tree))


def kvm_refuses(tree: Tree) -> bool:
    """Tell whether KVM of this machine will back no guest with huge pages: only that of s390x has the parameter."""
    value = (tree.read(KVM_HPAGE) or "").strip()
    return value in ("0", "N")


def _supply(view: PoolView, tree: Tree) -> Supply:
    on_nodes = {Pool(size, node): pool for node, pools in view.nodes.items() for size, pool in pools.items()}
    of_all = {Pool(size): pool for size, pool in view.pools.items()}
    # which node the reserved pages will come from is not known: all of them may come from this one
    nodes = {pool: max(0, min(found.free, view.pools[pool.size].available)) for pool, found in on_nodes.items()}
    sizes = [mount.option("pagesize") for mount in read_mounts(tree) if mount.type == "hugetlbfs"]
    return Supply(
        {size: max(0, pool.available) for size, pool in view.pools.items()},
        nodes,
        {pool: found.nr for pool, found in (of_all | on_nodes).items()},
        None if tree.read(MOUNTS) is None else frozenset(parse_size(size) for size in sizes if size),
    )


def _plan(guests: Sequence[WantedGuest], supply: Supply) -> GuestPlan:
    needs: Counter[Pool] = Counter()
    for guest in guests:
        needs.update(pages_of_cells(guest.cells))
    unmounted = sorted({size for guest in guests for size in _unmounted(guest, supply)})
    return GuestPlan(
        tuple(_pool_plans(needs, supply)),
        sum(map(ordinary_memory, guests)),
        refusals=(*_mount_refusals(guests, supply), *_refusals(guests, supply)),
        remarks=tuple(remark for guest in guests for remark in _remarks(guest)),
        unmounted=tuple(unmounted),
    )


def _remarks(guest: WantedGuest) -> Iterator[str]:
    yield from (f"{guest.name}: {remark}" for remark in guest.remarks)
    if not any(cell.page for cell in guest.cells):
        yield f"{guest.name} takes no huge pages"
    for cell in guest.cells:
        if cell.page and cell.memory % cell.page:
            pages = whole_pages(cell.memory, cell.page)
            yield (
                f"{guest.name}: {cell.memory // MIB} MiB are no multiple of {format_size(cell.page)}: QEMU refuses that"
                f" from 8.2 on, and takes {pages} whole pages before"
            )


def _pool_plans(needs: Mapping[Pool, int], supply: Supply) -> Iterator[PoolPlan]:
    for pool, needed in sorted(needs.items(), key=str):
        reserved = supply.reserved.get(pool, 0)
        if pool.node is not None:
            available = supply.nodes.get(pool, 0)
        else:
            # the others take theirs of the same pages, and what they miss is reserved for them
            bound = [(other, pages) for other, pages in needs.items() if other.size == pool.size and other != pool]
            taken = sum(min(pages, supply.nodes.get(other, 0)) for other, pages in bound)
            reserved += sum(pages for _, pages in bound) - taken
            available = max(0, supply.whole.get(pool.size, 0) - taken)
        yield PoolPlan(pool, needed, available, reserved)


def _refusals(guests: Sequence[WantedGuest], supply: Supply) -> Iterator[str]:
    """Yield why each guest cannot start that finds too few pages when those before it run."""
    whole, nodes = Counter(supply.whole), Counter(supply.nodes)
    for guest in guests:
        need = pages_of_cells(guest.cells)
        short = next((text for text in _shortages(need, whole, nodes)), None)
        if short is not None:
            yield f"{guest.name} cannot start: {short}"
            continue
        for pool, pages in need.items():
            whole[pool.size] -= pages
            nodes[pool] -= pages


def _shortages(need: Mapping[Pool, int], whole: Counter[int], nodes: Counter[Pool]) -> Iterator[str]:
    for pool, pages in need.items():
        if pool.node is not None and pages > (free := min(nodes[pool], whole[pool.size])):
            yield f"it needs {pages} pages of {format_size(pool.size)} on node {pool.node}, {free} are free by then"
    for size in {pool.size for pool in need}:
        pages = sum(count for pool, count in need.items() if pool.size == size)
        if pages > whole[size]:
            yield f"it needs {pages} pages of {format_size(size)}, {whole[size]} are free by then"


def _unmounted(guest: WantedGuest, supply: Supply) -> frozenset[int]:
    if supply.mounted is None or not guest.in_files:
        return frozenset()
    return frozenset(pool.size for pool in pages_of_cells(guest.cells)) - supply.mounted


def _mount_refusals(guests: Sequence[WantedGuest], supply: Supply) -> Iterator[str]:
    for guest in guests:
        for size in sorted(_unmounted(guest, supply)):
            yield f"{guest.name} cannot start: no hugetlbfs is mounted for pages of {format_size(size)}"


def _refuse_impossible(guest: WantedGuest, view: PoolView) -> None:
    for pool in pages_of_cells(guest.cells):
        if pool.size not in view.pools:
            name, sizes = format_size(pool.size), ", ".join(format_size(size) for size in view.pools) or "none"
            raise InputError(f"{guest.name}: page size {name}: this machine has none of it, expected one of {sizes}")
        if pool.node is not None and pool.node not in view.nodes:
            nodes = ", ".join(map(str, view.nodes)) or "none"
            raise InputError(
                f"{guest.name}: node {pool.node}: this machine has no such NUMA node, expected one of {nodes}"
            )


def _refuse_more_than_memory(guests: Sequence[WantedGuest], view: PoolView) -> None:
    """Raise InputError when the huge pages of all guests are more than the machine has memory: they are not swapped."""
    pages = [(pool.size, count) for guest in guests for pool, count in pages_of_cells(guest.cells).items()]
    need, total = sum(size * count for size, count in pages), view.meminfo.get("MemTotal", 0)
    if need > total:
        raise InputError(
            f"{sum(count for _, count in pages)} huge pages are {need // MIB} MiB: this machine has {total // MIB} MiB"
            " of memory, and huge pages are not swapped out: make the guests smaller, or fewer"
        )
