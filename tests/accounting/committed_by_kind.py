"""How much of memory is committed for mappings of each kind: mapped and moved over by others, and made writable."""

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby, product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.commit_policy import need_noreserve
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.kernel.uapi import MAP_FIXED
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

COMMITTED_BY_KIND = Area("accounting/committed-by-kind", sizes=Sizes.ONCE)

#: kinds of anonymous memory: without access, only read, with MAP_NORESERVE, private and shared memory that is written
_NO_ACCESS, _READ_ONLY, _NOT_RESERVED, _PRIVATE, _SHARED = "-rnps"
#: those that a word is stored in
_STORED = _NOT_RESERVED, _PRIVATE, _SHARED
#: mappings side by side, a letter for each huge page; from which one on something else comes over them, and its kind
_COVERED = (
    ("pppp", 0, "pppp"),
    ("pppp", 0, "pp"),
    ("pppp", 1, "pp"),
    ("pppp", 2, "pp"),
    ("pp--", 1, "pp"),
    ("--pp", 1, "pp"),
    ("pppp", 1, "rr"),
    ("pppp", 1, "nn"),
    ("pppp", 1, "ss"),
    ("rrrr", 1, "pp"),
    ("nnnn", 1, "pp"),
    ("prnp", 0, "pppp"),
    ("pr-p", 0, "pppp"),
    ("prpn", 1, "pp"),
    ("prnp", 0, "rrrr"),
    ("pssp", 0, "pppp"),
    ("pssp", 1, "ss"),
    ("rssr", 0, "rrrr"),
)
#: those of which a part, or all, is made writable: its first huge page and how many of them
_MADE_WRITABLE, _PARTS = 3, ((0, 3), (0, 1), (1, 1), (2, 1))


@dataclass(frozen=True)
class Covered:
    """Mappings side by side, what of them something else comes over, and such a mapping, elsewhere."""

    mapped: Memory
    part: Memory
    other: Memory
    kind: str


@COMMITTED_BY_KIND.case(
    "of mappings that something else is mapped or moved over, or that are unmapped, in part or as a whole, the part"
    " that is gone is committed no more: private memory that may be written, and shared memory of which all is gone;"
    " what is mapped there is committed if it is such memory, and what is moved there is as it was; all others hold"
    " what they held",
    "Documentation/filesystems/proc.rst Committed_AS; mmap(2) MAP_FIXED; mremap(2) MREMAP_FIXED; mm/vma.c"
    " __mmap_setup(), vms_complete_munmap_vmas()",
)
def covered_by_others(live: Live) -> None:
    let_nobody_else_act(live)
    need_noreserve(live)
    actors = list[Actor]()
    for kinds, first, over in _COVERED:
        gone = -_committed(live, kinds[first : first + len(over)])
        ways: tuple[tuple[str, Callable[[Covered], None], int], ...] = (
            (f"mapped over by {over}", partial(_map_over, live), gone + _committed(live, over)),
            (f"moved over by {over}", _move_over, gone),
            (f"{len(over)} unmapped", _unmap, gone),
        )
        for name, act, change in ways:
            with live.about(f"{kinds}, from {first} on {name}"):
                prepare = partial(_covered, live, actors, kinds, first, over)
                covered = expect_change(live, {"Committed_AS": change}, prepare, act)
                left = [
                    page for page, kind in enumerate(kinds) if kind in _STORED and not first <= page < first + len(over)
                ]
                live.expect("what the others hold", [1 + page for page in left], [*map(covered.mapped.read, left)])


@COMMITTED_BY_KIND.case(
    "private memory that nobody may write is committed where, and as soon as, mprotect(2) makes it writable, all of it"
    " or a part, and stays so when it may be read alone again, until it is unmapped; memory of MAP_NORESERVE is not,"
    " and of shared memory, which is committed since it was mapped, nothing changes",
    "mprotect(2); mmap(2) MAP_NORESERVE; Documentation/mm/overcommit-accounting.rst; mm/mprotect.c mprotect_fixup()",
)
def made_writable(live: Live) -> None:
    let_nobody_else_act(live)
    need_noreserve(live)
    actors, size = list[Actor](), pmd_size(live)
    for kind, prot, (first, pages) in product((_NOT_RESERVED, _PRIVATE, _SHARED), (0, mmap.PROT_READ), _PARTS):
        committed = pages * size if kind == _PRIVATE else 0
        # what is shared goes when all of it is unmapped
        gone = pages * size if kind == _SHARED and pages == _MADE_WRITABLE else committed
        for name, act, change in (
            ("made writable", partial(_protect, READ_WRITE), committed),
            ("read alone again", partial(_protect, prot), 0),
            ("unmapped", Memory.unmap, -gone),
        ):
            with live.about(f"{kind}, mapped with {prot}, {pages} huge pages from {first} on {name}"):
                is_writable = name != "made writable"
                prepare = partial(_unwritable, live, actors, kind, prot, (first, pages), is_writable)
                memory = expect_change(live, {"Committed_AS": change}, prepare, act)
                if name == "made writable":
                    memory.touch()
                    live.expect("what is stored there then", 1, memory.read())


def _unwritable(
    live: Live, actors: list[Actor], kind: str, prot: int, part: tuple[int, int], is_writable: bool
) -> Memory:
    """Return a ``part``, first page and count, of memory of ``kind`` that was mapped with ``prot``.

    It ``is_writable`` already, or not yet. Its actor is the only one of ``actors`` then, as ``_covered`` has it.
    """
    _end(actors)
    actor, size = live.actor(), pmd_size(live)
    actors.append(actor)
    memory = Memory(live, actor, room_for(actor, _MADE_WRITABLE, size), _MADE_WRITABLE, size)
    _map_kind(live, memory, kind, prot)
    found = memory.part(*part)
    if is_writable:
        found.protect(READ_WRITE)
        found.touch()
    return found


def _protect(prot: int, memory: Memory) -> None:
    memory.protect(prot)


def _committed(live: Live, kinds: str) -> int:
    return sum(kind in (_PRIVATE, _SHARED) for kind in kinds) * pmd_size(live)


def _covered(live: Live, actors: list[Actor], kinds: str, first: int, over: str) -> Covered:
    """Return mappings of a new actor, which is the only one of ``actors`` then: those that it had end."""
    _end(actors)
    actor = live.actor()
    actors.append(actor)
    memory, other = (_map(live, actor, each) for each in (kinds, over))
    return Covered(memory, memory.part(first, len(over)), other, over[0])


def _end(actors: list[Actor]) -> None:
    while actors:
        actors.pop().end()


def _map(live: Live, actor: Actor, kinds: str) -> Memory:
    """Map memory of these ``kinds`` side by side, those that are alike by one mapping; each has a word."""
    size = pmd_size(live)
    memory = Memory(live, actor, room_for(actor, len(kinds), size), len(kinds), size)
    first = 0
    for kind, alike in groupby(kinds):
        part = memory.part(first, len([*alike]))
        _map_kind(live, part, kind)
        first += part.pages
    for page, kind in enumerate(kinds):
        if kind in _STORED:
            memory.touch(page, 1 + page)
    return memory


def _map_kind(live: Live, memory: Memory, kind: str, prot: int | None = None) -> None:
    """Map anonymous memory of ``kind`` there, with the protection that it has, or with another one."""
    if prot is None:
        prot = {_NO_ACCESS: 0, _READ_ONLY: mmap.PROT_READ}.get(kind, READ_WRITE)
    flags = mmap.MAP_SHARED if kind == _SHARED else mmap.MAP_PRIVATE
    if kind == _NOT_RESERVED:
        flags |= live.host.uapi.map_noreserve
    memory.actor.mmap(memory.length, prot, flags | mmap.MAP_ANONYMOUS | MAP_FIXED, address=memory.address)


def _map_over(live: Live, covered: Covered) -> None:
    _map_kind(live, covered.part, covered.kind)


def _unmap(covered: Covered) -> None:
    covered.part.unmap()


def _move_over(covered: Covered) -> None:
    covered.other.moved_to(covered.part.address)


class CommittedByKind(LiveTest):
    def test_committed_by_kind(self) -> None:
        self.run_area(COMMITTED_BY_KIND)
