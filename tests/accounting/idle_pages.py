"""What the kernel tells of the frames of huge pages: whether they were used since somebody has marked them as idle."""

import os
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import CLEAR_REFS_ALL, CLEAR_REFS_MAPPED, clear_refs
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, read_entries, read_of_another
from hugepage_qa.cases.thp_memory import (
    expect_mapped_whole,
    let_only_pmd_inherit,
    map_aligned,
    map_file,
    mount_tmpfs,
    pmd_size,
)
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

IDLE_PAGES = Area("accounting/idle-pages", sizes=Sizes.ONCE)

_DIRECTORY, _BITMAP = "sys/kernel/mm/page_idle", "bitmap"
_BITS, _READ = 64, 1


@IDLE_PAGES.case(
    "a huge page that was marked as idle is so until it is used, and no longer then",
    "Documentation/admin-guide/mm/idle_page_tracking.rst; mm/page_idle.c page_idle_clear_pte_refs_one()",
)
def idle_huge_page(live: Live) -> None:
    if _BITMAP not in live.host.names(_DIRECTORY):
        raise CannotRun("this kernel has no CONFIG_IDLE_PAGE_TRACKING")
    let_rest(live)
    used, unused = huge_pages(live), huge_pages(live)
    frames = [memory.frames().pop() for memory in (used, unused)]
    watcher = live.actor()
    descriptor = live.open(watcher, f"/{_DIRECTORY}/{_BITMAP}", os.O_RDWR)
    for frame in frames:
        # the other bits of a word are left alone where they are 0
        mark = watcher.uapi.pack("Q", 1 << frame % _BITS)
        written = watcher.call("pwrite64", descriptor, mark, WORD, frame // _BITS * WORD)
        live.expect("bytes written", WORD, written)
    live.expect("whether both are idle", [1, 1], [_is_idle(descriptor, frame, watcher) for frame in frames])
    # the processor writes down a use where it has forgotten what it knew of the page
    used.protect(_READ)
    used.protect(READ_WRITE)
    used.expect_filled()
    live.expect("whether both are idle", [0, 1], [_is_idle(descriptor, frame, watcher) for frame in frames])
    live.expect("AnonHugePages", used.length, used.smaps().anon_huge_pages)


@IDLE_PAGES.case(
    "clear_refs makes pages of files unused, huge pages and base pages, whoever has used them how: who has them mapped,"
    " write(2), read(2), another process that reads its memory, or one that had them mapped",
    "Documentation/filesystems/proc.rst Referenced, clear_refs; fs/proc/task_mmu.c clear_refs_pte_range()",
)
def unused_whoever_used_it(live: Live) -> None:
    let_rest(live)
    let_only_pmd_inherit(live)
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


def _is_idle(descriptor: int, frame: int, actor: Actor) -> int:
    return read_entries(actor, descriptor, frame // _BITS, 1)[0] >> frame % _BITS & 1


class IdlePages(LiveTest):
    """Huge pages that are idle.

    :avocado: enable
    """

    def test_idle_pages(self) -> None:
        """Every case, once for the machine."""
        self.run_area(IDLE_PAGES)
