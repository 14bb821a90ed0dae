"""Splits that split_huge_pages makes: of zeroes, of pages in pieces elsewhere, of shared ones, and of all there are."""

import errno
import mmap
from functools import partial
from itertools import count, product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change, read_counters
from hugepage_qa.cases.debugfs import expect_split, open_debugfs, write_debugfs
from hugepage_qa.cases.folio_layout import expect_order
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act, let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.pinned_pages import pinned, pipe_with, word_from
from hugepage_qa.cases.thp_memory import mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import (
    advised,
    expect_all_huge,
    fill_in_huge_pages,
    huge_pages,
    mapped_in_parts,
    set_policy,
)
from hugepage_qa.cases.thp_shared_memory import (
    expect_shared,
    filled_file,
    let_only_pmd_inherit,
    map_file,
    map_start,
    mount_tmpfs,
    shared_huge_pages,
)
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_NOHUGEPAGE, MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

SPLITS = Area("thp/splits", sizes=Sizes.ONCE)

IN_A_PROCESS = "mm/huge_memory.c split_huge_pages_pid()"
IN_A_FILE = "mm/huge_memory.c split_huge_pages_in_file()"
SPLIT = "split_huge_pages"
_PIECES = 4


@SPLITS.case(
    "a huge page that is split gives its base pages of zeroes back, and keeps the others with what they hold",
    f"{IN_A_PROCESS}; mm/migrate.c try_to_map_unused_to_zeropage()",
    since="6.12",
)
def zeroes(live: Live) -> None:
    let_rest(live)
    set_policy(live, "madvise")
    with_blocks(live, pmd_size(live), 1)
    memory = advised(live)
    kept = memory.size // 4
    memory.fill_part(0, kept)
    # the last word of a base page alone is not zero
    last = memory.address + memory.length - WORD
    memory.actor.write(last, 1)
    expect_all_huge(live, memory, "before")
    expect_split(live, f"{memory.actor.pid},{memory.address:#x},{memory.at(1):#x}", 1)
    live.expect("Rss", kept + live.base_page, memory.smaps().rss)
    live.expect("words that changed", 0, memory.wrong(0, kept))
    live.expect("the last word", 1, memory.actor.read(last))
    live.expect("words that are not zero", 1, memory.nonzero(kept, memory.length - kept))
    memory.fill()
    memory.expect_filled()


@SPLITS.case(
    "huge pages of which base pages are mapped elsewhere are split as well, and both places hold what they held",
    f"{IN_A_PROCESS}; mm/rmap.c try_to_migrate_one()",
    since="5.13",
)
def pieces_elsewhere(live: Live) -> None:
    let_rest(live)
    memory = huge_pages(live, 2)
    actor, base = memory.actor, live.base_page
    room = actor.mmap(2 * _PIECES * base, 0, mmap.MAP_ANONYMOUS | mmap.MAP_PRIVATE)
    offsets = [page * memory.size + (2 * piece + 1) * base for page in range(2) for piece in range(_PIECES)]
    for number, offset in enumerate(offsets):
        flags = MREMAP_MAYMOVE | MREMAP_FIXED
        actor.call("mremap", memory.address + offset, base, base, flags, room + number * base)
    # the one is found where it lies, the other one by its pieces
    expect_split(live, f"{actor.pid},{memory.address:#x},{memory.at(1):#x}", 1)
    expect_split(live, f"{actor.pid},{room:#x},{room + len(offsets) * base:#x}", 1)
    wrong = sum(actor.check(room + number * base, base, WORD, 1 + offset) for number, offset in enumerate(offsets))
    live.expect("words of pieces that changed", 0, wrong)
    rest = [page * memory.size + 2 * piece * base for page in range(2) for piece in range(_PIECES)]
    wrong = sum(actor.check(memory.address + offset, base, WORD, 1 + offset) for offset in rest)
    behind = 2 * _PIECES * base
    for page in range(2):
        start = page * memory.size + behind
        wrong += actor.check(memory.address + start, memory.size - behind, WORD, 1 + start)
    live.expect("words of the rest that changed", 0, wrong)


@SPLITS.case(
    "a file of a tmpfs is split to every order that the kernel offers, by its name, and by where a process has mapped"
    " it, all of it into folios of that order, and holds what it held",
    f"{IN_A_FILE}; {IN_A_PROCESS}; {THP_DOC}",
    since="6.15",  # before, shared memory was split to base pages alone
)
def file_to_orders(live: Live) -> None:
    let_only_pmd_inherit(live)
    point = mount_tmpfs(live, "always")
    pages, names = pmd_size(live) // live.base_page, count()

    def split(order: int, *, by_name: bool) -> Memory:
        file = f"{point}/{next(names)}"
        memory = filled_file(live, file, 1)
        start, end = memory.address, memory.address + memory.length
        which = f"{file},0x0,{pages:#x}" if by_name else f"{memory.actor.pid},{start:#x},{end:#x}"
        expect_split(live, f"{which},{order}", 1)
        live.expect("ShmemPmdMapped after a split", 0, memory.smaps().shmem_pmd_mapped)
        memory.expect_filled()
        live.expect("Rss", memory.length, memory.smaps().rss)
        return memory

    for order, by_name in product(range(pages.bit_length() - 1), (True, False)):
        with live.about(f"order {order}, by its name {by_name}"):
            expect_order(live, partial(split, order, by_name=by_name), order)


@SPLITS.case(
    "ShmemHugePages falls by a page of shared memory that is split, and Shmem stays",
    f"{IN_A_FILE}; Documentation/filesystems/proc.rst ShmemHugePages, Shmem",
    since="5.13",
)
def shared_pages_are_counted(live: Live) -> None:
    let_only_pmd_inherit(live)
    point, size, names = mount_tmpfs(live, "always"), pmd_size(live), count()

    def split(file: tuple[str, Memory]) -> None:
        path, memory = file
        expect_split(live, f"{path},0x0,{size // live.base_page:#x}", 1)
        memory.expect_filled()

    def filled() -> tuple[str, Memory]:
        # what was split stays so in the file that has it
        path = f"{point}/{next(names)}"
        memory = filled_file(live, path, 2)
        memory.expect_filled()
        return path, memory

    _path, memory = expect_change(live, {"ShmemHugePages": -size, "ShmemPmdMapped": -size, "Shmem": 0}, filled, split)
    live.expect("ShmemPmdMapped, one of two split", size, memory.smaps().shmem_pmd_mapped)


@SPLITS.case(
    "1 that is written to split_huge_pages splits every huge page of the machine, anonymous ones and those of shared"
    " memory, of a file of a tmpfs and of one without a name, locked, shared with a child, mapped in parts, and mapped"
    " by nobody, and all hold what they held; held ones and those of pools it passes over, and splits the former later",
    f"{THP_DOC}; mm/huge_memory.c split_huge_pages_all()",
    pages=1,
    sizes=Sizes.DEFAULT,
)
def each_of_the_machine(live: Live) -> None:
    let_nobody_else_act(live)
    hugetlb = live.map(1)
    hugetlb.fill()
    point = mount_tmpfs(live, "always")
    of_files, anonymous = _of_files(live, point), _anonymous(live)
    unmapped = f"{point}/unmapped"
    filled_file(live, unmapped, 1).actor.end()
    held = huge_pages(live)
    reader = pipe_with(live, held)
    shared = (len(of_files) + 1) * pmd_size(live)
    before = read_counters(live)["ShmemHugePages"]
    # of what a child has, too, there is one
    expect_split(live, "1", len(of_files) + len(anonymous))
    fallen = before - read_counters(live)["ShmemHugePages"]
    live.expect("ShmemHugePages fell by these at least", shared, min(fallen, shared))
    actor = live.actor()
    again = map_file(live, actor, live.open(actor, unmapped), 1)
    for name, memory in {**of_files, **anonymous, "a file that nobody had mapped": again}.items():
        with live.about(name):
            memory.expect_filled()
            live.expect("huge pages", 0, mapped_huge(memory))
            live.expect("Rss", memory.length, sum(found.rss for found in memory.mappings()))
    held.expect_huge(about="of what is held")
    live.expect_pool(nr=1, free=0)
    hugetlb.expect_filled()
    live.expect("what the pipe holds", 1, word_from(live, held.actor, reader))
    expect_split(live, "1", 1)
    held.expect_huge(0, about="of what was let go")
    held.expect_filled()


@SPLITS.case(
    "split_huge_pages passes over what it cannot split, pages of pools, pinned huge pages, small ones and holes, and"
    " splits the others beside them; nothing of all that changes",
    f"{IN_A_PROCESS}; {IN_A_FILE}",
    since="5.13",
    pages=1,
    sizes=Sizes.DEFAULT,
)
def passed_over(live: Live) -> None:
    let_rest(live)
    actor = huge_pages(live, 1).actor
    first = advised(live, 3, actor=actor)
    fill_in_huge_pages(live, first)
    hugetlb = live.map(1, actor)
    hugetlb.fill()
    held = first.part(1)
    # the third one has base pages, and none at its end
    first.advise(mmap.MADV_DONTNEED, 2, 1)
    first.advise(MADV_NOHUGEPAGE, 2, 1)
    actor.fill(first.at(2), live.base_page, WORD, 1 + 2 * first.size)
    first.expect_huge(2, about="before")
    with pinned(live, held):
        expect_split(live, f"{actor.pid},{first.address:#x},{first.at(3):#x}", 1)
        first.expect_huge(1, about="of the pinned one")
        write_debugfs(live, SPLIT, f"{actor.pid},{hugetlb.address:#x},{hugetlb.address + hugetlb.length:#x}")
    live.expect_pool(nr=1, free=0)
    for memory, pages in ((first, 2), (hugetlb, 1)):
        memory.expect_filled(pages=pages)
    live.expect("words of the small page that changed", 0, first.wrong(2 * first.size, live.base_page))
    live.expect("words behind it that are not zero", 0, actor.nonzero(first.at(2) + live.base_page, live.base_page))
    # let go, it is split, too
    expect_split(live, f"{actor.pid},{first.address:#x},{first.at(3):#x}", 1)
    first.expect_huge(0)
    first.expect_filled(pages=2)


@SPLITS.case(
    "split_huge_pages tells who asks for a process, a file or an order that is not there, or in other words, and splits"
    " nothing",
    f"{IN_A_PROCESS}; {IN_A_FILE}, split_huge_pages_write()",
    since="5.13",
)
def refused(live: Live) -> None:
    let_rest(live)
    memory = huge_pages(live, 2)
    gone = live.actor()
    gone.end()
    where = f"{memory.address:#x},{memory.at(2):#x}"
    # a kernel thread has no memory; a container has none
    threads = [(f"2,{where}", errno.EINVAL)] if "kthreadd" in (live.host.read("proc/2/status") or "") else []
    for words, number in (
        *threads,
        (f"{gone.pid},{where}", errno.ESRCH),
        ("", errno.EINVAL),
        ("0", errno.EINVAL),
        (f"{memory.actor.pid}", errno.EINVAL),
        (f"{memory.actor.pid},0x0", errno.EINVAL),
        ("/no/such/file,0x0,0x200", errno.EINVAL),
    ):
        with live.about(repr(words)):
            live.expect_errno(number, write_debugfs, live, SPLIT, words)
            memory.expect_huge()
    memory.expect_filled()


@SPLITS.case(
    "a write to split_huge_pages returns the length of all that is written, for all of the machine, for a process and"
    " for a file, with an order, an end of the line, both or neither, whether there is a huge page to split or none is"
    " left",
    f"write(2); {THP_DOC}; mm/huge_memory.c split_huge_pages_write()",
    since="5.13",
)
def lengths_that_are_told(live: Live) -> None:
    let_nobody_else_act(live)
    path, memory = f"{mount_tmpfs(live, 'always')}/file", huge_pages(live)
    filled_file(live, path, 1)
    actor = live.actor()
    split = open_debugfs(live, actor, SPLIT)
    of_a_process = f"{memory.actor.pid},{memory.address:#x},{memory.at(1):#x}"
    of_a_file = f"{path},0x0,{pmd_size(live) // live.base_page:#x}"
    # of the machine at last: nothing is left for the others then; an order more is passed over before Linux 6.9
    for which, order, end in product((of_a_process, of_a_file, "1"), ("", ",0"), ("", "\n")):
        if which == "1" and order:
            continue
        words = f"{which}{order}{end}"
        with live.about(repr(words)):
            written = actor.call("write", split, words.encode(), len(words))
            live.expect("bytes that are written", len(words), written)


def _of_files(live: Live, point: str) -> dict[str, Memory]:
    """Return one huge page of each kind of shared memory; files are made below ``point``, where they get them."""
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "always")
    actor = live.actor()
    without_a_name = map_start(live, actor, actor.call("memfd_create", "split", 0))
    expect_shared(live, without_a_name, True, "shmem_enabled=always")
    locked = filled_file(live, f"{point}/locked", 1)
    locked.lock()
    return {
        "shared memory": shared_huge_pages(live),
        "a file without a name": without_a_name,
        "a file of a tmpfs": filled_file(live, f"{point}/file", 1),
        "a locked file": locked,
    }


def _anonymous(live: Live) -> dict[str, Memory]:
    """Return one anonymous huge page as each kind of mapping has it, and one of them as a child has it, too."""
    locked, of_two = huge_pages(live), huge_pages(live)
    locked.lock()
    return {
        "anonymous memory": huge_pages(live),
        "locked memory": locked,
        "memory of two processes": of_two,
        "that of the child": of_two.fork(),
        "memory that is mapped in parts": mapped_in_parts(live),
    }


class ThpSplits(LiveTest):
    def test_splits(self) -> None:
        self.run_area(SPLITS)
