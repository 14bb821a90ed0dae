"""What huge pages hold through all that splits, copies, moves and swaps them."""

import mmap

from hugepage_qa.live import memory_policy
from hugepage_qa.live.case import Area, Sizes
from hugepage_qa.live.debugfs import split_all, write_debugfs
from hugepage_qa.live.live import READ_WRITE, Live
from hugepage_qa.live.memory import Memory
from hugepage_qa.live.mman import MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.live.swap import need_swap, swap_out, swapped
from hugepage_qa.live.thp_policy import huge_pages
from hugepage_qa.model.rules import THP_DOC
from hugepage_qa.plugins.live_test import LiveTest

CONTENTS = Area("thp/contents", sizes=Sizes.ONCE)

_STEP = 4096
_NEW_VALUE = 77


@CONTENTS.case(
    "mprotect() of a part of a huge page maps it as base pages, which hold what it held",
    f"{THP_DOC} thp_split_pmd; mm/huge_memory.c change_huge_pmd()",
)
def protected_in_part(live: Live) -> None:
    memory = huge_pages(live, 2)
    memory.actor.call("mprotect", memory.address, live.base_page, mmap.PROT_READ)
    live.expect("AnonHugePages of the part", 0, memory.smaps().anon_huge_pages)
    live.expect("AnonHugePages of the page behind it", memory.size, memory.smaps(1).anon_huge_pages)
    memory.expect_filled()
    memory.protect(READ_WRITE)
    memory.expect_filled()


@CONTENTS.case(
    "MADV_DONTNEED of a part gives zeroes there and leaves the rest; of a whole huge page it gives the page back",
    "madvise(2) MADV_DONTNEED; mm/huge_memory.c zap_huge_pmd(), __split_huge_pmd()",
)
def given_back_in_part(live: Live) -> None:
    memory = huge_pages(live, 3)
    half = memory.size // 2
    memory.actor.call("madvise", memory.address + half, half, mmap.MADV_DONTNEED)
    memory.advise(mmap.MADV_DONTNEED, 1, 1)
    live.expect("AnonHugePages", memory.size, memory.smaps().anon_huge_pages)
    live.expect("Rss", memory.size + half, memory.smaps().rss)
    live.expect("words of the first half that changed", 0, memory.actor.check(memory.address, half, _STEP, 1))
    live.expect("the first word that was given back", 0, memory.actor.read(memory.address + half))
    memory.expect_zero(1)
    memory.expect_filled(first=2)


@CONTENTS.case(
    "mremap() to an address that huge pages fit moves them as they are, to any other it splits them",
    "mremap(2); mm/mremap.c move_page_tables(), mm/huge_memory.c move_huge_pmd()",
)
def moved(live: Live) -> None:
    for shift, huge in ((0, True), (live.base_page, False)):
        memory = huge_pages(live)
        room = memory.actor.mmap(3 * memory.size, 0, mmap.MAP_ANONYMOUS | mmap.MAP_PRIVATE)
        target = -(-room // memory.size) * memory.size + shift
        flags = MREMAP_MAYMOVE | MREMAP_FIXED
        memory.actor.call("mremap", memory.address, memory.length, memory.length, flags, target)
        there = Memory(live, memory.actor, target, 1, memory.size)
        live.expect(f"AnonHugePages, moved by {shift} bytes", memory.size if huge else 0, there.smaps().anon_huge_pages)
        live.expect("Rss", memory.size, there.smaps().rss)
        there.expect_filled()


@CONTENTS.case(
    "after fork() each process keeps what it wrote: parent, child and grandchild, in whichever order they write",
    "fork(2); mm/huge_memory.c copy_huge_pmd(), do_huge_pmd_wp_page()",
)
def forked(live: Live) -> None:
    parent = huge_pages(live, 2)
    child = parent.seen_by(parent.actor.fork())
    grandchild = parent.seen_by(child.actor.fork())
    for memory in (parent, child, grandchild):
        live.expect("AnonHugePages", parent.length, memory.smaps().anon_huge_pages)
    child.fill(_NEW_VALUE)
    parent.expect_filled()
    grandchild.expect_filled()
    parent.touch(1, 9)
    child.expect_filled(_NEW_VALUE)
    grandchild.expect_filled()
    parent.actor.exit()
    grandchild.expect_filled()
    child.expect_filled(_NEW_VALUE)


@CONTENTS.case(
    "split_huge_pages splits huge pages into base pages, which hold what they held",
    f"{THP_DOC}; mm/huge_memory.c split_huge_pages_all()",
)
def split(live: Live) -> None:
    memory = huge_pages(live, 2)
    split_all(live)
    live.expect("AnonHugePages", 0, memory.smaps().anon_huge_pages)
    memory.expect_filled()


@CONTENTS.case(
    "a huge page is split to every order that the kernel offers, and holds what it held",
    f"{THP_DOC}; mm/huge_memory.c split_huge_pages_pid()",
    since="6.9",
)
def split_to_orders(live: Live) -> None:
    highest = (huge_pages(live).size // live.base_page).bit_length() - 1
    for order in (0, *range(2, highest)):
        memory = huge_pages(live)
        where = f"{memory.actor.pid},{memory.address:#x},{memory.address + memory.length:#x},{order}"
        write_debugfs(live, "split_huge_pages", where)
        live.expect(f"AnonHugePages after a split to order {order}", 0, memory.smaps().anon_huge_pages)
        live.expect("Rss", memory.length, memory.smaps().rss)
        memory.expect_filled()


@CONTENTS.case(
    "compaction moves huge pages or leaves them, and they hold what they held",
    "Documentation/admin-guide/sysctl/vm.rst compact_memory; mm/migrate.c",
)
def compacted(live: Live) -> None:
    memory = huge_pages(live, 8)
    memory.actor.call("munmap", memory.at(1), memory.size)
    live.host.write("proc/sys/vm/compact_memory", "1")
    live.expect("AnonHugePages", memory.size, memory.smaps().anon_huge_pages)
    live.expect("AnonHugePages", 6 * memory.size, memory.smaps(2).anon_huge_pages)
    memory.expect_filled(pages=1)
    memory.expect_filled(first=2)


@CONTENTS.case(
    "mbind() moves huge pages to another node as a whole, with what they hold",
    "mbind(2) MPOL_MF_MOVE; mm/mempolicy.c do_mbind(), mm/migrate.c, thp_migration_success",
    nodes=2,
)
def migrated(live: Live) -> None:
    first, second = live.nodes[:2]
    memory = huge_pages(live, 2)
    # the first time they may be there already
    for old, new in ((second, first), (first, second), (second, first)):
        memory_policy.bind(memory, [new], memory_policy.MOVE_STRICTLY)
        live.expect(f"AnonHugePages on node {new}", memory.length, memory.smaps().anon_huge_pages)
        pages = memory.numa_maps().nodes
        live.expect(f"pages left on node {old}", 0, pages.get(old, 0))
        memory.expect_filled()


@CONTENTS.case(
    "huge pages that are swapped out, whole or split, come back with what they held",
    f"madvise(2) MADV_PAGEOUT; {THP_DOC} thp_swpout",
    since="5.4",
)
def swapped_out(live: Live) -> None:
    memory = huge_pages(live, 2)
    need_swap(live, memory.length)
    swap_out(live, memory, memory.length)
    live.expect("AnonHugePages", 0, memory.smaps().anon_huge_pages)
    memory.expect_filled()
    live.expect("memory in swap after it was read", 0, swapped(memory))
    live.expect("Rss after it was read", memory.length, memory.smaps().rss)


class ThpContents(LiveTest):
    """What huge pages hold through all that happens to them.

    :avocado: enable
    :avocado: tags=thp
    """

    timeout = 600

    def test_contents(self) -> None:
        """Every case, once for the machine."""
        self.run_area(CONTENTS)
