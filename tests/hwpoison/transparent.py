"""Transparent huge pages, and files, with memory that is said to be broken: the base page goes, the rest stays."""

import errno
import mmap
import os
import signal
from functools import partial
from itertools import product

from hugepage_qa.cases.broken_memory import (
    break_in_use,
    break_page,
    expect_broken,
    expect_flag,
    mended_at_the_end,
    need_memory_failure,
    out_of_use,
    told_of,
)
from hugepage_qa.cases.broken_while_held import (
    break_while_held,
    need_to_get_it_back,
    tmpfs_page_broken_while_held,
)
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.file_transfers import READING_CALLS, expect_read_by
from hugepage_qa.cases.frames import SWAP_CACHE, kpageflags
from hugepage_qa.cases.hugetlb_files import HugeFile, open_file
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import FRAME, WORD, Memory
from hugepage_qa.cases.memory_policy import keep_to_one_cpu
from hugepage_qa.cases.pinned_pages import pipe_with, word_from
from hugepage_qa.cases.swapped import need_swap, page_all_out
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import advised, huge_pages, set_policy, unadvised_base_pages
from hugepage_qa.cases.thp_shared_memory import (
    expect_shared,
    let_only_pmd_inherit,
    map_file,
    map_start,
    nameless_file,
    shared_huge_pages,
)
from hugepage_qa.kernel.uapi import FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, MADV_HWPOISON, MADV_SOFT_OFFLINE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import MIB
from hugepage_qa.version import KernelVersion

HWPOISON = Area("hwpoison/transparent", sizes=Sizes.ONCE, uncleared=True)

CACHE = "madvise(2) MADV_HWPOISON; mm/memory-failure.c"
_NEW_VALUE = 77
#: bytes of huge pages, of which the first one is mostly the one that was given back last
_MANY = 256 * MIB
#: what gives pages to a pipe was EIO for all of a huge page with a broken one (mm/shmem.c shmem_file_splice_read())
_SPLICED_NOTHING, _SPLICED_THE_REST = KernelVersion(6, 5), KernelVersion(6, 13)
SPLIT = "mm/memory-failure.c try_to_split_thp_page()"


@HWPOISON.case(
    "a base page of a huge page that will break is replaced, the huge page is split, and nobody loses a word",
    f"madvise(2) MADV_SOFT_OFFLINE; {SPLIT}",
)
def soft_offline_of_a_part(live: Live) -> None:
    memory = huge_pages(live, 2)
    child = memory.fork()
    before, half = out_of_use(live), memory.size // 2
    old = memory.frame(half)
    break_page(live, memory, half, MADV_SOFT_OFFLINE)
    live.expect("base pages out of use", 1, out_of_use(live) - before)
    for each in (memory, child):
        each.expect_filled()
        live.expect("it still has the frame that will break", False, each.frame(half) == old)
    live.expect("AnonHugePages of the page behind it", memory.size, memory.smaps(1).anon_huge_pages)


@HWPOISON.case(
    "what will break stays in use while somebody holds it, and in huge pages any page of them: EBUSY, and all is as it"
    " was; it is replaced when it was let go",
    f"madvise(2) MADV_SOFT_OFFLINE; {SPLIT}, soft_offline_in_use_page()",
)
def soft_offline_of_what_is_held(live: Live) -> None:
    need_memory_failure(live)
    live.set_knob_if_there("proc/sys/vm/enable_soft_offline", "1")
    let_only_pmd_inherit(live)
    last = pmd_size(live) // live.base_page - 1
    for make, breaks in ((huge_pages, (0, last)), (shared_huge_pages, (0, last)), (unadvised_base_pages, (last,))):
        memory = make(live)
        before = out_of_use(live)
        held = Memory(live, memory.actor, memory.address + last * live.base_page, 1, live.base_page)
        reader = pipe_with(live, held)
        with live.about(make.__name__):
            for page in breaks:
                address = memory.address + page * live.base_page
                live.expect_errno(errno.EBUSY, memory.actor.call, "madvise", address, live.base_page, MADV_SOFT_OFFLINE)
            live.expect("base pages out of use", 0, out_of_use(live) - before)
            memory.expect_filled()
            word = word_from(live, memory.actor, reader)
            live.expect("the word that is in the pipe", 1 + last * live.base_page, word)
            for page in breaks:
                break_page(live, memory, page * live.base_page, MADV_SOFT_OFFLINE)
            live.expect("base pages out of use when it was let go", len(breaks), out_of_use(live) - before)
            memory.expect_filled()


@HWPOISON.case(
    "a broken base page of a huge page ends those who touch it, and all other memory holds what it held",
    f"madvise(2) MADV_HWPOISON; {SPLIT}, memory_failure()",
)
def a_broken_part(live: Live) -> None:
    broken = pmd_size(live) // 2
    memory, frame, before = break_in_use(
        live, partial(huge_pages, live, 2), broken, partial(out_of_use, live), partial(_break_amid, live)
    )
    live.expect("base pages out of use", 1, out_of_use(live) - before)
    expect_broken(live, memory, broken, live.base_page)
    expect_flag(live, memory, frame)
    behind = broken + live.base_page
    wrong = memory.wrong(0, broken) + memory.wrong(behind, memory.length - behind)
    live.expect("words beside the broken page that changed", 0, wrong)
    live.expect("AnonHugePages of the page behind it", memory.size, memory.smaps(1).anon_huge_pages)


def _break_amid(live: Live, memory: Memory) -> None:
    break_page(live, memory, memory.size // 2, MADV_HWPOISON)


@HWPOISON.case(
    "a base page that broke while somebody held the huge page that it is of, so that this could not be split, is in no"
    " new huge page when it was given back",
    f"{SPLIT}, memory_failure(); mm/page_alloc.c __free_pages_prepare()",
)
def a_broken_part_of_what_was_held(live: Live) -> None:
    need_to_get_it_back(live)
    set_policy(live, "madvise")
    actor = live.actor()
    # what is given back is on the lists of a CPU, and of its node, from where it comes the next time
    keep_to_one_cpu(live, actor)
    memory = advised(live, actor=actor)
    memory.fill()
    if memory.smaps().anon_huge_pages != memory.size:
        raise CannotRun("no huge page is free on the node of its processor")
    broken, frame, reader = break_while_held(live, memory)
    # nobody else is to have it, whether it was found or is free elsewhere; a kernel that keeps it apart may refuse
    with mended_at_the_end(live, frame, actor.end, may_be_refused=True):
        memory.unmap()
        live.expect("the word that is in the pipe", 1, word_from(live, actor, reader))
        others = advised(live, max(1, _MANY // memory.size), actor=actor)
        actor.fill(others.address, others.length, others.size, 1)
        frames = {entry & FRAME for entry in others.pagemap(others.at(page) + broken for page in range(others.pages))}
    known = {Quirk.BROKEN_PART_HANDED_OUT_AGAIN: True}
    live.expect("a new huge page has the page that broke", False, frame in frames, known)


@HWPOISON.case(
    "a broken base page of a file of a tmpfs, of a huge page or not, is EIO for who reads or writes it, SIGBUS for who"
    " maps it, before it broke or after; the rest can be read and written and holds what it held, and all of the file"
    " can when that page was punched out",
    "read(2), write(2) EIO; mm/shmem.c shmem_write_begin(), shmem_file_read_iter(), shmem_fault(), since a7605426666",
    since="5.16",
)
def page_of_a_tmpfs(live: Live) -> None:
    let_only_pmd_inherit(live)
    base, uapi = live.base_page, live.host.uapi
    files = list[HugeFile]()

    def make(huge: str) -> Memory:
        actor = live.actor()
        # one with a name would keep a page that is to be mended
        file = HugeFile(live, actor, nameless_file(live, actor, huge))
        files.append(file)
        memory = map_start(live, actor, file.descriptor, 2)
        expect_shared(live, memory, huge == "always", f"huge={huge}")
        return memory

    broken = pmd_size(live) // 2
    for huge in ("never", "always"):
        memory, _frame, file = break_in_use(
            live, partial(make, huge), broken, lambda: files[-1], partial(_break_amid, live)
        )
        read, write = (partial(file.actor.call, name, file.descriptor) for name in ("pread64", "pwrite64"))
        with live.about(f"huge={huge}"):
            for mapped in (memory, map_file(live, file.actor, file.descriptor, 2)):
                expect_broken(live, mapped, broken, base)
            for place in (broken, broken + base - WORD):
                live.expect_errno(errno.EIO, read, bytes(WORD), WORD, place)
                live.expect_errno(errno.EIO, write, bytes(WORD), WORD, place)
            for place in (broken - WORD, broken + base):
                live.expect("bytes written beside it", WORD, write(uapi.pack("Q", 1 + place), WORD, place))
            # not through a request: two base pages of 64K are more than one takes
            buffer = file.actor.mmap(2 * base, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            live.expect("bytes read up to it", base, read(buffer, 2 * base, broken - base))
            wrong = memory.wrong(0, broken) + memory.wrong(broken + base, memory.length - broken - base)
            live.expect("words beside the broken page that changed", 0, wrong)
            mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
            file.actor.call("fallocate", file.descriptor, mode, broken, base)
            live.expect("bytes read when it was punched out", base, read(buffer, base, broken))
            live.expect("words of the hole that are not zero", 0, file.actor.nonzero(buffer, base))
            live.expect("bytes written when it was punched out", WORD, write(uapi.pack("Q", 1), WORD, broken))
        file.actor.end()


@HWPOISON.case(
    "a huge page of a tmpfs that somebody held when a base page of it broke, so that it could not be split, is mapped"
    " in base pages from then on: the broken one is SIGBUS for all, and the others hold what they held",
    f"{SPLIT}; mm/memory.c do_set_pmd(), since eac96c3efdb5",
    since="5.16",
)
def broken_part_of_a_held_tmpfs_page(live: Live) -> None:
    with tmpfs_page_broken_while_held(live) as held:
        file, memory, broken = held.file, held.memory, held.place
        behind = broken + live.base_page
        for reached in (map_file(live, file.actor, file.descriptor, 1), memory.fork()):
            live.expect("words that changed", 0, reached.wrong(0, broken) + reached.wrong(behind, memory.size - behind))
            live.expect_signal(signal.SIGBUS, reached.actor.read, reached.address + broken)
            live.expect("ShmemPmdMapped", 0, reached.smaps().shmem_pmd_mapped)
            reached.unmap()


@HWPOISON.case(
    "what reads a huge page of a tmpfs that somebody held when a base page of it broke, read(2), splice(2), sendfile(2)"
    " or copy_file_range(2), is EIO where it begins in that page, ends before it where it begins in front of it, and"
    " gives what all others held",
    "read(2) EIO; splice(2); sendfile(2); copy_file_range(2); mm/shmem.c shmem_file_read_iter(),"
    " shmem_file_splice_read(), since a7605426666",
    since="5.16",
)
def reads_of_a_held_tmpfs_page(live: Live) -> None:
    base = live.base_page
    with tmpfs_page_broken_while_held(live) as held:
        copy = open_file(live, f"{held.point}/copy", held.file.actor)
        for (first, length, expected), call in product(
            (
                (-3 * base, 8 * base, 3 * base),
                (-WORD, 2 * WORD, WORD),
                (0, 2 * base, -errno.EIO),
                (base - WORD, 2 * WORD, -errno.EIO),
                (base, 5 * base, 5 * base),
            ),
            READING_CALLS,
        ):
            is_refused = call != "pread64" and _SPLICED_NOTHING <= live.kernel_version < _SPLICED_THE_REST
            with live.about(f"{call} of {length} bytes, {first} from the start of the broken page on"):
                returned = -errno.EIO if is_refused else expected
                expect_read_by(live, call, held.file, copy, held.place + first, length, returned)


@HWPOISON.case(
    "a broken page of a file that is as on the disk is read from there again, and nobody loses a word or is ended",
    f"{CACHE} me_pagecache_clean()",
)
def clean_page_of_a_file(live: Live) -> None:
    memory, file, frame = _broken_page_of_a_file(live)
    expect_flag(live, memory, frame)
    memory.expect_filled()
    live.expect("it still has the frame that is broken", False, frame in memory.frames())
    memory.actor.call("fsync", file)


@HWPOISON.case(
    "a broken page of a file that was written since ends who touches it, and fsync(2) tells that it is lost",
    f"{CACHE} me_pagecache_dirty()",
)
def written_page_of_a_file(live: Live) -> None:
    memory, file, frame = _broken_page_of_a_file(live, _NEW_VALUE)
    expect_flag(live, memory, frame)
    expect_broken(live, memory, 0, live.base_page)
    live.expect(
        "words beside the broken page that changed", 0, memory.wrong(live.base_page, live.base_page, _NEW_VALUE)
    )
    live.expect_errno(errno.EIO, memory.actor.call, "fsync", file)


@HWPOISON.case(
    "a base page that broke when it was back from swap, where its place is still, is read from there again as long as"
    " nobody has written it; written since, it ends who touches it, each time; all beside it holds what it held",
    f"{CACHE} me_swapcache_clean(), me_swapcache_dirty(); mm/memory.c do_swap_page()",
)
def back_from_swap(live: Live) -> None:
    need_memory_failure(live)
    need_swap(live, 2 * pmd_size(live))
    live.set_knob("proc/sys/vm/page-cluster", "0")
    base, broken = live.base_page, pmd_size(live) // 2
    for is_written in (False, True):
        memory, frame, before = break_in_use(
            live, partial(_in_swap_as_well, live, broken, is_written), broken, partial(out_of_use, live)
        )
        with live.about(f"written since {is_written}"):
            live.expect("base pages out of use", 1, out_of_use(live) - before)
            expect_flag(live, memory, frame)
            if is_written:
                for _time in range(2):
                    expect_broken(live, memory, broken, base)
            else:
                live.expect("words of it that changed", 0, memory.wrong(broken, base))
                live.expect("it still has the frame that is broken", False, memory.frame(broken) == frame)
            wrong = memory.wrong(0, broken) + memory.wrong(broken + base, memory.length - broken - base)
            live.expect("words beside the broken page that changed", 0, wrong)
        memory.actor.end()


def _in_swap_as_well(live: Live, place: int, is_written: bool) -> Memory:
    """Return memory in swap but for one base page, which is back, and whose place there is its own still.

    Raises CannotRun where swap is so full that it gives that back.
    """
    memory = unadvised_base_pages(live)
    page_all_out(live, memory)
    live.expect("what came back", 1 + place, memory.actor.read(memory.address + place))
    if is_written:
        memory.actor.write(memory.address + place, _NEW_VALUE)
    (flags,) = kpageflags(live, memory.actor, [memory.frame(place)])
    if not flags & SWAP_CACHE:
        raise CannotRun("what came back from swap has no place there any more")
    return memory


def _broken_page_of_a_file(live: Live, value: int | None = None) -> tuple[Memory, int, int]:
    """Return two base pages of a file on a disk, its descriptor, and the frame of the first one, which broke.

    They were filled and are as on the disk, but for a ``value`` that they were filled with since. Where compaction had
    moved the page before it broke, and the log tells of another frame, another one is broken.
    """
    made: list[Memory] = []

    def act() -> tuple[Memory, int, int]:
        for earlier in made:
            earlier.actor.end()
        memory, file = _page_of_a_file(live)
        made[:] = [memory]
        memory.actor.call("fsync", file)
        if value is not None:
            memory.fill(value)
        frame = memory.frame()
        live.host.skip_kernel_log()
        break_page(live, memory, 0, MADV_HWPOISON)
        return memory, file, frame

    return live.host.last_attempt(act, lambda seen: bool(told_of(live, seen[2])))


def _page_of_a_file(live: Live) -> tuple[Memory, int]:
    """Return two base pages of a file on a disk that are filled, and its descriptor."""
    actor = live.actor()
    file = live.open(actor, live.host.disk("ext4"), live.host.uapi.o_tmpfile | os.O_RDWR)
    actor.call("ftruncate", file, 2 * live.base_page)
    address = actor.mmap(2 * live.base_page, READ_WRITE, mmap.MAP_SHARED, file)
    memory = Memory(live, actor, address, 2, live.base_page)
    memory.fill()
    return memory, file


class HwpoisonTransparent(LiveTest):
    def test_transparent(self) -> None:
        self.run_area(HWPOISON)
