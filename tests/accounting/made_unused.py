"""Pages that clear_refs makes unused, whoever has used them, and that are used again: what smaps has as Referenced."""

import os
from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import CLEAR_REFS_ALL, CLEAR_REFS_MAPPED, clear_refs
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.reached_from_outside import read_of_another, word_read_by, write_from_outside
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, mapped_in_parts
from hugepage_qa.cases.thp_shared_memory import (
    expect_mapped_whole,
    map_file,
    mount_tmpfs,
    shared_base_pages,
    shared_huge_pages,
)
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

MADE_UNUSED = Area("accounting/made-unused", sizes=Sizes.ONCE)


@MADE_UNUSED.case(
    "clear_refs makes pages of files unused, huge pages and base pages, whoever has used them how: who has them mapped,"
    " write(2), read(2), another process that reads its memory, or one that had them mapped",
    "Documentation/filesystems/proc.rst Referenced, clear_refs; fs/proc/task_mmu.c clear_refs_pte_range()",
)
def unused_whoever_used_it(live: Live) -> None:
    let_nobody_else_act(live)
    for huge, what, use in product(("always", "never"), (CLEAR_REFS_ALL, CLEAR_REFS_MAPPED), _USES):
        actor = live.actor()
        descriptor = live.open(actor, f"{mount_tmpfs(live, huge)}/file")
        actor.call("ftruncate", descriptor, pmd_size(live))
        with_blocks(live, pmd_size(live), int(huge == "always"))
        # the first use of a page is that of who brings it
        use(live, actor, descriptor)
        memory = map_file(live, actor, descriptor, 1)
        memory.fill()
        with live.about(f"huge={huge}, {use.__name__.strip('_')}, clear_refs {what}"):
            expect_mapped_whole(live, memory, int(huge == "always"), f"huge={huge}")
            use(live, actor, descriptor)
            live.expect("Referenced", memory.length, memory.smaps().fields["Referenced"])
            clear_refs(live, memory, what)
            live.expect("Referenced when it was cleared", 0, memory.smaps().fields["Referenced"])
            memory.expect_filled()
        actor.end()


@MADE_UNUSED.case(
    "a page that is unused since clear_refs was written is Referenced once it is written from outside, wherever in it,"
    " and no page beside it is: a base page, a huge page mapped whole or in parts, private or shared, by"
    " process_vm_writev(2) and /proc/PID/mem, of another process and of its own",
    "Documentation/filesystems/proc.rst Referenced, clear_refs; mm/gup.c FOLL_TOUCH, follow_page_pte();"
    " mm/huge_memory.c touch_pmd()",
)
def used_from_outside(live: Live) -> None:
    let_nobody_else_act(live)
    base, size = live.base_page, pmd_size(live)
    kinds: tuple[tuple[Callable[[Live, int], Memory], range], ...] = (
        (base_pages, range(base, base + 1)),
        (huge_pages, range(size, size + 1)),
        # it is the page that is marked as used, and not how a part of it is mapped (follow_page_pte())
        (mapped_in_parts, range(base, size + 1)),
        (shared_base_pages, range(base, base + 1)),
        (shared_huge_pages, range(size, size + 1)),
    )
    for make, used in kinds:
        memory, other = make(live, 3), live.actor()
        # before it is written: the machine may forbid both
        live.expect("what another one reads", 1, word_read_by(live, other, memory, 0))
        for writer, by_file, place in product((other, memory.actor), (False, True), _places(live)):
            what = f"{make.__name__.replace('_', ' ')}, by its own process {writer is memory.actor}"
            # as ``fill`` leaves it
            word = live.host.uapi.pack("Q", 1 + size + place)
            write = partial(write_from_outside, live, writer, memory, size + place, word, by_file=by_file)
            with live.about(f"{what}, by /proc/PID/mem {by_file}, at {place}"):
                _expect_used(live, memory, write, used)
        memory.expect_filled()
        for actor in (other, memory.actor):
            actor.end()


def _expect_used(live: Live, memory: Memory, write: Callable[[], None], used: range) -> None:
    """Expect as many bytes of memory that nobody has used to be Referenced after a word of it was written."""

    def referenced() -> tuple[int, int]:
        clear_refs(live, memory, CLEAR_REFS_ALL)
        before = _referenced(memory)
        write()
        return before, _referenced(memory)

    # memory that is short is looked through, and what was used loses its mark
    before, found = live.host.last_attempt(referenced, lambda told: not told[0] and told[1] in used)
    live.expect("Referenced when it was cleared", 0, before)
    live.expect(f"whether Referenced, {found} bytes, is {used[0]} to {used[-1]}", True, found in used)


def _referenced(memory: Memory) -> int:
    return sum(mapping.fields["Referenced"] for mapping in memory.mappings())


def _places(live: Live) -> tuple[int, ...]:
    """Return offsets of the first, the last and some other base page of a huge page."""
    size, base = pmd_size(live), live.base_page
    return 0, base, size // 2, size - base


def _mapped(_live: Live, _actor: Actor, _descriptor: int) -> None:
    pass


def _written(live: Live, actor: Actor, descriptor: int) -> None:
    for offset in _places(live):
        # as ``fill`` leaves it
        actor.call("pwrite64", descriptor, live.host.uapi.pack("Q", 1 + offset), WORD, offset)


def _read(live: Live, actor: Actor, descriptor: int) -> None:
    for offset in _places(live):
        actor.call("pread64", descriptor, bytes(WORD), WORD, offset)


def _read_by_another(live: Live, actor: Actor, descriptor: int) -> None:
    other, memory = live.actor(), map_file(live, actor, descriptor, 1)
    there = map_aligned(live, 1, memory.size, actor=other)
    local, remote = (live.host.uapi.pack("2Q", each.address, memory.size) for each in (there, memory))
    live.expect("bytes that another reads", memory.size, read_of_another(live, other, actor.pid, local, remote))
    other.end()
    memory.unmap()


def _mapped_by_another(live: Live, actor: Actor, descriptor: int) -> None:
    other = live.actor()
    memory = map_file(live, other, live.open(other, f"/proc/{actor.pid}/fd/{descriptor}", os.O_RDWR), 1)
    memory.touch()
    memory.unmap()
    other.end()


_USES = (_mapped, _written, _read, _read_by_another, _mapped_by_another)


class MadeUnused(LiveTest):
    def test_made_unused(self) -> None:
        self.run_area(MADE_UNUSED)
