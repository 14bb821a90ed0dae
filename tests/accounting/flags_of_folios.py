"""What /proc/kpageflags shows of large folios of each size, and that whoever asks for it has them split."""

import mmap
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import CLEAR_REFS_ALL, clear_refs, uses_what_is_protected
from hugepage_qa.cases.debugfs import open_debugfs
from hugepage_qa.cases.file_contents import KnownFile
from hugepage_qa.cases.folio_layout import folios_of_all
from hugepage_qa.cases.fragmentation import expect_no_node_short, with_blocks
from hugepage_qa.cases.frames import COMPOUND_HEAD, COMPOUND_TAIL, REFERENCED, TRANSPARENT, flags_from
from hugepage_qa.cases.idle_bitmap import let_uses_show
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.size_counters import allow_only, counted_sizes
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size, room_for
from hugepage_qa.cases.thp_shared_memory import filled_file, mount_tmpfs, shared_huge_pages
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import size_directories
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

FLAGS = Area("accounting/flags-of-folios", sizes=Sizes.ONCE)

SHOWN = (
    "kpageflags shows the first base page of {} as a head and each other one as a tail, all of them as of a"
    " transparent huge page, and a base page of no large folio as none of these"
)
SPLIT = f"{SHOWN}; split_huge_pages leaves base pages alone, and what they hold"
SOURCE = (
    "Documentation/admin-guide/mm/pagemap.rst COMPOUND_HEAD, COMPOUND_TAIL, THP; fs/proc/page.c stable_page_flags()"
)
_FOLIOS = 3
_SECONDS = 20.0
_SHOWN = COMPOUND_HEAD | COMPOUND_TAIL | TRANSPARENT
#: base pages that are written at once
_WRITTEN = (1, 2, 4, 16)
#: to ``length`` bytes at an address
_Act = Callable[[Memory, int, int], object]


@FLAGS.case(SPLIT.format("anonymous memory in folios of each size"), SOURCE, since="6.10")
def anonymous_memory(live: Live) -> None:
    _let_each_fault_reclaim(live)
    for size in (*counted_sizes(live), pmd_size(live)):
        allow_only(live, size)
        _expect_shown_and_split(live, map_aligned(live, _FOLIOS, size, advice=MADV_HUGEPAGE))


@FLAGS.case(SPLIT.format("shared memory in folios of each size, of two base pages too,"), SOURCE, since="6.11")
def shared_memory(live: Live) -> None:
    _let_each_fault_reclaim(live)
    knobs = {size: f"{path}/shmem_enabled" for size, path in size_directories(live.host, DIRECTORY).items()}
    knobs = {size: knob for size, knob in knobs.items() if live.host.read(knob) is not None}
    if not knobs:
        raise CannotRun("shared memory has no sizes of its own")
    for size, knob in knobs.items():
        live.set_knob(knob, "always")
        _expect_shown_and_split(live, map_aligned(live, _FOLIOS, size, shared=True))
        live.set_knob(knob, "never")


@FLAGS.case(SHOWN.format("a folio of a file of a tmpfs"), SOURCE, since="6.10")
def files_of_a_tmpfs(live: Live) -> None:
    let_nobody_else_act(live)
    for huge in ("never", "within_size", "always"):
        _expect_written_shown(live, mount_tmpfs(live, huge), f"huge={huge}")


@FLAGS.case(SHOWN.format("a folio of a file on XFS"), SOURCE, since="6.10")
def files_on_xfs(live: Live) -> None:
    _expect_written_shown(live, live.host.disk("xfs"), "xfs")


@FLAGS.case(SHOWN.format("a folio of a file on ext4"), SOURCE, since="6.10")
def files_on_ext4(live: Live) -> None:
    _expect_written_shown(live, live.host.disk("ext4"), "ext4")


@FLAGS.case(
    "a huge page of shared memory or of a file of a tmpfs that was used since clear_refs was written shows as"
    " referenced once it is no more mapped whole, for a part of it is unmapped, given back, protected or moved, and one"
    " that was not used does not",
    "Documentation/admin-guide/mm/pagemap.rst REFERENCED; Documentation/filesystems/proc.rst clear_refs;"
    " mm/huge_memory.c __split_huge_pmd_locked()",
)
def used_before_it_is_in_parts(live: Live) -> None:
    let_nobody_else_act(live)
    path = f"{mount_tmpfs(live, 'always')}/file"
    makes = partial(shared_huge_pages, live), partial(filled_file, live, path, 1)
    # what mprotect(2) marks is used whoever uses it
    uses = (True,) if uses_what_is_protected(live) else (False, True)
    for make, (way, act), is_used in product(makes, _IN_PARTS.items(), uses):
        found = live.host.last_attempt(partial(_is_referenced_then, live, make, act, is_used), is_used.__eq__)
        live.expect(f"whether it is referenced, {make.func.__name__}, {way} in part, used {is_used}", is_used, found)


def _is_referenced_then(live: Live, make: partial[Memory], act: _Act, is_used: bool) -> bool:
    """Make a huge page, use it or not, and do ``act`` to the middle of it; return whether it shows as referenced."""
    memory = make()
    clear_refs(live, memory, CLEAR_REFS_ALL)
    let_uses_show(memory)
    if is_used:
        live.expect("what is read", 1, memory.read())
    frame = memory.frame()
    act(memory, memory.address + memory.size // 2, live.base_page)
    live.expect("ShmemPmdMapped", 0, sum(each.shmem_pmd_mapped for each in memory.all_mappings()))
    flags = flags_from(live, memory.actor, frame, 1)[0]
    memory.actor.end()
    return bool(flags & REFERENCED)


def _move(memory: Memory, address: int, length: int) -> None:
    to = room_for(memory.actor, 1, memory.size)
    memory.actor.call("mremap", address, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to)


_IN_PARTS: Mapping[str, _Act] = {
    "unmapped": lambda memory, address, length: memory.actor.call("munmap", address, length),
    "given back": lambda memory, address, length: memory.actor.call("madvise", address, length, mmap.MADV_DONTNEED),
    "protected": lambda memory, address, length: memory.actor.call("mprotect", address, length, mmap.PROT_READ),
    "moved": _move,
}


def _let_each_fault_reclaim(live: Live) -> None:
    """Let nobody else act, and each fault make room for the folio it wants, also that of memory without advice."""
    let_nobody_else_act(live)
    live.set_knob(f"{DIRECTORY}/defrag", "always")


def _expect_shown_and_split(live: Live, memory: Memory) -> None:
    """Expect ``memory``, which gets a folio for each page, to be shown so, and to be base pages when it is split."""
    size, actor = memory.size, memory.actor
    with_blocks(live, size, _FOLIOS)
    memory.fill()
    with live.about(f"folios of {size >> 10} kB"):
        found = _expect_shown(live, memory)
        if [len(folio) * live.base_page for folio in found] != [size] * _FOLIOS:
            expect_no_node_short(live, size, _FOLIOS)
        live.expect("bytes of each folio", [size] * _FOLIOS, [len(folio) * live.base_page for folio in found])
        where = f"{actor.pid},{memory.address:#x},{memory.at(_FOLIOS):#x}".encode()
        split = open_debugfs(live, actor, "split_huge_pages")

        def left() -> int:
            # what somebody has a hold of is not split
            actor.call("write", split, where, len(where))
            # of a file nothing is mapped then
            memory.expect_filled()
            return max(map(len, folios_of_all(live, memory)))

        live.expect("base pages of the largest folio after a split", 1, live.host.last_look(left, (1).__eq__))
        _expect_shown(live, memory)
        memory.expect_filled()
    actor.end()


def _expect_written_shown(live: Live, directory: str, about: str) -> None:
    """Expect the folios of files that are written so many base pages at a time to be shown as what they are."""
    base = live.base_page
    for pages in _WRITTEN:
        length = 4 * pages * base
        file = KnownFile(live, live.actor(), directory, length)
        for first in range(0, length, pages * base):
            file.write(first, pages * base)
        whole = file.map()
        memory = Memory(live, file.actor, whole.address, length // base, base)
        file.expect_mapped(whole)
        with live.about(f"{about}, {pages} base pages written at a time"):
            _expect_shown(live, memory)
        file.actor.end()


def _expect_shown(live: Live, memory: Memory) -> list[range]:
    """Expect all base pages of ``memory`` to be shown as what they are of their folios, and return these."""

    def look() -> tuple[list[range], list[range]]:
        folios = folios_of_all(live, memory)
        return folios, [folio for folio in folios if not _is_shown(live, memory, folio)]

    # one that is moved looks otherwise for a moment
    folios, wrong = live.host.last_look(look, lambda seen: not seen[1], _SECONDS)
    live.expect("folios of which base pages are shown otherwise", [], wrong)
    return folios


def _is_shown(live: Live, memory: Memory, folio: range) -> bool:
    first = memory.frame(folio.start * live.base_page)
    shown = [flags & _SHOWN for flags in flags_from(live, memory.actor, first, len(folio))]
    large = [COMPOUND_HEAD | TRANSPARENT, *[COMPOUND_TAIL | TRANSPARENT] * (len(folio) - 1)]
    return shown == (large if len(folio) > 1 else [0])


class FlagsOfFolios(LiveTest):
    def test_flags_of_folios(self) -> None:
        self.run_area(FLAGS)
