"""The pool of one page size, which a case makes larger and smaller, and what it must show."""

import errno
from collections.abc import Mapping
from dataclasses import replace

from hugepage_qa.cases.expectations import Failed
from hugepage_qa.cases.free_ranges import has_free_range
from hugepage_qa.cases.machine_under_test import MachineUnderTest
from hugepage_qa.cases.pool_view import NO_POOL, Counters, read_counters, read_pool_view
from hugepage_qa.cases.result import FRAGMENTED
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.nodes import node_directories
from hugepage_qa.kernel.pools import DIRECTORY
from hugepage_qa.kernel.tree import read_integer, size_name
from hugepage_qa.machine.host import CannotRun, Host, ObservedTree, Shortage
from hugepage_qa.oracle.compare import Difference
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import HUGETLB_DOC, Rule
from hugepage_qa.process.actor import Refused
from hugepage_qa.sizes import MIB, format_size

RESERVES = Rule(
    "reserves-what-memory-allows",
    "a write to nr_hugepages reserves that many pages where twice the memory of those that it lacks is available, in"
    " blocks or movable",
    f"{HUGETLB_DOC} nr_hugepages; mm/hugetlb.c set_max_huge_pages()",
)
#: memory that must stay for the machine itself
_MARGIN = 256 * MIB

_ATTEMPTS = 3
#: so long is no room made again for as many gigantic pages as there was none for
_IN_VAIN_SECONDS = 60.0
#: that others may take meanwhile
_SPARE_BLOCKS = 8

_SYSCTL = "proc/sys/vm/nr_hugepages"
_COUNTERS = ("nr", "free", "resv", "surplus")


class ResizedPool(MachineUnderTest):
    """The pool of pages of ``size`` bytes, seen from one case. Counts are pages above what was there before it."""

    def __init__(self, host: Host, size: int | None, rule: Rule) -> None:
        super().__init__(host, size, rule)
        self._base = self._before.pools.get(self.size, NO_POOL)

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
            needed = 2 * missing * self.size + _MARGIN
            raise self._shortage(pages, missing, self._memory_available(node), needed, owed=False)

    def _write_nr(self, pages: int, node: int | None) -> None:
        base, path = self._base_of(node), self.pool_file("nr_hugepages", node=node)
        try:
            self.host.write(path, f"{base.nr - base.surplus + pages}")
        except Refused as refusal:
            if self.is_gigantic and refusal.errno == errno.EINVAL and self._refuses_what_it_shows(path):
                page = format_size(self.size)
                raise CannotRun(f"this kernel takes and gives back no pages of {page} at run time") from refusal
            raise

    def _refuses_what_it_shows(self, path: str) -> bool:
        """Tell whether a write of what a file shows is refused (gigantic_page_runtime_supported())."""
        try:
            self.host.write(path, self.host.read(path) or "")
        except Refused:
            return True
        return False

    def _missing(self, pages: int, node: int | None) -> int:
        """Return how many of ``pages`` persistent pages are not in the pool."""
        pool = self.pool(node)
        return pages - (pool.nr - pool.surplus)

    def reserve(self, pages: int, node: int | None = None, *, movable: bool = False) -> None:
        """Set nr_hugepages as ``set_nr`` does and make sure that the pages are there.

        Raises CannotRun where memory is short or too fragmented, and Failed where it is not. What fragments it may be
        ``movable`` for sure: that is no reason then, but for gigantic pages.
        """
        if not pages and not self.has_pool:
            return  # a kernel without hugetlb
        memory, lacking = self._memory_available(node), self._missing(pages, node)
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
        owed = self.free_blocks(node, self.size) >= missing + _SPARE_BLOCKS or movable
        if self.is_gigantic and (owed := has_free_range(self.host, self.size, node)):
            # others may have made it free since
            self._write_nr(pages, node)
            if self._missing(pages, node) <= 0:
                return
            owed = has_free_range(self.host, self.size, node)
        if node is None and self.nodes_of_others:
            owed = False  # it may be free there
        raise self._shortage(pages, missing, memory, 2 * lacking * self.size + _MARGIN, owed=owed)

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

    def _shortage(self, pages: int, missing: int, memory: int, needed: int, *, owed: bool) -> CannotRun | Failed:
        """Return what to raise where ``missing`` of ``pages`` pages are not in the pool, of ``memory`` available bytes.

        It is CannotRun where less was available than was ``needed``, or where the kernel has not ``owed`` them, and
        Failed otherwise.
        """
        page = format_size(self.size)
        # no numbers that differ from case to case: a report shows one line for all that it kept out
        if memory < needed:
            return CannotRun(f"memory is short: no pages of {page} and as much again for the machine itself are free")
        if not owed:
            lacks = f"range is free for a page of {page}" if self.is_gigantic else f"block is free for pages of {page}"
            return CannotRun(f"{FRAGMENTED}: after compaction no {lacks}")
        found = f"{pages - missing} with {memory >> 20} MiB available, after compaction"
        return Failed(Difference(self.pool_file("nr_hugepages"), RESERVES, f"{pages} pages", found))

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
