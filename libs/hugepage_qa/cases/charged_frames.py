"""Who is charged for the frames of memory, huge or not: the memory control group that /proc/kpagecgroup shows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hugepage_qa.cases.control_group import ControlGroup
from hugepage_qa.cases.frames import kpagecgroup
from hugepage_qa.cases.hugetlb_files import open_directory
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME, Memory
from hugepage_qa.cases.memory_policy import MOVE_STRICTLY, bind, node_of
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, need_blocks, pmd_size
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.process.actor import Actor
from hugepage_qa.version import KernelVersion

#: page_cgroup_ino() asks the folio (ec342603e6d7); before, tails were of no group
_TAILS_SINCE = KernelVersion(6, 4)
_NEW_VALUE = 77


@dataclass(frozen=True)
class Kind:
    """A page of ``pmd_size`` that is huge or not, shared or not."""

    shared: bool
    huge: bool

    def map(self, live: Live, actor: Actor) -> Memory:
        """Map one such page."""
        advice = MADV_HUGEPAGE if self.huge else MADV_NOHUGEPAGE
        return map_aligned(live, 1, pmd_size(live), shared=self.shared, actor=actor, advice=advice)

    def fill(self, live: Live, page: Memory) -> None:
        """Fill a page. Raises CannotRun where there is no free block for it."""
        page.fill()
        if self.huge:
            need_blocks(live, page)
        live.expect("bytes in huge pages", page.size if self.huge else 0, mapped_huge(page))


KINDS = tuple(Kind(shared, huge) for shared in (False, True) for huge in (True, False))


def expect_group(live: Live, page: Memory, group: ControlGroup | None, *, huge: bool) -> None:
    """Expect the first base page of a page, the second and the last one to be shown as the group's, or nobody's."""
    places = page.address, page.address + live.base_page, page.at(1) - live.base_page
    reader = live.actor()
    inode = _inode(live, group) if group else 0
    first, *others = kpagecgroup(live, reader, [entry & FRAME for entry in page.pagemap(places)])
    reader.end()
    live.expect("group of the first base page", inode, first)
    if huge and live.kernel_version < _TAILS_SINCE:
        others = [other for other in others if other]
    live.expect("other groups among those of the others", set(), set(others) - {inode})


def expect_groups_to_pay(live: Live, kind: Kind, outer: ControlGroup) -> None:
    """Expect the group of the process that touches a page first to pay, whatever becomes of the process and the page.

    When that group is gone the one above it is shown, and when that is, too, the one above both.
    """
    above, second = outer.child("above"), outer.child("second")
    first = above.child("first")
    actor = first.actor()
    page, other = kind.map(live, actor), kind.map(live, actor)
    kind.fill(live, page)
    with live.about("touched by a process in the first group"):
        expect_group(live, page, first, huge=kind.huge)
    second.add(actor)
    kind.fill(live, other)
    with live.about("the process has moved to the second group"):
        expect_group(live, page, first, huge=kind.huge)
        expect_group(live, other, second, huge=kind.huge)
    for name, act in _changes(live, page):
        act()
        with live.about(name):
            expect_group(live, page, first, huge=kind.huge)
            page.expect_filled()
    child = page.seen_by(actor.fork())
    # a copy of a huge page is one of base pages
    child.actor.write(child.at(1) - live.base_page, _NEW_VALUE)
    with live.about("a child in the second group has written to the last base page"):
        expect_group(live, page, first, huge=kind.huge)
        if not kind.shared:
            written = Memory(live, child.actor, child.at(1) - live.base_page, 1, live.base_page)
            (frame,) = written.frames()
            live.expect("group of the copy", _inode(live, second), kpagecgroup(live, actor, [frame])[0])
    child.actor.end()
    for gone, name, left in ((first, "the first group", above), (above, "the group above it, too,", outer)):
        gone.remove()
        gone.wait_until_offline()
        with live.about(f"{name} is gone"):
            expect_group(live, page, left, huge=kind.huge)
            expect_group(live, other, second, huge=kind.huge)
    actor.end()
    second.remove()


def _inode(live: Live, group: ControlGroup) -> int:
    actor = live.actor()
    inode = open_directory(live, actor, group.path).status().inode
    actor.end()
    return inode


def _changes(live: Live, page: Memory) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what becomes of a page, and leaves its group as it is."""
    yield "locked", page.lock
    yield "unlocked", page.unlock
    if live.has_several_nodes:
        other = next(node for node in live.nodes if node != node_of(page))
        yield "moved to another node", lambda: bind(page, [other], MOVE_STRICTLY)
