"""What the kernel tells of the frames of huge pages: whether they were used since somebody has marked them as idle."""

import os

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, read_entries
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


def _is_idle(descriptor: int, frame: int, actor: Actor) -> int:
    return read_entries(actor, descriptor, frame // _BITS, 1)[0] >> frame % _BITS & 1


class IdlePages(LiveTest):
    """Huge pages that are idle.

    :avocado: enable
    """

    def test_idle_pages(self) -> None:
        """Every case, once for the machine."""
        self.run_area(IDLE_PAGES)
