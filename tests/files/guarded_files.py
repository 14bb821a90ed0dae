"""Guards in mappings of files of a tmpfs, which page tables alone know: what fork() and MADV_COLLAPSE leave of them.

So it is where mappings with guards and without become one.
"""

import errno
import mmap
import signal
from collections.abc import Callable
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.madv_collapse import collapse_memory, expect_no_collapse
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.merged_mappings import merges
from hugepage_qa.cases.thp_memory import mapped_huge, pmd_size, room_for
from hugepage_qa.cases.thp_shared_memory import expect_shared, map_file, map_start, mount_tmpfs
from hugepage_qa.kernel.uapi import MADV_GUARD_INSTALL, MADV_GUARD_REMOVE, MAP_FIXED
from hugepage_qa.plugins.avocado_test import LiveTest

GUARDED_FILES = Area("files/guarded-files", sizes=Sizes.ONCE)

GUARDS = "madvise(2) MADV_GUARD_INSTALL; mm/madvise.c madvise_guard_install()"
#: of memory that was not anonymous, or that may be read alone, guards were refused before
SINCE = "6.15"
_PAGES = 2
#: parts of a mapping, of which one is guarded, and has others before it, behind it or both
_MERGED = 3
_VALUE = 77

#: maps the file that an existing mapping has the descriptor of
Map = Callable[[Live, Memory, int], Memory]


def _untouched(live: Live, file: Memory, descriptor: int) -> Memory:
    return map_file(live, file.actor, descriptor, _PAGES)


def _shared(live: Live, file: Memory, descriptor: int) -> Memory:
    memory = _untouched(live, file, descriptor)
    memory.fill()
    return memory


def _read_alone(live: Live, file: Memory, descriptor: int) -> Memory:
    memory = _untouched(live, file, descriptor)
    memory.protect(mmap.PROT_READ)
    memory.expect_filled()
    return memory


def _private(live: Live, file: Memory, descriptor: int) -> Memory:
    memory = map_file(live, file.actor, descriptor, _PAGES, shared=False)
    memory.expect_filled()
    return memory


_MAPPINGS: tuple[Map, ...] = (_untouched, _shared, _read_alone, _private)


@GUARDED_FILES.case(
    "guards in a mapping of a file, of its huge pages or base pages, of parts of them or across them, touched or not,"
    " shared, private or to be read alone, give SIGSEGV, in children and theirs, too, until each removes its own: other"
    " mappings have none, and all beside and below them is what the file holds",
    f"{GUARDS}; include/linux/mm.h VM_COPY_ON_FORK, VM_MAYBE_GUARD; mm/memory.c vma_needs_copy()",
    since=SINCE,
)
def inherited(live: Live) -> None:
    let_nobody_else_act(live)
    for huge in ("always", "never"):
        actor = live.actor()
        descriptor = live.open(actor, f"{mount_tmpfs(live, huge)}/file")
        file = map_start(live, actor, descriptor, _PAGES)
        expect_shared(live, file, huge == "always", f"huge={huge}")
        for make, place in product(_MAPPINGS, _places(live)):
            memory = make(live, file, descriptor)
            with live.about(f"huge={huge}, {make.__name__.strip('_')}, {place[1]} bytes at {place[0]}"):
                _advise(memory, place, MADV_GUARD_INSTALL)
                _expect_inherited(live, memory, place)
                file.expect_filled()
            memory.unmap()
        actor.end()


def _expect_inherited(live: Live, memory: Memory, place: tuple[int, int]) -> None:
    """Expect those who are forked to have the guards of ``memory``, each its own."""
    child = memory.fork()
    every = [memory, child, memory.seen_by(child.actor.fork())]
    for each in every:
        _expect_guarded(live, each, place)
    for number, remover in enumerate(every):
        _advise(remover, place, MADV_GUARD_REMOVE)
        remover.expect_filled()
        for each in every[number + 1 :]:
            _expect_guarded(live, each, place)
    for each in every[:0:-1]:
        each.actor.end()


@GUARDED_FILES.case(
    "guards in a part of a mapping of a file are inherited by a child, too, whichever mapping it merges with then, one"
    " before it, one behind it or both, and whichever of them changes: by its protection, by advice, by being locked or"
    " by being moved there; and each removes its own",
    f"{GUARDS}; include/linux/mm.h VMA_STICKY_FLAGS; mm/vma.c vma_merge_existing_range(), vma_expand()",
    since=SINCE,
)
def merged(live: Live) -> None:
    let_nobody_else_act(live)
    actor, base = live.actor(), live.base_page
    descriptor = live.open(actor, f"{mount_tmpfs(live, 'never')}/file")
    file, size = map_start(live, actor, descriptor, 1), 4 * base
    file.fill()
    for kind, part, way in product((mmap.MAP_SHARED, mmap.MAP_PRIVATE), range(_MERGED), merges()):
        place = room_for(actor, _MERGED, size)
        actor.mmap(_MERGED * size, READ_WRITE, kind | MAP_FIXED, descriptor, address=place)
        memory = Memory(live, actor, place, _MERGED, size)
        guards = part * size + base, 2 * base
        with live.about(f"shared {kind == mmap.MAP_SHARED}, guards in part {part} of {_MERGED}, {way.name}"):
            merge = way.begin(memory, part)
            _advise(memory, guards, MADV_GUARD_INSTALL)
            merge()
            _expect_inherited(live, memory, guards)
        memory.unmap()
    file.expect_filled()
    live.expect("bytes in huge pages, huge=never", 0, mapped_huge(file))


@GUARDED_FILES.case(
    "MADV_COLLAPSE of a file leaves the guards of each other mapping of it, of the same process or another one, of a"
    " part of a huge page, all of it or across two, touched or not, shared, private or to be read alone, and refuses"
    " those that have guards: the one that it is asked for has huge pages then, and all holds what it held",
    f"{GUARDS}; madvise(2) MADV_COLLAPSE; mm/khugepaged.c retract_page_tables(), file_backed_vma_is_retractable()",
    since=SINCE,
)
def collapsed_beside(live: Live) -> None:
    let_nobody_else_act(live)
    actor = live.actor()
    descriptor = live.open(actor, f"{mount_tmpfs(live, 'never')}/file")
    for make, place, is_apart in product(_MAPPINGS, _places(live), (False, True)):
        file = map_start(live, actor, descriptor, _PAGES)
        file.fill()
        other = file.seen_by(actor.fork()) if is_apart else file
        memory = make(live, file, descriptor)
        about = f"{make.__name__.strip('_')}, {place[1]} bytes at {place[0]}, asked for by another process: {is_apart}"
        with live.about(about):
            _advise(memory, place, MADV_GUARD_INSTALL)
            collapse_memory(live, other)
            live.expect("bytes in huge pages of the other mapping", other.length, mapped_huge(other))
            _expect_guarded(live, memory, place)
            other.expect_filled()
            expect_no_collapse(live, memory, errno.EINVAL)
            _expect_guarded(live, memory, place)
            _advise(memory, place, MADV_GUARD_REMOVE)
            for each in (memory, other):
                each.expect_filled()
        if is_apart:
            other.actor.end()
        for each in (memory, file):
            each.unmap()
        # the next ones begin with base pages
        actor.call("ftruncate", descriptor, 0)


def _places(live: Live) -> tuple[tuple[int, int], ...]:
    """Return where guards begin in memory of two huge pages, and how long they are, in bytes."""
    size, base = pmd_size(live), live.base_page
    return (
        (0, base),
        (2 * base, base),
        (size - base, 2 * base),
        (size // 2, size),
        (size, size),
        (base, size - 2 * base),
    )


def _advise(memory: Memory, place: tuple[int, int], advice: int) -> None:
    offset, length = place
    memory.actor.call("madvise", memory.address + offset, length, advice)


def _expect_guarded(live: Live, memory: Memory, place: tuple[int, int]) -> None:
    """Expect guards from the first to the last word of ``place``, and nowhere else."""
    offset, length = place
    end = offset + length
    for word in (offset, offset + length // 2, end - WORD):
        live.expect_signal(signal.SIGSEGV, memory.actor.read, memory.address + word)
        live.expect_signal(signal.SIGSEGV, memory.actor.write, memory.address + word, _VALUE)
    changed = memory.wrong_beside(offset, end)
    live.expect("words of the rest that changed", 0, changed)


class ThpGuardedFiles(LiveTest):
    def test_guarded_files(self) -> None:
        self.run_area(GUARDED_FILES)
