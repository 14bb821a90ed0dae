"""How much address space a process has of each kind, as its mappings go in parts: data, stacks, code, and locked."""

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from hugepage_qa.cases.address_space import CODE, address_space, expect_as_mapped
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.cases.thp_policy import set_policy
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE, MAP_FIXED, MAP_GROWSDOWN
from hugepage_qa.plugins.avocado_test import LiveTest

MAPPED_BY_KIND = Area("accounting/mapped-by-kind", sizes=Sizes.ONCE)

_PAGES = 8
#: of these it is touched, where it may be written: one is mapped over, and one is there to the end
_TOUCHED = 4, 5
_NO_ACCESS, _PRIVATE, _SHARED = 0, mmap.MAP_PRIVATE, mmap.MAP_SHARED
_CODE = mmap.PROT_READ | mmap.PROT_EXEC
_LOCKED = "VmLck"
_LINES = "VmData", "VmStk", CODE, _LOCKED


@dataclass(frozen=True)
class Kind:
    """Anonymous memory as it is mapped, and the line of status that counts it; None where only VmSize does."""

    name: str
    line: str | None
    prot: int
    flags: int
    advice: int = MADV_HUGEPAGE


_KINDS = (
    Kind("private", "VmData", READ_WRITE, _PRIVATE),
    Kind("private base pages", "VmData", READ_WRITE, _PRIVATE, MADV_NOHUGEPAGE),
    Kind("private, that may be executed, too", "VmData", READ_WRITE | mmap.PROT_EXEC, _PRIVATE),
    Kind("private, only read", None, mmap.PROT_READ, _PRIVATE),
    Kind("private, without access", None, _NO_ACCESS, _PRIVATE),
    Kind("shared", None, READ_WRITE, _SHARED),
    Kind("shared, only read", None, mmap.PROT_READ, _SHARED),
    Kind("code", CODE, _CODE, _PRIVATE),
    Kind("shared code", CODE, _CODE, _SHARED),
    Kind("a stack", "VmStk", READ_WRITE, _PRIVATE | MAP_GROWSDOWN),
    Kind("a stack of base pages", "VmStk", READ_WRITE, _PRIVATE | MAP_GROWSDOWN, MADV_NOHUGEPAGE),
    Kind("a stack, only read", "VmStk", mmap.PROT_READ, _PRIVATE | MAP_GROWSDOWN),
)


@MAPPED_BY_KIND.case(
    "what a process has mapped counts in VmData, VmStk, or VmExe and VmLib, as what it is, and in VmLck where it is"
    " locked, huge or not; what is unmapped, mapped over, moved over or cut off counts no more, a part or all, what is"
    " moved and what a child unmaps counts as before, and all are those of the mappings",
    "Documentation/filesystems/proc.rst VmData, VmStk, VmExe, VmLib, VmLck; mm/mmap.c vm_stat_account();"
    " mm/vma.c vms_complete_munmap_vmas(); mm/mremap.c",
)
def parts_that_go(live: Live) -> None:
    set_policy(live, "madvise")
    for kind in _KINDS:
        for locked in (False, True):
            with live.about(f"{kind.name}{', locked' if locked else ''}"):
                _expect_parts(live, kind, locked)


def _expect_parts(live: Live, kind: Kind, locked: bool) -> None:
    """Have one part after the other go of a mapping of this ``kind``, and expect the rest alone to be counted."""
    actor, size = live.actor(), pmd_size(live)
    memory = Memory(live, actor, room_for(actor, _PAGES, size), _PAGES, size)
    elsewhere = room_for(actor, 1, size)
    over = Memory(live, actor, room_for(actor, 1, size), 1, size)
    before = address_space(live, actor)
    shorter = partial(actor.call, "mremap", memory.at(6), 2 * size, size, 0)
    moved = memory.part(1)
    steps: tuple[tuple[str, int, Callable[[], object]], ...] = (
        ("mapped", 8, partial(_map, memory, kind, locked)),
        ("a hole", 7, partial(memory.unmap, 2, 1)),
        ("mapped over", 6, partial(_map_nothing, memory.part(5))),
        ("moved over", 5, partial(over.moved_to, memory.address)),
        ("the end cut off", 4, shorter),
        ("moved elsewhere", 4, partial(moved.moved_to, elsewhere)),
        ("unmapped by a child", 4, partial(_unmap_in_a_child, memory)),
        ("unmapped where it was moved to", 3, partial(actor.call, "munmap", elsewhere, size)),
        ("unmapped before and behind a hole", 2, partial(memory.unmap, 1, 3)),
        ("unmapped", 0, memory.unmap),
    )
    for name, pages, step in steps:
        step()
        more = dict.fromkeys(_LINES, 0)
        if kind.line:
            more[kind.line] = pages * size
        if locked:
            more[_LOCKED] = pages * size
        now = address_space(live, actor)
        live.expect(f"more than before, {name}", more, {line: now[line] - before[line] for line in _LINES})
        if pages in (_PAGES, 2, 0):
            expect_as_mapped(live, actor)
    actor.end()


def _map(memory: Memory, kind: Kind, locked: bool) -> None:
    memory.actor.mmap(memory.length, kind.prot, kind.flags | mmap.MAP_ANONYMOUS | MAP_FIXED, address=memory.address)
    memory.advise(kind.advice)
    if locked:
        memory.lock_on_fault()
    if kind.prot & mmap.PROT_WRITE:
        for page in _TOUCHED:
            memory.touch(page)


def _map_nothing(memory: Memory) -> None:
    memory.actor.mmap(memory.length, _NO_ACCESS, _PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED, address=memory.address)


def _unmap_in_a_child(memory: Memory) -> None:
    child = memory.fork()
    child.unmap()
    child.actor.end()


class MappedByKind(LiveTest):
    def test_mapped_by_kind(self) -> None:
        self.run_area(MAPPED_BY_KIND)
