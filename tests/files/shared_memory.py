"""Transparent huge pages in shared memory: tmpfs by its mount option, all other by shmem_enabled."""

import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from itertools import count, product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import expect_no_node_short, with_blocks
from hugepage_qa.cases.hugetlb_files import HugeFile
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_shared_memory import (
    expect_shared,
    filled_file,
    let_only_pmd_inherit,
    map_file,
    map_start,
    map_start_of_file,
    mount_tmpfs,
    need_huge_pages_for_words,
)
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import size_directories
from hugepage_qa.kernel.uapi import FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.version import KernelVersion

SHARED = Area("files/shared-memory", sizes=Sizes.ONCE, uncleared=True)

#: what uses a byte of a file for the first time
_Use = Callable[[Live, HugeFile, int], None]

DOC = f"{THP_DOC} Hugepages in tmpfs/shmem"
#: what is advised, and the policies that give huge pages then
_GIVEN = {None: ("always",), MADV_HUGEPAGE: ("always", "advise"), MADV_NOHUGEPAGE: ()}
#: acd7ccb284b8: smaller huge pages, which lie within a file, are given before advice is looked at
_SMALLER_SINCE = KernelVersion(6, 14)
#: at the first byte of a huge page older kernels ask whether what lies before it is within the file
_FROM_ANY_BYTE = "6.1"


@SHARED.case(
    "shmem_enabled decides for anonymous shared memory: always, advise, never; deny and force go before all",
    f"{DOC} shmem_enabled",
)
def anonymous_shared_memory(live: Live) -> None:
    let_only_pmd_inherit(live)
    for policy in ("always", "advise", "never", "deny", "force"):
        live.set_knob(f"{DIRECTORY}/shmem_enabled", policy)
        for advice, given in _GIVEN.items():
            huge = policy in given or (policy == "force" and advice != MADV_NOHUGEPAGE)
            memory = map_aligned(live, 1, pmd_size(live), shared=True, advice=advice)
            expect_shared(live, memory, huge, f"shmem_enabled={policy}, advice {advice}")


@SHARED.case(
    "huge= of a mount decides for the files of a tmpfs, whatever never and always of shmem_enabled say",
    f"{DOC} huge=",
)
def files_of_a_tmpfs(live: Live) -> None:
    let_only_pmd_inherit(live)
    for policy, of_mount in product(("never", "always"), ("always", "advise", "never")):
        live.set_knob(f"{DIRECTORY}/shmem_enabled", policy)
        point = mount_tmpfs(live, of_mount)
        for advice, given in _GIVEN.items():
            memory = _file(live, f"{point}/{advice}", advice)
            expect_shared(live, memory, of_mount in given, f"huge={of_mount}, shmem_enabled={policy}, advice {advice}")


@SHARED.case(
    "deny takes huge pages from every tmpfs, force gives them to every one",
    f"{DOC} deny, force",
)
def deny_and_force(live: Live) -> None:
    let_only_pmd_inherit(live)
    for policy, of_mount, huge in (("deny", "always", False), ("force", "never", True)):
        point = mount_tmpfs(live, of_mount)
        live.set_knob(f"{DIRECTORY}/shmem_enabled", policy)
        expect_shared(live, _file(live, f"{point}/file", None), huge, f"{policy}, huge={of_mount}")


@SHARED.case(
    "deny takes huge pages from what is written or allocated without a mapping, too, in files and memfds, and force"
    " gives them to it",
    f"{DOC} deny, force; write(2); fallocate(2); mm/shmem.c shmem_get_folio_gfp()",
)
def denied_and_forced_without_a_mapping(live: Live) -> None:
    need_huge_pages_for_words(live)
    let_only_pmd_inherit(live)
    size = pmd_size(live)
    for policy, of_mount, huge in (("deny", "always", False), ("force", "never", True)):
        point = mount_tmpfs(live, of_mount)
        live.set_knob(f"{DIRECTORY}/shmem_enabled", policy)
        for name, *arguments in (("pwrite64", bytes(WORD), WORD, size // 2), ("fallocate", 0, size // 2, WORD)):
            actor = live.actor()
            paths = live.open(actor, f"{point}/{name}"), actor.call("memfd_create", name, 0)
            for descriptor in paths:
                file = HugeFile(live, actor, descriptor)
                actor.call("ftruncate", descriptor, size)
                with_blocks(live, size, int(huge))
                actor.call(name, descriptor, *arguments)
                found = file.blocks
                if huge and found != size:
                    expect_no_node_short(live, size, 1)
                live.expect(f"st_blocks after {name}(), {policy}", size if huge else live.base_page, found)


@SHARED.case(
    "huge=within_size gives no huge page that would reach beyond the end of a file",
    f"{DOC} within_size; mm/shmem.c shmem_huge_global_enabled()",
)
def within_size(live: Live) -> None:
    let_only_pmd_inherit(live)
    point = mount_tmpfs(live, "within_size")
    for name, size in (("long", 2 * pmd_size(live)), ("short", pmd_size(live) // 2)):
        _expect_within_size(live, map_start_of_file(live, f"{point}/{name}", length=size), size)


@SHARED.case(
    "shmem_enabled=within_size gives a memfd no huge page that would reach beyond its end",
    f"{DOC} within_size; mm/shmem.c shmem_huge_global_enabled()",
)
def memfd_within_size(live: Live) -> None:
    let_only_pmd_inherit(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "within_size")
    for size in (2 * pmd_size(live), pmd_size(live) // 2):
        actor = live.actor()
        descriptor = actor.call("memfd_create", "within", 0)
        memory = map_start(live, actor, descriptor, length=size)
        _expect_within_size(live, memory, size, {Quirk.WITHIN_SIZE_PASSED: memory.size})


@SHARED.case(
    "huge=within_size gives a huge page where all of it lies within a file, up to the base page that has the last byte,"
    " and else no memory behind that, whichever byte of it is written, allocated or touched first; advice has it be a"
    " huge page nevertheless",
    f"{DOC} within_size: Also respect madvise hints; mm/shmem.c shmem_huge_global_enabled()",
    since=_FROM_ANY_BYTE,
)
def within_size_from_any_byte(live: Live) -> None:
    let_only_pmd_inherit(live)
    point, actor = mount_tmpfs(live, "within_size"), live.actor()
    numbers = count()
    _expect_within_size_from_any_byte(live, actor, lambda: live.open(actor, f"{point}/{next(numbers)}"))


@SHARED.case(
    "shmem_enabled=within_size gives a memfd a huge page where all of it lies within it, and else no memory behind its"
    " end, whichever byte of it is written, allocated or touched first; advice has it be a huge page nevertheless",
    f"{DOC} within_size: Also respect madvise hints; mm/shmem.c shmem_huge_global_enabled()",
    since=_FROM_ANY_BYTE,
)
def memfd_within_size_from_any_byte(live: Live) -> None:
    let_only_pmd_inherit(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "within_size")
    actor = live.actor()
    _expect_within_size_from_any_byte(live, actor, lambda: actor.call("memfd_create", "within", 0))


@SHARED.case(
    "within_size for one size alone gives a memfd that is mapped beyond its end a page of this size where all of it"
    " lies within the memfd, up to the base page that has the last byte, and else one base page, whichever byte is"
    " touched first, and whether it grew or was cut to its length",
    f"{DOC} hugepages-<size>kB/shmem_enabled within_size; mm/shmem.c shmem_allowable_huge_orders() (d0e6983a6d17)",
    since="6.12.10",  # and in 6.12.y; 6.11 rounds to the number of an order instead of to its pages
)
def memfd_within_one_size(live: Live) -> None:
    let_only_pmd_inherit(live, is_used=False)
    knobs = {size: f"{path}/shmem_enabled" for size, path in size_directories(live.host, DIRECTORY).items()}
    sizes = sorted(size for size, knob in knobs.items() if live.host.read(knob) is not None)
    for size in sorted({sizes[0], sizes[len(sizes) // 2], *sizes[-2:]}):
        for each in sizes:
            live.set_knob(knobs[each], "within_size" if each == size else "never")
        with live.about(f"pages of {size} bytes"):
            _expect_within_one_size(live, size)


def _expect_within_one_size(live: Live, size: int) -> None:
    """Expect a new memfd of each length to have, by a touch, a page of ``size`` bytes, or a base page."""
    base, actor = live.base_page, live.actor()
    ends = {1, base, size // 2, size - base, size - base + 1, size, size + 1, size + base, 2 * size - base, 2 * size}
    for number, end in enumerate(sorted({*ends, 2 * size - base + 1})):
        room = -(-end // base) * base
        for offset in sorted({0, base, size - base, size, room - base}):
            if offset >= end:
                continue
            file = HugeFile(live, actor, actor.call("memfd_create", "within", 0))
            for length in (3 * size, end) if number % 2 else (end,):
                actor.call("ftruncate", file.descriptor, length)
            expected = size if offset // size * size + size <= room else base
            with_blocks(live, size, 1)
            _touch(live, file, offset)
            found = file.blocks
            if expected == size != found:
                expect_no_node_short(live, size, 1)
            live.expect(f"st_blocks of {end} bytes, touched at {offset}", expected, found)
            file.close()


def _expect_within_size_from_any_byte(live: Live, actor: Actor, make: Callable[[], int]) -> None:
    """Expect a new file of each length to have a huge page where it may be, and nothing behind its end."""
    size, base = pmd_size(live), live.base_page
    ends = (1, base, size // 2, size - base, size - base + 1, size, size + 1, 2 * size - base, 2 * size - base + 1)
    # what is known of a kernel ends the case: it is about touches
    uses: tuple[_Use, ...] = (_write_a_byte, _allocate_a_byte, _touch_advised, _touch)
    of_ends: Iterable[tuple[_Use, int]] = product(uses, ends)
    for use, end in of_ends:
        for offset in sorted({0, end - 1, *(each for each in (base, size, size + base) if each < end)}):
            file = HugeFile(live, actor, make())
            actor.call("ftruncate", file.descriptor, end)
            with live.about(f"{end} bytes, byte {offset}: {use.__name__[1:]}"):
                with_blocks(live, size, 1)
                use(live, file, offset)
                _expect_taken(live, file, -(-end // base) * base - offset // size * size, use is _touch_advised)
            actor.call("ftruncate", file.descriptor, 0)
            file.close()


def _write_a_byte(_live: Live, file: HugeFile, offset: int) -> None:
    file.actor.call("pwrite64", file.descriptor, b"x", 1, offset)


def _allocate_a_byte(_live: Live, file: HugeFile, offset: int) -> None:
    file.actor.call("fallocate", file.descriptor, 0, offset, 1)


def _touch(live: Live, file: HugeFile, offset: int, advice: int | None = None) -> None:
    memory = map_file(live, file.actor, file.descriptor, 2)
    if advice is not None:
        memory.advise(advice)
    memory.actor.write(memory.address + offset // WORD * WORD, 1)
    memory.unmap()


def _touch_advised(live: Live, file: HugeFile, offset: int) -> None:
    _touch(live, file, offset, MADV_HUGEPAGE)


def _expect_taken(live: Live, file: HugeFile, room: int, advised: bool) -> None:
    """Expect ``file`` to have a huge page, or no more than the ``room`` up to its end. Raises KnownBug."""
    size, found = pmd_size(live), file.blocks
    is_smaller = live.kernel_version >= _SMALLER_SINCE and live.base_page < found <= room
    if room >= size or (advised and not is_smaller):
        if found != size:
            expect_no_node_short(live, size, 1)
        live.expect("st_blocks", size, found)
    else:
        is_within = 0 < found <= room
        known = {Quirk.WITHIN_SIZE_PASSED: False} if found == size else None
        live.expect(f"whether st_blocks, {found}, is at most the {room} bytes to its end", True, is_within, known)


@SHARED.case(
    "a hole in huge pages ends where it ends, inside a base page, too, at an end of one or over both: no word beside it"
    " changes, whoever makes it",
    "fallocate(2) FALLOC_FL_PUNCH_HOLE; mm/shmem.c shmem_undo_range(); mm/truncate.c truncate_inode_partial_folio()",
)
def holes_at_any_place(live: Live) -> None:
    let_only_pmd_inherit(live)
    point = mount_tmpfs(live, "always")
    size, base = pmd_size(live), live.base_page
    places = (
        *((0, base), (size - base, base), (0, size - base), (base, size - base), (size - base, 2 * base)),
        *((WORD, base), (base + WORD, size - 2 * base), (size - WORD, 2 * WORD), (WORD, 2 * size - 2 * WORD)),
    )
    for offset, length in places:
        path, end = f"{point}/{offset}-{length}", offset + length
        memory = filled_file(live, path, 2)
        # another process, which has none of it mapped
        actor = live.actor()
        hole = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
        actor.call("fallocate", live.open(actor, path), hole, offset, length)
        with live.about(f"a hole of {length} bytes at {offset}"):
            live.expect("words in front of it that changed", 0, memory.wrong(0, offset))
            live.expect("words behind it that changed", 0, memory.wrong(end, memory.length - end))
            live.expect("words in it that are not zero", 0, memory.nonzero(offset, length))
        for one in (memory.actor, actor):
            one.end()


@SHARED.case(
    "a hole in a part of a huge page is zero and the rest holds what it held; a hole of a whole one gives it back",
    "madvise(2) MADV_REMOVE; mm/shmem.c shmem_undo_range(); mm/truncate.c truncate_inode_partial_folio()",
)
def holes(live: Live) -> None:
    let_only_pmd_inherit(live)
    point = mount_tmpfs(live, "always")
    base = live.base_page
    for first, length in ((0, 2 * base), (3 * base, base), (pmd_size(live) // 2, pmd_size(live) // 2)):
        memory = filled_file(live, f"{point}/{first}", 1)
        memory.actor.call("madvise", memory.at(0) + first, length, mmap.MADV_REMOVE)
        _expect_hole(live, memory, first, length)
    memory = filled_file(live, f"{point}/whole", 3)
    memory.advise(mmap.MADV_REMOVE, 1, 1)
    live.expect("ShmemPmdMapped beside a hole", 2 * memory.size, memory.smaps().shmem_pmd_mapped)
    live.expect("Rss beside a hole", 2 * memory.size, memory.smaps().rss)
    _expect_hole(live, memory, memory.size, memory.size)


@SHARED.case(
    "a file that is made shorter within a huge page and longer again is zero behind the shorter end, and what it had"
    " there is room of its mount again",
    "ftruncate(2); statfs(2); mm/shmem.c shmem_setattr(), shmem_uncharge(); mm/truncate.c"
    " truncate_inode_partial_folio()",
)
def shorter_and_longer(live: Live) -> None:
    # khugepaged has what is cut off be memory of the file again
    let_rest(live)
    let_only_pmd_inherit(live)
    point = mount_tmpfs(live, "always")
    size, base = pmd_size(live), live.base_page
    room = live.host.file_system(point).free_blocks
    # at an end of a base page, of all but one, and of the huge page, and within one
    for end in (base, size // 2 + base // 2, size // 2 + base, size - base, size, size + WORD):
        memory = filled_file(live, f"{point}/{end}", 2)
        file = live.open(memory.actor, f"{point}/{end}", os.O_RDWR)
        memory.actor.call("ftruncate", file, end)
        kept = -(-end // base)
        live.expect(f"blocks that a file of {end} bytes takes", kept, room - live.host.file_system(point).free_blocks)
        memory.actor.call("ftruncate", file, memory.length)
        _expect_hole(live, memory, end, memory.length - end)
        memory.actor.call("ftruncate", file, 0)
        live.expect("blocks that it takes without a byte", 0, room - live.host.file_system(point).free_blocks)


@SHARED.case(
    "st_blksize of a file is a huge page where every file of its tmpfs gets them, else a base page",
    "stat(2) st_blksize; mm/shmem.c shmem_getattr()",
    since="5.15",  # before, any huge= of a mount but never made it a huge page
)
def preferred_block_size(live: Live) -> None:
    let_only_pmd_inherit(live)
    for of_mount, huge in (("always", True), ("never", False), ("advise", False)):
        point = mount_tmpfs(live, of_mount)
        actor = live.actor()
        descriptor = live.open(actor, f"{point}/file")
        expected = pmd_size(live) if huge else live.base_page
        live.expect(f"st_blksize with huge={of_mount}", expected, HugeFile(live, actor, descriptor).block_size)


def _expect_hole(live: Live, memory: Memory, first: int, length: int) -> None:
    """Expect ``length`` bytes from offset ``first`` on to be zero, and all other words as they were filled."""
    live.expect("words of the hole that are not zero", 0, memory.nonzero(first, length))
    behind = memory.length - first - length
    wrong = memory.actor.check(memory.at(0), first, WORD, 1) if first else 0
    if behind:
        end = first + length
        wrong += memory.actor.check(memory.at(0) + end, behind, WORD, 1 + end)
    live.expect("words beside the hole that changed", 0, wrong)


def _expect_within_size(live: Live, memory: Memory, size: int, known: Mapping[Quirk, object] | None = None) -> None:
    """Expect a huge page where the file has ``size`` bytes, unless that is less than the huge page. Raises KnownBug."""
    if size >= memory.size:
        expect_shared(live, memory, True, "a block within the file")
        return
    with_blocks(live, memory.size, 1)
    memory.touch()
    live.expect("ShmemPmdMapped of half a block", 0, memory.smaps().shmem_pmd_mapped, known)
    # no more than the file is long, but for the page at its end
    live.expect("Rss of half a block", True, memory.smaps().rss <= size)


def _file(live: Live, path: str, advice: int | None) -> Memory:
    memory = map_start_of_file(live, path)
    if advice is not None:
        memory.advise(advice)
    return memory


class ThpSharedMemory(LiveTest):
    def test_shared_memory(self) -> None:
        self.run_area(SHARED)
