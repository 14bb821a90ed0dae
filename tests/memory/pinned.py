"""Pages that the kernel holds for a process, which forks meanwhile: whose page it is that is read and written."""

import errno
import mmap
import os
from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.pinned_pages import Pin, open_for_direct_io, pinned, pipe_with, word_from
from hugepage_qa.cases.swapped import need_swap, swap_out
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, mapped_in_parts, smaller_pages
from hugepage_qa.cases.thp_shared_memory import expect_huge_page_for_words, let_only_pmd_inherit, mount_tmpfs
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

PINNED = Area("memory/pinned")
#: what O_DIRECT carries: a multiple of the blocks of every device
BLOCK = 65536
OLD, NEW, NEWER = 7, 8, 9
SHOWN_LATER = {Quirk.PIPE_SHOWS_LATER_WRITES: NEW}

COPY = "fork(2); mm/hugetlb.c hugetlb_wp(), copy_hugetlb_page_range()"
COPY_OF_THP = "fork(2); mm/huge_memory.c do_huge_pmd_wp_page(), copy_huge_pmd()"
AT_FORK = "mm/hugetlb.c copy_hugetlb_page_range(), hugetlb_try_dup_anon_rmap() (4eae4efa2c29)"


# --- held by a pipe --------------------------------------------------------------------------------------------------


@PINNED.case("a page in a pipe stays as it was at the fork: who writes after that gets a copy", COPY, pages=2)
def parent_writes_what_a_pipe_holds(live: Live) -> None:
    memory, child = _written_while_in_a_pipe(live, by_child=False)
    child.actor.end()
    live.expect_pool(nr=2, free=1)
    live.expect("what the parent reads", NEW, memory.read())


@PINNED.case("a page that a child gave to a pipe does not show what its parent writes after that", COPY, pages=2)
def child_gives_to_a_pipe(live: Live) -> None:
    _written_while_in_a_pipe(live, by_child=True)


@PINNED.case(
    "a huge page that a child gave to a pipe, and unmapped, does not show what its parent writes after that",
    f"{COPY_OF_THP} (CVE-2020-29374)",
    sizes=Sizes.ONCE,
)
def child_leaves_a_thp_to_a_pipe(live: Live) -> None:
    for unmaps in (False, True):
        memory = huge_pages(live, 1)
        child = memory.fork()
        child.expect_huge(about="of the child")
        reader = pipe_with(live, child)
        if unmaps:
            child.unmap()
        memory.fill(NEW)
        known = SHOWN_LATER if unmaps else None
        live.expect("what comes out of the pipe", 1, word_from(live, child.actor, reader), known)
        memory.expect_filled(NEW)
        if not unmaps:
            child.expect_filled()


def _written_while_in_a_pipe(live: Live, *, by_child: bool) -> tuple[Memory, Memory]:
    """Return the memory of parent and child: a page was in a pipe when the parent wrote to it."""
    memory = live.map(1)
    memory.touch(value=OLD)
    reader = None if by_child else pipe_with(live, memory)
    child = forked(live, memory)
    giver = memory if reader else child
    reader = reader or pipe_with(live, child)
    memory.touch(value=NEW)
    live.expect("what comes out of the pipe", OLD, word_from(live, giver.actor, reader))
    live.expect("what parent and child read", (NEW, OLD), (memory.read(), child.read()))
    live.expect_pool(nr=2, free=0)
    return memory, child


# --- pinned for as long as it takes ----------------------------------------------------------------------------------


@PINNED.case(
    "a page that is pinned stays with the parent: its child has a copy from the fork on",
    f"fork(2); {AT_FORK}",
    since="5.12",
    pages=2,
)
def pinned_page_is_copied_at_fork(live: Live) -> None:
    memory = live.map(1)
    memory.fill(OLD)
    with pinned(live, memory):
        frames = memory.frames()
        child = forked(live, memory)
        live.expect_pool(nr=2, free=0)
        memory.touch(value=NEW)
        live.expect("frames of the page that is pinned", frames, memory.frames())
        child.expect_filled(OLD)
        live.expect("frames that parent and child both have", set(), frames & child.frames())
    live.expect("what the parent wrote", NEW, memory.read())


@PINNED.case(
    "a fork that finds no page for the copy of a pinned one fails with ENOMEM, and takes nothing",
    f"fork(2) ENOMEM; {AT_FORK}",
    since="5.12",
    pages=1,
)
def fork_without_a_page_for_the_copy(live: Live) -> None:
    memory = live.map(1)
    memory.fill(OLD)
    with pinned(live, memory):
        live.expect_errno(errno.ENOMEM, forked, live, memory)
        live.expect_pool(nr=1, free=0)
        memory.expect_filled(OLD)


@PINNED.case(
    "pages of a file can be pinned, private copies of it too, and are the same for parent and child if they are shared",
    "mm/gup.c pin_user_pages(), FOLL_LONGTERM",
    since="5.12",
    pages=3,
)
def pinned_pages_of_a_file(live: Live) -> None:
    file = new_memfd(live)
    shared, private = file.map(1), file.map(1, shared=False)
    for memory in (shared, private):
        memory.touch(value=OLD)
    with pinned(live, shared), pinned(live, private):
        frames = shared.frames(), private.frames()
        child = forked(live, private).actor
        shared.touch(value=NEW)
        private.touch(value=NEW)
        live.expect("frames of the pages that are pinned", frames, (shared.frames(), private.frames()))
        found = shared.seen_by(child).read(), private.seen_by(child).read()
        live.expect("what the child reads of the file and of the copy", (NEW, OLD), found)
        live.expect_pool(nr=3, free=0)


@PINNED.case(
    "of huge pages, of smaller ones and of base pages that which is pinned stays with the parent, which keeps writing"
    " to it, wherever it is: mapped whole, or in parts since before it was pinned or since then",
    f"{COPY_OF_THP}; mm/memory.c copy_present_ptes(); mm/huge_memory.c __split_huge_pmd_locked()",
    since="5.12",
    sizes=Sizes.ONCE,
)
def pinned_thp_is_not_shared(live: Live) -> None:
    size, base = pmd_size(live), live.base_page
    for make, place, divided in product(
        (huge_pages, smaller_pages, base_pages), (0, size // 2, size - base), ("never", "before", "afterwards")
    ):
        memory = make(live)
        # a mapping that ends amid a huge page maps it in parts; nothing else is done to these
        unmap = partial(memory.actor.call, "munmap", memory.address + base, base)
        kept = [(0, size)] if divided == "never" else [(0, base), (2 * base, size - 2 * base)]
        if divided == "before":
            unmap()
        about = f"{make.__name__}, pinned at {place}, divided {divided}"
        with live.about(about), pinned(live, Memory(live, memory.actor, memory.address + place, 1, base)):
            if divided == "afterwards":
                unmap()
            frame = memory.frame(place)
            child = memory.fork()
            for start, length in kept:
                memory.fill_part(start, length, NEW)
            live.expect("frame of the base page that is pinned", frame, memory.frame(place))
            live.expect("words that changed", 0, sum(memory.wrong(*part, NEW) for part in kept))
            live.expect("words of the child that changed", 0, sum(child.wrong(*part) for part in kept))
        memory.actor.end()


@PINNED.case(
    "through a pin is read and written what its owner has, and not what a child has that was forked after that",
    f"io_uring_register(2) IORING_OP_READ_FIXED; {AT_FORK}",
    since="5.12",
    pages=2,
)
def read_through_a_pin(live: Live) -> None:
    memory = live.map(1)
    memory.touch(value=OLD)
    with pinned(live, memory) as pin:
        child = forked(live, memory)
        memory.touch(value=NEW)
        live.expect("what is read through the pin", NEW, pin.read())
        pin.write(NEWER)
        live.expect("what parent and child read", (NEWER, OLD), (memory.read(), child.read()))


@PINNED.case(
    "who pins a page after the fork, parent or child, gets one of its own, and neither sees what the other writes",
    "io_uring_register(2) IORING_REGISTER_BUFFERS; mm/internal.h gup_must_unshare(); mm/hugetlb.c hugetlb_wp()",
    since="5.19",
    pages=2,
)
def pinned_after_the_fork(live: Live) -> None:
    for by_child in (False, True):
        memory = live.map(1)
        memory.touch(value=OLD)
        child = forked(live, memory)
        _expect_apart(live, *((child, memory) if by_child else (memory, child)))
        live.expect_pool(nr=2, free=0)
        memory.actor.end()
        live.expect_pool(nr=2, free=2)


@PINNED.case(
    "who pins base pages, a huge page or a part of one after the fork, parent or child, gets pages of its own",
    f"io_uring_register(2) IORING_REGISTER_BUFFERS; mm/internal.h gup_must_unshare(); {COPY_OF_THP}",
    since="5.19",
    sizes=Sizes.ONCE,
)
def anonymous_memory_pinned_after_the_fork(live: Live) -> None:
    for make in (base_pages, huge_pages, _part_of_a_huge_page):
        for by_child in (False, True):
            memory = make(live)
            memory.fill()
            memory.touch(value=OLD)
            child = memory.fork()
            _expect_apart(live, *((child, memory) if by_child else (memory, child)))


@PINNED.case(
    "base pages, huge pages in parts and memory in swap that one of parent and child gave to a pipe, and unmapped, do"
    " not show what the other one writes",
    f"{COPY_OF_THP}; mm/memory.c do_wp_page(), do_swap_page() (CVE-2020-29374)",
    sizes=Sizes.ONCE,
    since="5.12",
)
def anonymous_memory_left_to_a_pipe(live: Live) -> None:
    need_swap(live, 2 * pmd_size(live))
    whole = base_pages, huge_pages, mapped_in_parts, smaller_pages
    makers: list[Callable[[Live], Memory]]
    makers = [base_pages, mapped_in_parts, _part_of_a_huge_page, _moved_in_part, _shared_in_part]
    # what is known of a kernel ends the case: it comes last
    may_be_known: list[Callable[[Live], Memory]] = [huge_pages, *(partial(_swapped, one) for one in whole)]
    for make in (*makers, *may_be_known):
        known = SHOWN_LATER if make in may_be_known else None
        for by_parent in (False, True):
            memory = make(live)
            child = memory.fork()
            giver, other = (memory, child) if by_parent else (child, memory)
            reader = pipe_with(live, giver)
            old = giver.read()
            giver.unmap()
            other.touch(value=NEW)
            live.expect("what comes out of the pipe", old, word_from(live, giver.actor, reader), known)
            live.expect("what the other one reads", NEW, other.read())
            memory.actor.end()


def _part_of_a_huge_page(live: Live) -> Memory:
    """Return the second half of a huge page, of which the first is gone."""
    memory = _second_half(live)
    memory.actor.call("munmap", memory.address - memory.size, memory.size)
    return memory


def _moved_in_part(live: Live) -> Memory:
    """Return the second half of a huge page, which has moved away from the first."""
    memory = _second_half(live)
    return memory.moved_to(room_for(memory.actor, 1, memory.size))


def _shared_in_part(live: Live) -> Memory:
    """Return the second half of a huge page, of which children do not get the first."""
    memory = _second_half(live)
    memory.actor.call("madvise", memory.address - memory.size, memory.size, mmap.MADV_DONTFORK)
    return memory


def _second_half(live: Live) -> Memory:
    memory = huge_pages(live)
    half = memory.size // 2
    return Memory(live, memory.actor, memory.address + half, 1, half)


def _swapped(make: Callable[[Live], Memory], live: Live) -> Memory:
    memory = make(live)
    swap_out(live, memory, memory.length)
    return memory


def _expect_apart(live: Live, owner: Memory, other: Memory) -> None:
    """Expect that what ``owner`` pins is its own: neither sees what the other one writes, through the pin or not."""
    with pinned(live, owner) as pin:
        other.touch(value=NEW)
        live.expect("what is read through the pin", OLD, pin.read())
        pin.write(NEWER)
        live.expect("what who has pinned it reads, and the other one", (NEWER, NEW), (owner.read(), other.read()))


# --- files -----------------------------------------------------------------------------------------------------------


@PINNED.case(
    "shared pages of a memfd and of a tmpfs can be pinned for long, huge ones too, and what is written through the pin"
    " is in the file; of a private mapping it is not",
    "mm/gup.c FOLL_LONGTERM, writable_file_mapping_allowed(); mm/shmem.c",
    since="5.12",
    sizes=Sizes.ONCE,
)
def pages_of_a_tmpfs(live: Live) -> None:
    let_only_pmd_inherit(live)
    actor = live.actor()
    point = mount_tmpfs(live, "always")
    for huge, file in ((False, actor.call("memfd_create", "pinned", 0)), (True, live.open(actor, f"{point}/file"))):
        with_blocks(live, pmd_size(live), 1)
        actor.call("ftruncate", file, pmd_size(live))
        actor.call("pwrite64", file, live.host.uapi.pack("Q", OLD), WORD, 0)
        if huge:
            expect_huge_page_for_words(live, actor, file)
        _expect_pinned(live, actor, file, mmap.MAP_PRIVATE, OLD)
        _expect_pinned(live, actor, file, mmap.MAP_SHARED, NEWER)


@PINNED.case(
    "shared pages of a file on a disk cannot be pinned for long to be written, whether they are mapped to be written"
    " already or not yet, private copies of them can",
    "mm/gup.c FOLL_LONGTERM, writable_file_mapping_allowed(), gup_fast_folio_allowed() (a6e79df92e4a);"
    " io_uring/rsrc.c (edd478269640)",
    since="6.5",
    sizes=Sizes.ONCE,
)
def pages_of_a_disk(live: Live) -> None:
    actor = live.actor()
    file = live.open(actor, f"{live.host.disk('ext4')}", live.host.uapi.o_tmpfile | os.O_RDWR)
    actor.call("ftruncate", file, live.base_page)
    actor.call("pwrite64", file, live.host.uapi.pack("Q", OLD), WORD, 0)
    _expect_pinned(live, actor, file, mmap.MAP_PRIVATE, OLD)
    address = actor.mmap(live.base_page, READ_WRITE, mmap.MAP_SHARED, file)
    memory = Memory(live, actor, address, 1, live.base_page)
    pin = Pin(live, memory)
    live.expect_errno(errno.EFAULT, pin.hold)
    # a page that is mapped to be written is pinned without a look at its mapping
    memory.touch(value=NEW)
    with live.about("mapped to be written"):
        live.expect_errno(errno.EFAULT, pin.hold)


def _expect_pinned(live: Live, actor: Actor, file: int, kind: int, expected: int) -> None:
    """Expect that a mapping can be pinned and written through the pin, and what the file holds then."""
    memory = Memory(live, actor, actor.mmap(live.base_page, READ_WRITE, kind, file), 1, live.base_page)
    with pinned(live, memory) as pin:
        live.expect("what is read through the pin", OLD, pin.read())
        pin.write(NEWER)
        live.expect("what is read in memory", NEWER, memory.read())
        _count, (word,) = actor.call_with_buffers("pread64", file, bytes(WORD), WORD, 0)
        live.expect("what the file holds", expected, live.host.uapi.unpack("Q", word)[0])


# --- read into while others have it, too -----------------------------------------------------------------------------


@PINNED.case("O_DIRECT into a page that a child has, too, is seen by the parent alone", COPY, pages=2)
def direct_read_after_a_fork(live: Live) -> None:
    memory = live.map(1)
    memory.fill(OLD)
    file = open_for_direct_io(live, memory.actor)
    memory.fill_part(0, BLOCK, NEW)
    live.expect("bytes written", BLOCK, memory.actor.call("pwrite64", file, memory.address, BLOCK, 0))
    memory.fill(OLD)
    child = forked(live, memory)
    live.expect("bytes read", BLOCK, memory.actor.call("pread64", file, memory.address, BLOCK, 0))
    live.expect("words that are not of the file", 0, memory.wrong(0, BLOCK, NEW))
    child.expect_filled(OLD)
    live.expect_pool(nr=2, free=0)


class Pinned(LiveTest):
    def test_pinned(self) -> None:
        self.run_area(PINNED)
