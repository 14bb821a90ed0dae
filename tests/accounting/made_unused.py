"""Pages of files that clear_refs makes unused, whoever has used them: what smaps tells as Referenced."""

import os
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import CLEAR_REFS_ALL, CLEAR_REFS_MAPPED, clear_refs
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD
from hugepage_qa.cases.read_from_outside import read_of_another
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_shared_memory import expect_mapped_whole, map_file, mount_tmpfs
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
