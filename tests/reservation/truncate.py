"""Files that shrink, and advice on files: pages and reservations go where they must, and stay where they must."""

import errno
import mmap
import os
import signal
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import file_of_each_kind, new_memfd
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.race import at_once
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.known_memory_issues import MEMORY_ISSUES
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Came
from hugepage_qa.sizes import GIB

TRUNCATE = Area("truncate")
_ROUNDS = 30
SHRINK = "ftruncate(2); mmap(2) SIGBUS; fs/hugetlbfs/inode.c hugetlb_vmtruncate(), remove_inode_hugepages()"
ADVICE = "mm/readahead.c force_page_cache_ra(): hugetlbfs has no readahead; mm/hugetlb.c hugetlb_reserve_pages()"


@TRUNCATE.case(
    "what is beyond the new end gives its pages back and gets SIGBUS, even where pages are free", SHRINK, pages=2
)
def access_beyond_the_end(live: Live) -> None:
    for file in file_of_each_kind(live):
        memory = file.map(2)
        memory.touch(0, 1)
        memory.touch(1, 2)
        live.expect_pool(nr=2, free=0)
        file.truncate(1)
        live.expect_pool(nr=2, free=1)
        live.expect_signal(signal.SIGBUS, memory.read, 1)
        live.expect_signal(signal.SIGBUS, memory.touch, 1)
        live.expect_pool(nr=2, free=1)
        live.expect("the page before the end", 1, memory.read(0))
        file.truncate(0)
        live.expect_pool(nr=2, free=2)
        live.expect_signal(signal.SIGBUS, memory.touch, 0)
        live.expect_pool(nr=2, free=2)


@TRUNCATE.case(
    "a hole, and a new end, takes its pages alone from mappings that begin anywhere in the file: the shared pages and"
    " the private copies beside it hold what they held",
    f"{SHRINK} hugetlbfs_punch_hole(), vma_offset_start(), vma_offset_end()",
    sizes=Sizes.BUDDY,
    pages=8,
)
def pages_beside(live: Live) -> None:
    file = new_memfd(live)
    shared = file.map(3)
    private = [file.map(3 - first, shared=False, first=first) for first in range(2)]
    for about, cut, gone in (
        ("a hole in the middle", partial(file.punch, 1, 1), {1}),
        ("a hole at the end", partial(file.punch, 1, 2), {2}),
        ("a hole at the start", partial(file.punch, 1), {0}),
        ("one page cut off", partial(file.truncate, 2), {2}),
        ("two pages cut off", partial(file.truncate, 1), {1, 2}),
    ):
        file.truncate(3)
        shared.fill(1)
        for first, memory in enumerate(private):
            memory.fill(2 + first)
        cut()
        with live.about(about):
            for value, first, memory in ((1, 0, shared), (2, 0, private[0]), (3, 1, private[1])):
                left = [page for page in range(memory.pages) if page + first not in gone]
                wrong = [memory.wrong(page * live.size, live.size, value) for page in left]
                live.expect("words of what is left that changed", [0 for _page in left], wrong)
    for memory in (shared, *private):
        memory.unmap()
    file.truncate(0)
    live.expect_pool(nr=8, free=8)


@TRUNCATE.case(
    "a file that is emptied while a page of it is touched has no page and no reservation left, whoever came first",
    f"{SHRINK}; mm/hugetlb.c hugetlb_fault(), hugetlb_no_page()",
    sizes=Sizes.BUDDY,
    pages=1,
)
def emptied_while_it_is_touched(live: Live) -> None:
    issue = MEMORY_ISSUES[Quirk.TRUNCATION_PASSES_OVER_A_FAULT]
    if issue.applies_to(live.kernel_version):
        # now and then the count stays below 0 when the file is gone
        raise CannotRun(
            f"{issue.quirk.value}, a known bug of this kernel, spoils the pool until the machine is rebooted"
        )
    file = new_memfd(live)
    for _round in range(_ROUNDS):
        file.truncate(1)
        memory = file.map(1)
        with at_once(live, file.actor, 0) as threads:
            threads.use(memory, Came.DONE | Came.SIGBUS)
            file.truncate(0)
        live.expect_pool(nr=1, free=1)
        live.expect_signal(signal.SIGBUS, memory.read)
        memory.unmap()
        live.expect_pool(nr=1, free=1)


@TRUNCATE.case("reservations beyond the new end go, those before it stay", SHRINK, pages=3)
def reservations_beyond_the_end(live: Live) -> None:
    for file in file_of_each_kind(live):
        memory = file.map(3)
        memory.touch(1)
        live.expect_pool(nr=3, free=2, resv=2)
        file.truncate(2)
        live.expect_pool(nr=3, free=2, resv=1)
        file.truncate(1)
        live.expect_pool(nr=3, free=3, resv=1)
        memory.touch(0)
        live.expect_pool(nr=3, free=2)
        file.truncate(0)
        live.expect_pool(nr=3, free=3)


@TRUNCATE.case("a file that grows again shows zeroes where it was cut off", SHRINK, pages=2)
def shrink_and_grow(live: Live) -> None:
    for file in file_of_each_kind(live):
        memory = file.map(2)
        memory.touch(0, 1)
        memory.touch(1, 2)
        file.truncate(1)
        file.truncate(2)
        live.expect_pool(nr=2, free=1)
        memory.expect_zero(1)
        live.expect_pool(nr=2, free=0)
        live.expect("the page that stayed", 1, memory.read(0))
        file.truncate(0)


@TRUNCATE.case(
    "every process that has the file mapped loses what is cut off",
    SHRINK,
    pages=2,
)
def truncated_for_all(live: Live) -> None:
    file = new_memfd(live)
    memory = file.map(2)
    memory.touch(1)
    child = memory.seen_by(memory.actor.fork())
    live.expect("what the child sees", 1, child.read(1))
    file.truncate(1)
    live.expect_pool(nr=2, free=2, resv=1)
    for mapping in (memory, child):
        live.expect_signal(signal.SIGBUS, mapping.read, 1)


@TRUNCATE.case("the private copies of a file beyond its new end get SIGBUS, too", SHRINK, pages=2)
def private_copies_beyond_the_end(live: Live) -> None:
    file = new_memfd(live)
    shared = file.map(1)
    shared.touch()
    private = file.map(1, shared=False)
    private.touch(value=2)
    live.expect_pool(nr=2, free=0)
    file.truncate(0)
    live.expect_signal(signal.SIGBUS, private.read)
    live.expect_signal(signal.SIGBUS, private.touch)
    private.unmap()
    live.expect_pool(nr=2, free=2)


@TRUNCATE.case(
    "a file of huge pages is a whole number of them long", "fs/hugetlbfs/inode.c hugetlbfs_setattr()", pages=1
)
def whole_pages(live: Live) -> None:
    for file in file_of_each_kind(live):
        file.map(1).touch()
        for length in (1, live.base_page, live.size - live.base_page, live.size + live.base_page):
            live.expect_errno(errno.EINVAL, file.actor.call, "ftruncate", file.descriptor, length)
            live.expect("the size of the file", live.size, file.size)
            live.expect_pool(nr=1, free=0)
        file.truncate(0)


@TRUNCATE.case("a longer file takes and reserves no page", SHRINK, pages=1)
def grown_file(live: Live) -> None:
    for file in file_of_each_kind(live):
        file.truncate(1000)
        live.expect("the size of the file", 1000 * live.size, file.size)
        live.expect_pool(nr=1, free=1)


@TRUNCATE.case(
    "pages far behind the start of a file are truncated, and no others, nor private copies of others", SHRINK
)
def sparse_file(live: Live) -> None:
    # at 4 GiB offsets were cut off once, and those of base and of huge pages confused (856fc2950555)
    cut = max(1, 4 * GIB // live.size)
    confused = min(4 * GIB // (live.size // live.base_page) // live.size, cut - 1)
    near, copied = {0, confused, cut - 1}, {0, confused}
    used = len(near) + len(copied)
    live.reserve(used + 1)
    for file in file_of_each_kind(live):
        file.truncate(cut + 1)
        kept = [file.map(1, first=page) for page in sorted(near)]
        # whose page of the file is unmapped by mistake finds it again, but not a copy
        kept += [file.map(1, first=page, shared=False) for page in sorted(copied)]
        distant = file.map(1, first=cut)
        for memory in (*kept, distant):
            memory.fill(2)
        live.expect_pool(nr=used + 1, free=0)
        file.truncate(cut)
        live.expect_pool(nr=used + 1, free=1)
        live.expect_signal(signal.SIGBUS, distant.read)
        live.expect_signal(signal.SIGBUS, distant.touch)
        for memory in kept:
            memory.expect_filled(2)
            memory.unmap()
        file.truncate(0)
        live.expect_pool(nr=used + 1, free=used + 1)


@TRUNCATE.case("what is beyond the new end gets SIGBUS, also where others have every page", SHRINK, pages=1)
def access_beyond_the_end_without_pages(live: Live) -> None:
    for file in file_of_each_kind(live):
        memory = file.map(1)
        memory.touch()
        file.truncate(0)
        owner = live.map(1)
        owner.fill(7)
        live.expect_pool(nr=1, free=0)
        live.expect_signal(signal.SIGBUS, memory.read)
        live.expect_signal(signal.SIGBUS, memory.touch)
        live.expect_pool(nr=1, free=0)
        owner.expect_filled(7)
        owner.unmap()
        live.expect_pool(nr=1, free=1)


# --- advice ----------------------------------------------------------------------------------------------------------


@TRUNCATE.case("advice on a file of huge pages takes no page and no reservation", ADVICE, pages=2)
def advice_on_a_file(live: Live) -> None:
    for file in file_of_each_kind(live):
        memory = file.map(2)
        memory.touch(0, 7)
        for advice in (os.POSIX_FADV_WILLNEED, live.host.uapi.posix_fadv_dontneed, os.POSIX_FADV_SEQUENTIAL):
            file.actor.call("fadvise64", file.descriptor, 0, 2 * live.size, advice)
            live.expect_pool(nr=2, free=1, resv=1)
        file.actor.call("readahead", file.descriptor, 0, 2 * live.size)
        live.expect_pool(nr=2, free=1, resv=1)
        memory.advise(mmap.MADV_WILLNEED)
        live.expect_pool(nr=2, free=1, resv=1)
        live.expect("the page", 7, memory.read(0))
        memory.touch(1)
        live.expect_pool(nr=2, free=0)
        memory.unmap()
        file.truncate(0)
        live.expect_pool(nr=2, free=2)


@TRUNCATE.case("advice on a file that nobody has mapped takes nothing", ADVICE, pages=1)
def advice_on_an_unmapped_file(live: Live) -> None:
    for file in file_of_each_kind(live):
        file.truncate(1)
        file.actor.call("fadvise64", file.descriptor, 0, live.size, os.POSIX_FADV_WILLNEED)
        file.actor.call("readahead", file.descriptor, 0, live.size)
        live.expect_pool(nr=1, free=1)


@TRUNCATE.case("advice on private huge pages takes no page and no reservation", ADVICE, pages=2)
def advice_on_private_pages(live: Live) -> None:
    memory = live.map(2)
    memory.touch(0)
    memory.advise(mmap.MADV_WILLNEED)
    live.expect_pool(nr=2, free=1, resv=1)
    memory.unmap()
    live.expect_pool(nr=2, free=2)


class Truncate(LiveTest):
    """Cases on files of huge pages that shrink, for every page size of the machine.

    :avocado: enable
    """

    def test_truncate(self) -> None:
        """Every case for every page size."""
        self.run_area(TRUNCATE)
