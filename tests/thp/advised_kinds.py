"""Advice on each kind of memory that may be in huge pages: which it is for, and what it does not change of others."""

import errno
import mmap
from collections.abc import Callable
from enum import Enum
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.group_memory import file_on_a_disk
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.lru_batches import drain_lru_batches
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import free_lazily, mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, mapped_in_parts
from hugepage_qa.cases.thp_shared_memory import (
    expect_shared,
    let_only_pmd_inherit,
    map_file,
    map_start,
    nameless_file,
    shared_base_pages,
    shared_huge_pages,
)
from hugepage_qa.kernel.uapi import MADV_COLD, MADV_DONTNEED, MADV_WIPEONFORK, MAP_FIXED
from hugepage_qa.plugins.avocado_test import LiveTest

KINDS = Area("thp/advised-kinds", sizes=Sizes.ONCE)

DOC = "madvise(2) MADV_FREE, MADV_WIPEONFORK, MADV_REMOVE, ERRORS"
SOURCE = "mm/madvise.c madvise_free_single_vma(), madvise_vma_behavior(), madvise_remove()"
SINCE = "5.4"  # MADV_COLD


class Kind(Enum):
    """What of a mapping decides which advice it takes."""

    ANONYMOUS = "private memory of no file"
    COPIED = "a private mapping of a file"
    SHARED = "shared memory, of a file or not"


#: what comes of advice, in the order in which it is given: what the kernel may take at last
_TABLE: tuple[tuple[int, dict[Kind, int]], ...] = (
    (MADV_WIPEONFORK, {Kind.ANONYMOUS: 0, Kind.COPIED: errno.EINVAL, Kind.SHARED: errno.EINVAL}),
    (MADV_COLD, {Kind.ANONYMOUS: 0, Kind.COPIED: 0, Kind.SHARED: 0}),
    (mmap.MADV_FREE, {Kind.ANONYMOUS: 0, Kind.COPIED: errno.EINVAL, Kind.SHARED: errno.EINVAL}),
    (mmap.MADV_REMOVE, {Kind.ANONYMOUS: errno.EINVAL, Kind.COPIED: errno.EACCES, Kind.SHARED: 0}),
    (MADV_DONTNEED, {Kind.ANONYMOUS: 0, Kind.COPIED: 0, Kind.SHARED: 0}),
)
#: returns memory that is filled
Make = Callable[[Live], Memory]


@KINDS.case(
    "MADV_FREE and MADV_WIPEONFORK are for private memory of no file, and MADV_REMOVE for shared memory, huge pages or"
    " not, mapped whole or in parts; of any other kind they are EINVAL or EACCES, and all of it stays as it was",
    f"{DOC}; {SOURCE}",
    since=SINCE,
)
def each_kind(live: Live) -> None:
    let_nobody_else_act(live)
    let_only_pmd_inherit(live)
    rows: tuple[tuple[Kind, tuple[Make, ...]], ...] = (
        (Kind.ANONYMOUS, (huge_pages, mapped_in_parts, base_pages)),
        (Kind.COPIED, (_seen_file_in_huge_pages, _seen_file_in_base_pages, _copied_file)),
        (Kind.SHARED, (shared_huge_pages, shared_base_pages, _file_in_huge_pages, _file_in_base_pages)),
    )
    for kind, makes in rows:
        for make in makes:
            with live.about(make.__name__.strip("_").replace("_", " ")):
                memory = make(live)
                _expect_as_in_table(live, memory, kind, mapped_huge(memory))


@KINDS.case(
    "MADV_FREE and MADV_WIPEONFORK of a mapping of a file on a disk are EINVAL, private or shared, and MADV_REMOVE of a"
    " private one is EACCES: all that the file has stays",
    f"{DOC}; {SOURCE}",
    since=SINCE,
)
def of_a_disk(live: Live) -> None:
    for kind in (Kind.COPIED, Kind.SHARED):
        file = file_on_a_disk(live, pmd_size(live))
        with live.about(kind.value):
            memory = map_file(live, file.actor, file.descriptor, 1, shared=kind == Kind.SHARED)
            memory.expect_filled()
            _expect_as_in_table(live, memory, kind, 0)


@KINDS.case(
    "MADV_FREE of a range goes as far as private memory of no file does, and ends with EINVAL at what is shared or of a"
    " file: that is all there, and what is behind it may not be taken",
    f"{DOC}; mm/madvise.c madvise_walk_vmas()",
    since=SINCE,
)
def up_to_what_is_shared(live: Live) -> None:
    let_nobody_else_act(live)
    size = pmd_size(live)
    for make, kind in product((huge_pages, base_pages), (mmap.MAP_SHARED, mmap.MAP_PRIVATE)):
        # the second page, or what is at its end
        for length in (live.base_page, size):
            memory = make(live, 3)
            other, call = memory.at(2) - length, memory.actor.call
            descriptor = call("memfd_create", "other", 0)
            call("ftruncate", descriptor, length)
            memory.actor.mmap(length, READ_WRITE, kind | MAP_FIXED, descriptor, address=other)
            memory.actor.fill(other, length, memory.step, 1 + other - memory.address)

            wanted = 2 * size - length

            def freed(memory: Memory = memory, wanted: int = wanted) -> int:
                live.expect_errno(errno.EINVAL, memory.advise, mmap.MADV_FREE)
                found = memory.smaps().fields["LazyFree"]
                if found != wanted:
                    # some was passed over, as ``free_lazily`` tells, or is gone already
                    drain_lru_batches(live, memory.actor)
                    memory.fill_part(0, wanted)
                return found

            about = "shared" if kind == mmap.MAP_SHARED else "private"
            with live.about(f"{make.__name__}, {length} bytes of a {about} mapping of a file"):
                live.expect("LazyFree before it", wanted, live.host.last_look(freed, wanted.__eq__))
                behind = memory.smaps(2)
                live.expect("LazyFree behind it", 0, behind.fields["LazyFree"])
                live.expect("AnonHugePages behind it", size * (make is huge_pages), behind.anon_huge_pages)
                kept = other - memory.address
                live.expect("words of it, or behind it, that changed", 0, memory.wrong(kept, memory.length - kept))
            memory.actor.end()


def _expect_as_in_table(live: Live, memory: Memory, kind: Kind, huge: int) -> None:
    """Expect filled ``memory`` to take advice, and what it refuses to change nothing, and end its process.

    ``huge`` bytes of it are in huge pages of no file on a disk.
    """
    for advice, answers in _TABLE:
        with live.about(f"advice {advice}"):
            if not (error := answers[kind]):
                live.expect_success(memory.advise, advice)
                if advice == mmap.MADV_FREE:
                    # which may be taken from now on
                    live.expect(
                        "whether all may be taken", True, live.host.last_look(lambda: free_lazily(live, memory), bool)
                    )
                    memory.fill()
                continue
            live.expect_errno(error, memory.advise, advice)
            live.expect("LazyFree", 0, sum(each.fields.get("LazyFree", 0) for each in memory.mappings()))
            live.expect("memory in huge pages", huge, mapped_huge(memory))
            memory.expect_filled()
    memory.actor.end()


def _file(live: Live, huge: str) -> tuple[int, Memory]:
    """Return the descriptor and the memory of a filled file of a tmpfs that is gone with its actor."""
    actor = live.actor()
    file = nameless_file(live, actor, huge)
    memory = map_start(live, actor, file)
    expect_shared(live, memory, huge == "always", f"huge={huge}")
    return file, memory


def _file_in_huge_pages(live: Live) -> Memory:
    return _file(live, "always")[1]


def _file_in_base_pages(live: Live) -> Memory:
    return _file(live, "never")[1]


def _seen(live: Live, huge: str) -> Memory:
    """Return a private mapping of a file that was filled through another one, and was read."""
    file, filled = _file(live, huge)
    memory = map_file(live, filled.actor, file, 1, shared=False)
    memory.expect_filled()
    return memory


def _seen_file_in_huge_pages(live: Live) -> Memory:
    return _seen(live, "always")


def _seen_file_in_base_pages(live: Live) -> Memory:
    return _seen(live, "never")


def _copied_file(live: Live) -> Memory:
    """Return a private mapping of a file of which all was written: it has copies of its own, which are anonymous."""
    memory = _seen(live, "never")
    memory.fill()
    return memory


class ThpAdvisedKinds(LiveTest):
    def test_advised_kinds(self) -> None:
        self.run_area(KINDS)
