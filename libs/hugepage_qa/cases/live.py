"""What a case acts on: the pool of one page size on the running machine, and actors that use it."""

import mmap
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from hugepage_qa.cases.expectations import Expectations
from hugepage_qa.cases.free_ranges import has_free_range
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pool_shortage import shortage
from hugepage_qa.cases.pool_view import NO_POOL, Counters, PoolView, read_counters, read_pool_view
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.cpu import read_cpu
from hugepage_qa.kernel.facts import read_kernel_version
from hugepage_qa.kernel.memory_layout import read_free_blocks
from hugepage_qa.kernel.nodes import node_directories
from hugepage_qa.kernel.pools import DIRECTORY
from hugepage_qa.kernel.tree import read_integer, size_name
from hugepage_qa.kernel.uapi import AT_FDCWD, HUGE_SHIFT, MAP_HUGETLB
from hugepage_qa.machine.host import CannotRun, Host, ObservedTree, Shortage
from hugepage_qa.machine.knobs import Kind, Knob
from hugepage_qa.oracle.architecture import Mmu, find_mmu
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.process.actor import Actor

READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE

_ATTEMPTS = 3
#: so long is no room made again for as many gigantic pages as there was none for
_IN_VAIN_SECONDS = 60.0
#: that others may take meanwhile
_SPARE_BLOCKS = 8

_SYSCTL = "proc/sys/vm/nr_hugepages"
_COUNTERS = ("nr", "free", "resv", "surplus")


class Live(Expectations):
    """The pool of pages of ``size`` bytes, seen from one case. Counts are pages above what was there before it.

    What is available in the pool when the case starts is put aside (an actor reserves it), so that a case knows to the
    page what it can have, and a reservation made at boot is never given back. Without a size it is the default pool,
    which is empty on a kernel without hugetlb.
    """

    def __init__(self, host: Host, size: int | None, rule: Rule, stack: ExitStack) -> None:
        super().__init__(rule, read_kernel_version(host), host.architecture)
        self.host = host
        self._stack = stack
        self._mounted: dict[str, Callable[[], None]] = {}
        self.largest_block = _largest_block(host)
        """Bytes of the largest block of the buddy allocator."""
        self._before = read_pool_view(host)
        self.size = self._before.meminfo.get("Hugepagesize", 0) if size is None else size
        self._base = self._before.pools.get(self.size, NO_POOL)

    # --- the machine ---

    @property
    def before(self) -> PoolView:
        """The pools as they were when the case began."""
        return self._before

    @property
    def has_pool(self) -> bool:
        """Whether the machine has a pool of these pages."""
        return self.size in self._before.pools

    @property
    def is_default(self) -> bool:
        """Whether this is the size that /proc/meminfo counts."""
        return self._before.meminfo.get("Hugepagesize") == self.size

    @property
    def is_largest(self) -> bool:
        """Whether the machine has no larger page size."""
        return self.size == max(self.sizes)

    @property
    def is_gigantic(self) -> bool:
        """Whether the buddy allocator has no block of this size."""
        return self.size > self.largest_block

    @property
    def mmu(self) -> Mmu:
        """What the processor can map, in the mode that the kernel runs it in."""
        return running_mmu(self.host)

    @property
    def sizes(self) -> tuple[int, ...]:
        """All page sizes of the machine in bytes, ascending."""
        return tuple(self._before.pools)

    @property
    def memory_total(self) -> int:
        """The memory of the machine in bytes."""
        return self._before.meminfo.get("MemTotal", 0)

    @property
    def base_page(self) -> int:
        """The size of a base page in bytes."""
        return self.host.base_page

    @property
    def nodes(self) -> tuple[int, ...]:
        """The NUMA nodes that have memory; empty for a kernel without CONFIG_NUMA."""
        return tuple(node for node in self._before.nodes if self.node_meminfo(node).get("MemTotal", 0))

    @property
    def has_several_nodes(self) -> bool:
        """Whether pages may lie on different NUMA nodes."""
        return len(self._before.nodes) > 1

    def node_meminfo(self, node: int) -> dict[str, int]:
        """Return the meminfo of a node: bytes, or pages for HugePages_*."""
        return read_meminfo(self.host, f"{node_directories(self.host)[node]}/meminfo")

    # --- acting on the pool ---

    def pool_file(self, name: str, *, size: int | None = None, node: int | None = None) -> str:
        """Return the path of a file of the pool, of the machine's or of a node's."""
        directory = DIRECTORY if node is None else f"{node_directories(self.host)[node]}/hugepages"
        return f"{directory}/{size_name(size or self.size)}/{name}"

    def absorb_surplus(self) -> None:
        """Let the pool no longer grow beyond nr_hugepages, and have nr_hugepages count what it grew so far.

        nr_hugepages takes surplus pages, which others use, before it allocates any (set_max_huge_pages()): with some
        there a case would get fewer pages than it asks for.
        """
        if self._before.overcommit.get(self.size):
            self.host.write(self.pool_file("nr_overcommit_hugepages"), "0")
        if self._base.surplus:
            self.host.write(self.pool_file("nr_hugepages"), f"{self._base.nr}")
            self._before = read_pool_view(self.host)
            self._base = self._before.pools[self.size]

    def put_aside(self) -> None:
        """Reserve what is available now: from here on the case counts from zero."""
        self.absorb_surplus()
        available = self._base.available
        if available > 0:
            self.map(available, shared=True)
            self._base = read_counters(self.host, self.size)

    def set_nr(self, pages: int, node: int | None = None) -> None:
        """Write nr_hugepages so that the pool has ``pages`` persistent pages above what was there. Raises OSError.

        Without a node the base is that of the machine, with one that of the node. Raises CannotRun where others have
        taken all ranges for gigantic pages, such as one that the case has just given back.
        """
        self._write_nr(pages, node)
        if not (self.is_gigantic and self.host.has_others and self._missing(pages, node) > 0):
            return
        self.make_room()
        self._write_nr(pages, node)
        missing = self._missing(pages, node)
        if missing > 0 and not has_free_range(self.host, self.size, node):
            raise self._shortage(pages, missing, self._memory_available(node), owed=False)

    def _write_nr(self, pages: int, node: int | None) -> None:
        base = self._base_of(node)
        self.host.write(self.pool_file("nr_hugepages", node=node), f"{base.nr - base.surplus + pages}")

    def _missing(self, pages: int, node: int | None) -> int:
        """Return how many of ``pages`` persistent pages are not in the pool."""
        pool = self.pool(node)
        return pages - (pool.nr - pool.surplus)

    def reserve(self, pages: int, node: int | None = None, *, movable: bool = False) -> None:
        """Set nr_hugepages as ``set_nr`` does and make sure that the pages are there.

        Raises CannotRun where memory is short or too fragmented, and Failed where it is not. What fragments it may be
        ``movable`` for sure: that is no reason then, but for gigantic pages.
        """
        if not pages and self.size not in self._before.pools:
            return  # a kernel without hugetlb
        memory = self._memory_available(node)
        for attempt in range(_ATTEMPTS):
            if attempt:
                if self._was_short_of(pages, node):
                    break
                self.make_room()
            self._write_nr(pages, node)
            missing = self._missing(pages, node)
            if missing <= 0:
                return
        else:
            if self.is_gigantic:
                self.host.shortages[self.size, node] = Shortage(pages, self.host.clock())
        has_blocks = self.free_blocks(node, self.size) >= missing + _SPARE_BLOCKS
        owed = movable or has_blocks
        if self.is_gigantic and (owed := has_free_range(self.host, self.size, node)):
            # others may have made it free since
            self._write_nr(pages, node)
            if self._missing(pages, node) <= 0:
                return
            owed = has_free_range(self.host, self.size, node)
        raise self._shortage(pages, missing, memory, owed=owed)

    def overcommit(self, pages: int) -> None:
        """Let the pool grow by ``pages`` surplus pages. Raises Refused (EINVAL for gigantic pages before 6.19)."""
        self.host.write(self.pool_file("nr_overcommit_hugepages"), f"{self._base.surplus + pages}")

    def let_grow(self, pages: int, node: int | None = None) -> None:
        """Let the pool grow by ``pages`` surplus pages, for which there is memory, on ``node`` or anywhere.

        Raises as ``reserve`` and ``overcommit`` do.
        """
        persistent = self.pool(node).nr
        self.reserve(persistent + pages, node)
        self.set_nr(persistent, node)
        self.overcommit(pages)

    def set_knob(self, path: str, value: str) -> None:
        """Write ``value`` to a file such as ``proc/sys/vm/hugetlb_shm_group`` until the case ends.

        Raises CannotRun where the kernel has no such file, OSError when it refuses the value.
        """
        before = Knob(Kind.SYSCTL, path).read(self.host)
        if before is None:
            raise CannotRun(f"this kernel has no /{path}")
        self._stack.callback(self.host.write, path, before)
        self.host.write(path, value)

    def set_knob_if_there(self, path: str, value: str) -> None:
        """Write ``value`` as ``set_knob`` does where the kernel has the file. Raises OSError when it refuses it."""
        if self.host.read(path) is not None:
            self.set_knob(path, value)

    def of_size(self, size: int) -> "Live":
        """Return the pool of another page size for this case; what was available in it is put aside, too."""
        other = Live(self.host, size, self.rule, self._stack)
        other.differences, other._mounted = self.differences, self._mounted
        other.put_aside()
        return other

    def make_room(self) -> None:
        """Drop clean caches and compact, as an administrator would (Documentation/admin-guide/sysctl/vm.rst)."""
        self.host.write("proc/sys/vm/drop_caches", "3")
        self.compact()

    def compact(self, node: int | None = None) -> None:
        """Compact all memory, or that of a node, for which each CPU puts what it has not yet on the lists there."""
        of_node = None if node is None else f"{node_directories(self.host)[node]}/compact"
        self.host.write(of_node or "proc/sys/vm/compact_memory", "1")

    def _was_short_of(self, pages: int, node: int | None) -> bool:
        """Tell whether there was no room a moment ago for as many gigantic pages, or for fewer.

        Kernels try range after range, and to make room takes as long as some cases do: all that need such pages would.
        """
        short = self.host.shortages.get((self.size, node)) if self.is_gigantic else None
        return short is not None and pages >= short.pages and self.host.clock() - short.at < _IN_VAIN_SECONDS

    def _memory_available(self, node: int | None) -> int:
        if node is not None:
            return self.node_meminfo(node).get("MemFree", 0)
        return read_meminfo(self.host).get("MemAvailable", 0)

    def free_blocks(self, node: int | None, size: int) -> int:
        """Return how many pages of ``size`` bytes the free blocks of a node, or of all, have room for."""
        order = (size // self.base_page).bit_length() - 1
        zones = (zone for zone in read_free_blocks(self.host) if node is None or zone.node == node)
        return sum(count << at - order for zone in zones for at, count in enumerate(zone.counts) if at >= order)

    def _shortage(self, pages: int, missing: int, memory: int, *, owed: bool) -> Exception:
        path = self.pool_file("nr_hugepages")
        return shortage(path, self.size, pages, missing, memory, is_gigantic=self.is_gigantic, owed=owed)

    # --- processes and memory ---

    def actor(self) -> Actor:
        """Start an actor; it ends with the case at the latest."""
        actor = self.host.start_actor()
        self._stack.callback(actor.end)
        return actor

    def start_program(self, path: str) -> Actor:
        """Start a program that ``host.build_text`` built; it ends with the case at the latest."""
        actor = self.host.start_program(path)
        self._stack.callback(actor.end)
        return actor

    def map(
        self,
        pages: int,
        actor: Actor | None = None,
        *,
        shared: bool = False,
        noreserve: bool = False,
        fd: int | None = None,
        first: int = 0,
        prot: int = READ_WRITE,
        flags: int = 0,
        at: int = 0,
    ) -> Memory:
        """Map ``pages`` huge pages: anonymous ones, or those of file ``fd`` from page ``first`` on. Raises OSError.

        Without an actor a new one is started for it. ``flags`` are further MAP_* flags, ``at`` an address for them.
        """
        actor = actor or self.actor()
        flags |= mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
        flags |= self.host.uapi.map_noreserve if noreserve else 0
        if fd is None:
            flags |= mmap.MAP_ANONYMOUS | self.size_flag | MAP_HUGETLB
        address = actor.mmap(pages * self.size, prot, flags, -1 if fd is None else fd, first * self.size, at)
        return Memory(self, actor, address, pages, self.size)

    @property
    def size_flag(self) -> int:
        """The page size as MAP_HUGE_*, MFD_HUGE_* and SHM_HUGE_* encode it."""
        return (self.size.bit_length() - 1) << HUGE_SHIFT

    def mount(self, **options: str | int) -> str:
        """Mount a hugetlbfs of this page size and return where; it is unmounted after the case. Raises OSError."""
        words = {"pagesize": self.size, **options}
        return self.mount_other(",".join(f"{name}={value}" for name, value in words.items()), "hugetlbfs")

    def mount_other(self, options: str, file_system: str) -> str:
        """Mount a ``file_system`` and return where; it is unmounted after the case. Raises Refused."""
        point = self.host.mount(options, file_system)
        # before the actors end, which have files open there, it would be busy
        self._mounted[point] = self.once_at_the_end(lambda: self.host.unmount(point))
        return point

    def unmount(self, point: str) -> None:
        """Unmount what the case has mounted on ``point`` while it goes on. Raises OSError where it stays busy."""
        self._mounted[point]()

    def when_actors_have_ended(self, act: Callable[..., None], *arguments: Any) -> None:
        """Call ``act`` when the case has ended and so have all its actors."""
        # callbacks run last in, first out
        later = self._stack.pop_all()
        self._stack.callback(act, *arguments)
        self._stack.push(later.__exit__)

    def once_at_the_end(self, act: Callable[[], None]) -> Callable[[], None]:
        """Call ``act`` as ``when_actors_have_ended`` does, if what is returned has not been called before."""
        left = [act]

        def once() -> None:
            for each in left:
                each()
            left.clear()

        self.when_actors_have_ended(once)
        return once

    def open(self, actor: Actor, path: str, flags: int = os.O_RDWR | os.O_CREAT) -> int:
        """Have ``actor`` open a file and return its descriptor. Raises OSError."""
        return actor.call("openat", AT_FDCWD, path, flags, 0o600)

    # --- judging ---

    def pool(self, node: int | None = None) -> Counters:
        """Return the counters now, above the base: for what a case decides by, not for what it judges."""
        return self._above_base(read_counters(self.host, self.size, node), node)

    def expect_pool(
        self,
        *,
        nr: int,
        free: int,
        resv: int = 0,
        surplus: int = 0,
        node: int | None = None,
        known: Mapping[Quirk, Mapping[str, int]] | None = None,
    ) -> None:
        """Expect these counters, above the base, and that every place that shows a pool shows the same.

        With a node they are those of the node, which knows nothing of reservations. ``known`` tells which counters
        are what else on kernels with a known bug: there the case ends, and is known. Raises KnownBug.
        """
        view = read_pool_view(ObservedTree(self.host))
        now = view.pools[self.size] if node is None else view.nodes[node][self.size]
        found, expected = self._above_base(now, node), Counters(nr, free, resv, surplus)
        for quirk, counters in (known or {}).items():
            self._end_if_known(quirk, found != expected and found.is_as(replace(expected, **counters)))
        self.differences += view.disagreements()
        where = size_name(self.size) if node is None else f"node{node}/{size_name(self.size)}"
        for name in _COUNTERS:
            self._compare(f"{where} {name}", getattr(expected, name), getattr(found, name))

    def expect_sysctl(self, nr: int) -> None:
        """Expect vm.nr_hugepages to show ``nr`` persistent pages above the base, if this is the default size.

        The kernel counts it apart from the pages that there are (max_huge_pages in mm/hugetlb.c).
        """
        if self.is_default:
            found = read_integer(ObservedTree(self.host), _SYSCTL)
            self._compare("vm.nr_hugepages", self._base.nr - self._base.surplus + nr, found)

    def _base_of(self, node: int | None) -> Counters:
        return self._base if node is None else self._before.nodes[node][self.size]

    def _above_base(self, now: Counters, node: int | None) -> Counters:
        return Counters(*(getattr(now, name) - getattr(self._base_of(node), name) for name in _COUNTERS))


def running_mmu(host: Host) -> Mmu:
    """Return what the processor can map, in the mode that the kernel runs it in.

    Raises InputError for an architecture that nobody has told us of.
    """
    kind = read_cpu(host).mmu
    return find_mmu(host.architecture, host.base_page, kind.lower() if kind else None)


def _largest_block(host: Host) -> int:
    """Return the bytes of the largest block of the buddy allocator: /proc/buddyinfo has a column for each order."""
    columns = (host.read("proc/buddyinfo") or "").partition("\n")[0].split()
    orders = len(columns) - len(["Node", "0,", "zone", "DMA"])
    if orders < 1:
        raise InputError("/proc/buddyinfo: expected a line for each zone, found none")
    return host.base_page << (orders - 1)
