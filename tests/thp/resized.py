"""Huge pages whose mapping mremap(2) makes longer or shorter, maps once more, or leaves as it is."""

import errno
import mmap
import signal
from dataclasses import dataclass

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act, let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.thp_memory import need_blocks, pmd_size, room_for
from hugepage_qa.cases.thp_policy import advised, huge_pages, set_policy
from hugepage_qa.cases.thp_shared_memory import shared_base_pages, shared_huge_pages
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MAP_FIXED, MREMAP_DONTUNMAP, MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

RESIZED = Area("thp/resized", sizes=Sizes.ONCE)

DOC = "mremap(2)"
_PAGES = 3
_NEW_VALUE = 77
_NO_SUCH_FLAG = 1 << 16


@dataclass(frozen=True)
class _Change:
    """``old`` bytes from ``offset`` on of what is mapped, which ends there, are to be ``new``."""

    offset: int
    old: int
    new: int

    @property
    def mapped(self) -> int:
        """How many bytes are mapped before."""
        return self.offset + self.old


@RESIZED.case(
    "a mapping of huge pages, or its end, that is made longer or shorter, to the base page, holds what it held, is zero"
    " behind that, and is where it was if there is room, elsewhere if it may, and else, ENOMEM, as it was; nothing is"
    " left in its old place or of what was cut off, and nothing beside it changes",
    f"{DOC}; mm/mremap.c mremap_to(), move_vma(), vma_expandable()",
)
def longer_and_shorter(live: Live) -> None:
    let_rest(live)
    fixed = MREMAP_MAYMOVE | MREMAP_FIXED
    for change in _changes(pmd_size(live), live.base_page):
        where = [(True, 0), (True, fixed)]
        if change.new > change.old:
            where += [(False, 0), (True, MREMAP_MAYMOVE), (False, MREMAP_MAYMOVE)]
        for has_room, flags in where:
            what = f"{change.old} bytes at {change.offset} to {change.new}, flags {flags}"
            with live.about(f"{what}, {'room' if has_room else 'no room'} behind it"):
                _expect_resized(live, change, has_room, flags)


def _changes(size: int, base: int) -> tuple[_Change, ...]:
    half = size // 2
    return (
        _Change(0, 2 * size, 2 * size + base),
        _Change(0, size + base, 3 * size),
        _Change(0, 2 * size - base, 2 * size + half),
        _Change(half, size, 2 * size + base),
        _Change(size, base, size),
        _Change(0, 2 * size, 2 * size - base),
        _Change(0, 2 * size, size),
        _Change(0, 2 * size, base),
        _Change(size + base, size - base, half),
    )


def _expect_resized(live: Live, change: _Change, has_room: bool, flags: int) -> None:
    actor = live.actor()
    memory = _filled(live, actor, change.mapped)
    before = memory.address + change.offset
    target = advised(live, _PAGES + 1, actor=actor)
    target.fill(_NEW_VALUE)
    if has_room:
        actor.call("munmap", memory.address + change.mapped, _PAGES * target.size)
    place = target.address + live.base_page if flags & MREMAP_FIXED else 0
    is_longer = change.new > change.old
    if is_longer and not has_room and not flags:
        live.expect_errno(errno.ENOMEM, actor.call, "mremap", before, change.old, change.new, 0)
        _expect_words(live, memory, change.mapped)
        _expect_words(live, target, target.length, _NEW_VALUE)
        live.expect_signal(signal.SIGSEGV, actor.read, memory.address + change.mapped)
        actor.end()
        return
    after = actor.call("mremap", before, change.old, change.new, flags, place)
    if flags & MREMAP_FIXED:
        live.expect("where it is", place, after)
    else:
        live.expect("it is where it was", has_room or not is_longer, after == before)
    kept = min(change.old, change.new)
    live.expect("words that changed", 0, actor.check(after, kept, WORD, 1 + change.offset))
    live.expect("words of what came that are not zero", 0, actor.nonzero(after + kept, change.new - kept))
    if after == before:
        live.expect_signal(signal.SIGSEGV, actor.read, after + change.new)
    else:
        for offset in (0, change.old - WORD):
            live.expect_signal(signal.SIGSEGV, actor.read, before + offset)
    live.expect("words in front of it that changed", 0, memory.wrong(0, change.offset))
    if flags & MREMAP_FIXED:
        _expect_words(live, target, live.base_page, _NEW_VALUE)
        end = live.base_page + change.new
        live.expect("words behind it that changed", 0, target.wrong(end, target.length - end, _NEW_VALUE))
    else:
        _expect_words(live, target, target.length, _NEW_VALUE)
    actor.fill(after, change.new, WORD, _NEW_VALUE)
    live.expect("words that were written and changed", 0, actor.check(after, change.new, WORD, _NEW_VALUE))
    actor.end()


def _expect_words(live: Live, memory: Memory, length: int, value: int = 1) -> None:
    live.expect("words beside it, or of what was refused, that changed", 0, memory.wrong(0, length, value))


def _filled(live: Live, actor: Actor, length: int) -> Memory:
    """Return ``length`` bytes of filled memory, in huge pages as far as they go, behind which there is no room."""
    set_policy(live, "madvise")
    size, base = pmd_size(live), live.base_page
    with_blocks(live, size, _PAGES)
    # memory that may not be accessed is mapped around it
    address = room_for(actor, 2 * _PAGES, size)
    actor.mmap(length, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED, address=address)
    actor.call("madvise", address, length, MADV_HUGEPAGE)
    actor.fill(address, length, WORD, 1)
    memory = Memory(live, actor, address, length // base, base)
    whole = length // size * size
    found = memory.smaps().anon_huge_pages
    if found != whole:
        need_blocks(live, Memory(live, actor, address, whole // size, size))
    live.expect("AnonHugePages before", whole, found)
    return memory


@RESIZED.case(
    "mremap(2) with lengths, addresses or flags that it does not take is refused, EINVAL, and where something else or"
    " nothing is mapped in what is to be longer, EFAULT; it changes nothing then",
    f"{DOC} EINVAL, EFAULT; mm/mremap.c",
)
def refused(live: Live) -> None:
    let_rest(live)
    memory = huge_pages(live, _PAGES)
    actor, size, base, start = memory.actor, memory.size, live.base_page, memory.address
    target = advised(live, _PAGES, actor=actor)
    target.fill(_NEW_VALUE)
    there, fixed = target.address, MREMAP_MAYMOVE | MREMAP_FIXED
    kept = MREMAP_MAYMOVE | MREMAP_DONTUNMAP
    # of what was reserved to find room for it
    actor.call("munmap", memory.at(_PAGES), base)
    for number, (error, arguments) in enumerate(
        (
            (errno.EINVAL, (start + 1, size, size, MREMAP_MAYMOVE, 0)),
            (errno.EINVAL, (start, size, 0, MREMAP_MAYMOVE, 0)),
            (errno.EINVAL, (start, size, 0, 0, 0)),
            (errno.EINVAL, (start, size, size, _NO_SUCH_FLAG, 0)),
            (errno.EINVAL, (start, size, size, MREMAP_FIXED, there)),
            (errno.EINVAL, (start, size, size, MREMAP_DONTUNMAP, 0)),
            (errno.EINVAL, (start, size, 2 * size, kept, 0)),
            (errno.EINVAL, (start, size, size - base, kept, 0)),
            (errno.EINVAL, (start, size, size, fixed, there + 1)),
            (errno.EINVAL, (start, size, size, fixed, start)),
            (errno.EINVAL, (start, size, size, fixed, start + size - base)),
            (errno.EINVAL, (start + size, size, size, fixed, start + base)),
            (errno.EINVAL, (start, size, size, fixed, -size)),
            (errno.EINVAL, (start, 0, size, MREMAP_MAYMOVE, 0)),
            (errno.EFAULT, (start + 2 * size, 2 * size, 3 * size, MREMAP_MAYMOVE, 0)),
            (errno.EFAULT, (start + memory.length, base, 2 * base, MREMAP_MAYMOVE, 0)),
        )
    ):
        with live.about(f"row {number}"):
            live.expect_errno(error, actor.call, "mremap", *arguments)
            live.expect("AnonHugePages", memory.length, sum(each.anon_huge_pages for each in memory.all_mappings()))
            memory.expect_filled()
            target.expect_filled(_NEW_VALUE)


@RESIZED.case(
    "mremap(2) of no bytes of shared memory maps it once more, from the address on that is named, in huge pages and"
    " base pages: both mappings show the same, also what is written then, and one of them stays when the other one"
    " goes; of private memory it is EINVAL",
    f"{DOC}; mm/mremap.c mremap(), vma_to_resize()",
)
def mapped_once_more(live: Live) -> None:
    let_nobody_else_act(live)
    for make in (shared_huge_pages, shared_base_pages):
        memory = make(live, 2)
        actor, size = memory.actor, memory.size
        for offset, length in ((0, 2 * size), (size, size), (size // 2, size), (0, live.base_page)):
            with live.about(f"{make.__name__}, {length} bytes at {offset}"):
                memory.fill()
                room = room_for(actor, 2, size)
                flags = MREMAP_MAYMOVE | MREMAP_FIXED
                actor.call("mremap", memory.address + offset, 0, length, flags, room)
                live.expect("words that differ", 0, actor.check(room, length, WORD, 1 + offset))
                memory.expect_filled()
                actor.fill(room, length, WORD, _NEW_VALUE)
                found = actor.check(memory.address + offset, length, WORD, _NEW_VALUE)
                live.expect("words that were written there and differ", 0, found)
                live.expect("words beside it that changed", 0, memory.wrong(0, offset))
                actor.call("munmap", room, length)
                found = actor.check(memory.address + offset, length, WORD, _NEW_VALUE)
                live.expect("words that differ when it is gone", 0, found)
        actor.end()
    private = huge_pages(live)
    live.expect_errno(errno.EINVAL, private.actor.call, "mremap", private.address, 0, private.size, MREMAP_MAYMOVE)
    private.expect_filled()


class ThpResized(LiveTest):
    def test_resized(self) -> None:
        self.run_area(RESIZED)
