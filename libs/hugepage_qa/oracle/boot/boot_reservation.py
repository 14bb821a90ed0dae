"""What reservations get from memory: pools, exact where memory is plenty, in bounds where it decides.

A page that is larger than the buddy allocator's largest block comes from memblock while the kernel starts: it needs an
aligned free range of physical memory. All others come from the buddy allocator. Sources: mm/hugetlb.c
alloc_bootmem_huge_page(), hugetlb_hstate_alloc_pages(); lab measurements in docs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hugepage_qa.oracle.architecture import Machine, Node
from hugepage_qa.oracle.boot.early_memory import frames_of, untouched
from hugepage_qa.oracle.boot.hugetlb_parameters import Allocation
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.sizes import Span
from hugepage_qa.version import KernelVersion

#: share of the free memory of a node that the buddy allocator hands out as huge pages without fail right after start
_SURE_SHARE = 0.6
#: from here on pages are allocated by several threads, each of which starts its round at the first node
_PARALLEL = KernelVersion(6, 9)
#: number of threads is a parameter, a quarter of the CPUs by default
_THREADS_BY_CPU = KernelVersion(6, 15)


@dataclass
class Bounds:
    """A number of pages that is known to lie from ``low`` to ``high``."""

    low: int
    high: int

    def add(self, other: "Bounds") -> None:
        """Add the pages of ``other``."""
        self.low += other.low
        self.high += other.high

    @property
    def is_exact(self) -> bool:
        """Whether it can be one number alone."""
        return self.low == self.high


@dataclass(frozen=True)
class Asked:
    """A reservation whose shortage the kernel would report: pages asked for, on one node or over all (None)."""

    pages: int
    node: int | None


@dataclass
class Pool:
    """The pool of one page size after boot."""

    size: int
    total: Bounds
    nodes: dict[int, Bounds]
    asked: list[Asked] = field(default_factory=list)
    reservations: int = 0
    #: some pages may come from another node than asked: the pools do not tell whether the kernel reports a shortage
    asked_elsewhere: bool = False


@dataclass(frozen=True)
class Reservation:
    """All pools, the issues that memory makes relevant, and the bytes that the reservations may take at most."""

    pools: Mapping[int, Pool]
    quirks: frozenset[Quirk]
    bytes_at_most: int


def reserve(
    allocations: Sequence[Allocation],
    machine: Machine,
    *,
    cma: Mapping[int, int] | None = None,
    cma_only: bool = False,
    threads: int | None = None,
    zones_meet: bool = False,
    quirks: frozenset[Quirk] = frozenset(),
) -> Reservation:
    """Return the pools that ``allocations``, made in this order, leave on ``machine``.

    ``cma`` is the bytes that hugetlb_cma= took of each node before: gigantic allocations fall away, or are made from
    these areas with ``cma_only``. ``threads`` is hugepage_alloc_threads=. With ``zones_meet`` movable memory begins
    somewhere within a node: the gigantic page that lies there may be given back.
    """
    return _Memory(machine, cma or {}, cma_only, threads, zones_meet, quirks).reserve(allocations)


def gigantic_room(node: Node, size: int, machine: Machine, taken: Bounds | None = None) -> Bounds:
    """Return how many aligned ranges of ``size`` bytes memblock surely and at most finds on ``node``.

    ``taken`` is how many bytes of the node earlier gigantic reservations took.
    """
    taken = taken or Bounds(0, 0)
    frames = frames_of(node, size, machine)
    present = sum(span.size for span in node.spans)
    high = min(len(frames), (present - taken.low) // size)
    low = len(untouched(frames, node, machine)) - -(-taken.high // size)
    return Bounds(max(0, low), max(0, high))


def contiguous_room(node: Node, size: int, machine: Machine) -> int:
    """Return how many bytes memblock surely finds on ``node`` in one range that is aligned to ``size`` bytes."""
    longest = 0
    run = Span(0, 0)
    for frame in untouched(frames_of(node, size, machine), node, machine):
        run = Span(run.start, frame.end) if run.end == frame.start else frame
        longest = max(longest, run.size)
    return longest


class _Memory:
    """Memory as the reservations eat it up."""

    def __init__(
        self,
        machine: Machine,
        cma: Mapping[int, int],
        cma_only: bool,
        threads: int | None,
        zones_meet: bool,
        quirks: frozenset[Quirk],
    ) -> None:
        self._machine = machine
        self._cma_bytes = sum(cma.values())
        self._cma_left = dict(cma)
        self._cma_only = cma_only
        self._threads = threads
        self._zones_meet = zones_meet
        self._follow = quirks
        self._relevant: set[Quirk] = set()
        self._taken: dict[int, Bounds] = {node.number: Bounds(0, 0) for node in machine.nodes}  # bytes
        self._pools = {
            size: Pool(size, Bounds(0, 0), {node.number: Bounds(0, 0) for node in machine.nodes})
            for size in machine.sizes
        }

    def reserve(self, allocations: Sequence[Allocation]) -> Reservation:
        for allocation in allocations:
            from_cma = bool(self._cma_bytes) and self._machine.mmu.is_gigantic(allocation.size)
            if from_cma and not self._cma_only:
                continue
            self._pools[allocation.size].reservations += 1
            if from_cma:
                self._from_cma(allocation)
            elif allocation.nodes:
                self._on_nodes(allocation)
            else:
                self._over_all_nodes(allocation)
        taken = sum(bounds.high for bounds in self._taken.values())
        return Reservation(self._pools, frozenset(self._relevant), taken)

    # --- hugetlb_cma_only= ---

    def _from_cma(self, allocation: Allocation) -> None:
        """Take pages of the areas as hugetlb_cma_alloc_bootmem() does: of each node in turn, else of any."""
        size, pool = allocation.size, self._pools[allocation.size]
        got = dict.fromkeys(self._taken, 0)
        if allocation.nodes:
            for number, pages in allocation.nodes.items():
                got[number] = min(pages, self._cma_left.get(number, 0) // size)
                pool.asked.append(Asked(pages, number))
        else:
            numbers = [node.number for node in self._machine.memory_nodes]
            left = {number: self._cma_left.get(number, 0) // size for number in numbers}
            for turn in range(min(allocation.total, sum(left.values()))):
                wanted = numbers[turn % len(numbers)]
                found = next(number for number in (wanted, *numbers) if left[number])
                left[found] -= 1
                got[found] += 1
            pool.asked.append(Asked(allocation.total, None))
        for number, pages in got.items():
            self._cma_left[number] = self._cma_left.get(number, 0) - pages * size
        total = sum(got.values())
        self._take(size, {number: Bounds(pages, pages) for number, pages in got.items()}, Bounds(total, total))

    # --- hugepages=<node>:<count> ---

    def _on_nodes(self, allocation: Allocation) -> None:
        for node in self._machine.nodes:
            pages = allocation.nodes.get(node.number, 0)
            if not pages:
                continue
            room = self._room(node, allocation.size)
            if pages > room.low and self._falls_back(allocation.size):
                self._fall_back(allocation.size, pages, node.number)
                continue
            got = Bounds(min(pages, room.low), min(pages, room.high))
            self._take(allocation.size, {node.number: got}, got)
            self._pools[allocation.size].asked.append(Asked(pages, node.number))

    def _falls_back(self, size: int) -> bool:
        """Tell whether to follow the issue that gigantic pages of a short node come from another one."""
        if len(self._machine.memory_nodes) == 1 or not self._machine.mmu.is_gigantic(size):
            return False
        self._relevant.add(Quirk.GIGANTIC_NODE_FALLBACK)
        return Quirk.GIGANTIC_NODE_FALLBACK in self._follow

    def _fall_back(self, size: int, pages: int, wanted: int) -> None:
        """Take ``pages`` from node ``wanted`` as far as it has room, and only what is left from others."""
        rooms = {node.number: self._room(node, size) for node in self._machine.memory_nodes}
        total = self._clip(pages, rooms)
        room = rooms.get(wanted, Bounds(0, 0))
        left = pages - min(pages, room.low)
        nodes = {number: Bounds(0, min(left, other.high)) for number, other in rooms.items()}
        nodes[wanted] = Bounds(min(pages, room.low), min(pages, room.high))
        self._take(size, nodes, total)
        self._pools[size].asked_elsewhere = True

    # --- hugepages=<count> ---

    def _over_all_nodes(self, allocation: Allocation) -> None:
        rooms = {node.number: self._room(node, allocation.size) for node in self._machine.memory_nodes}
        total = self._clip(allocation.total, rooms)
        shares = self._shares(allocation, rooms)
        self._take(allocation.size, shares, total)
        self._pools[allocation.size].asked.append(Asked(allocation.total, None))

    def _clip(self, pages: int, rooms: Mapping[int, Bounds]) -> Bounds:
        low = sum(room.low for room in rooms.values())
        high = sum(room.high for room in rooms.values())
        return Bounds(min(pages, low), min(pages, high))

    def _shares(self, allocation: Allocation, rooms: Mapping[int, Bounds]) -> dict[int, Bounds]:
        """Return what each node gets of an even spread; anything goes where a node may be too small for its share."""
        count = len(rooms)
        share, rest = divmod(allocation.total, count)
        if any(share + 1 > room.low for room in rooms.values()) and count > 1:
            return {number: Bounds(0, min(allocation.total, room.high)) for number, room in rooms.items()}
        slack = self._uneven_pages(allocation)
        if slack == 0:
            exact = {number: share + (index < rest) for index, number in enumerate(sorted(rooms))}
            return {
                number: Bounds(min(pages, rooms[number].low), min(pages, rooms[number].high))
                for number, pages in exact.items()
            }
        return {number: Bounds(max(0, share - slack), share + 1 + slack) for number in rooms}

    def _uneven_pages(self, allocation: Allocation) -> int:
        """Return by how many pages nodes may differ from an even spread, since each thread starts at the first node."""
        version, nodes = self._machine.version, len(self._machine.memory_nodes)
        if self._machine.mmu.is_gigantic(allocation.size) or version < _PARALLEL or nodes == 1:
            return 0
        default_threads = 2 * nodes if version < _THREADS_BY_CPU else max(1, self._machine.cpus // 4)
        threads = self._threads or default_threads
        return 0 if threads == 1 else threads + 1

    # --- memory ---

    def _take(self, size: int, nodes: Mapping[int, Bounds], total: Bounds) -> None:
        pool = self._pools[size]
        if self._zones_meet and self._machine.mmu.is_gigantic(size):
            # of each node one may be given back, and none is taken for it (hugetlb_bootmem_page_zones_valid(), 6.15)
            total = Bounds(max(0, total.low - len(nodes)), total.high)
            nodes = {number: Bounds(max(0, pages.low - 1), pages.high) for number, pages in nodes.items()}
        pool.total.add(total)
        for number, pages in nodes.items():
            pool.nodes[number].add(pages)
            self._taken[number].add(Bounds(pages.low * size, pages.high * size))

    def _room(self, node: Node, size: int) -> Bounds:
        """Return how many pages of ``size`` the node surely and at most has room for."""
        if self._machine.mmu.is_gigantic(size):
            return gigantic_room(node, size, self._machine, self._taken[node.number])
        taken = self._taken[node.number]
        free = node.managed - self._cma_bytes
        low = int((free - taken.high) * _SURE_SHARE) // size
        return Bounds(max(0, low), max(0, (node.managed - taken.low) // size))
