"""What is told of memory that moves to another node: whether it was used, written, and since when."""

from dataclasses import dataclass, replace
from itertools import cycle, product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import (
    CLEAR_REFS_ALL,
    CLEAR_REFS_SOFT_DIRTY,
    clear_refs,
    has_soft_dirty,
    keeps_use_when_split,
)
from hugepage_qa.cases.folio_layout import expect_folio
from hugepage_qa.cases.idle_bitmap import DOC as IDLE_DOC
from hugepage_qa.cases.idle_bitmap import IdleBitmap, let_uses_show
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME, SOFT_DIRTY, Memory
from hugepage_qa.cases.memory_policy import MOVES, bind, migrate
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import expect_all_huge, map_in_parts, set_policy, some_smaller_sizes
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import size_name
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

BITS_OF_MOVED = Area("numa/bits-of-moved", sizes=Sizes.ONCE)

_MOVE = "move_pages(2); mbind(2); migrate_pages(2); mm/rmap.c try_to_migrate_one(); mm/migrate.c remove_migration_pte()"
_HUGE = "mm/huge_memory.c set_pmd_migration_entry(), remove_migration_pmd()"
#: parts of the memory: what nobody has used since it was made unused, what was read, what was written
_UNUSED, _READ, _WRITTEN = range(3)
_PARTS = 3
#: of a part: its first base pages, some inside, and its last one
_SOME = 0, 1, 2, -1


@dataclass(frozen=True)
class _Kind:
    """Memory: private or shared, advised or not, mapped in parts or whole; or in ``smaller`` pages of so many bytes."""

    name: str
    shared: bool = False
    advice: int = MADV_NOHUGEPAGE
    in_parts: bool = False
    smaller: int = 0

    def make(self, live: Live, node: int) -> Memory:
        """Return filled memory of three parts on ``node``. Raises CannotRun where it has no huge pages for it."""
        set_policy(live, "never" if self.smaller else "madvise")
        live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise")
        if self.smaller:
            live.set_knob(f"{DIRECTORY}/{size_name(self.smaller)}/enabled", "always")
        advice = None if self.smaller else self.advice
        memory = map_aligned(live, _PARTS, pmd_size(live), shared=self.shared, advice=advice)
        bind(memory, [node])
        memory.fill()
        if self.advice == MADV_HUGEPAGE:
            expect_all_huge(live, memory, node=node)
        if self.smaller:
            expect_folio(live, memory, self.smaller, node)
        if self.in_parts:
            map_in_parts(live, memory)
        return memory


_KINDS = (
    _Kind("base pages"),
    _Kind("shared base pages", shared=True),
    _Kind("huge pages", advice=MADV_HUGEPAGE),
    _Kind("huge pages mapped in parts", advice=MADV_HUGEPAGE, in_parts=True),
    _Kind("shared huge pages", shared=True, advice=MADV_HUGEPAGE),
)


@BITS_OF_MOVED.case(
    "what was read or written since clear_refs was written is Referenced where it moves, and what was not is not; what"
    " was written is soft-dirty, and all of it as dirty and resident as before: base pages, huge pages whole and in"
    " parts, pages of smaller sizes, private and shared, by whichever call, there and back",
    f"Documentation/filesystems/proc.rst Referenced; {_MOVE}; {_HUGE}, since 2e3468778dbe",
    nodes=2,
    since="6.1",  # 2e3468778dbe
)
def used_and_written(live: Live) -> None:
    _need_kept_use(live)
    here, there = live.nodes[:2]
    differing = set[str]()
    for kind, by in product(_kinds(live), MOVES):
        if kind.name in differing:
            # so it is with each of the other calls
            continue
        seen = len(live.differences)
        memory = kind.make(live, here)
        has_written = has_soft_dirty(live, memory)
        _make_unused(live, memory, has_written=has_written)
        _use_parts(memory)
        with live.about(f"{kind.name}, {by}"):
            before = _Told.of(live, memory)
            written = len(_SOME) if has_written else before.soft_dirty
            live.expect(
                "Referenced, soft-dirty before", (2 * memory.size, written), (before.referenced, before.soft_dirty)
            )
            for source, target in ((here, there), (there, here)):
                _move_all(live, memory, by, source, target)
                sides = before, _Told.of(live, memory)
                if not _keeps_use(live, kind):
                    sides = replace(sides[0], referenced=0), replace(sides[1], referenced=0)
                live.expect(f"what is told of it on node {target}", *sides)
            memory.expect_filled()
        memory.actor.end()
        if len(live.differences) > seen:
            differing.add(kind.name)


@dataclass(frozen=True)
class _Told:
    """What smaps tells of memory, in bytes, and how many of some base pages that were written are soft-dirty."""

    rss: int
    referenced: int
    dirty: int
    soft_dirty: int

    @classmethod
    def of(cls, live: Live, memory: Memory) -> "_Told":
        mappings = memory.all_mappings()
        return cls(
            sum(mapping.rss for mapping in mappings),
            sum(mapping.fields["Referenced"] for mapping in mappings),
            sum(mapping.dirty for mapping in mappings),
            # what is dirty, and was not written since, may be soft-dirty when it was moved (pte_mkdirty() of x86)
            sum(bool(entry & SOFT_DIRTY) for entry in _some_entries(live, memory, _WRITTEN)),
        )


@BITS_OF_MOVED.case(
    "what was marked as idle is so where it moves until it is used, and what was used after it was marked is not: base"
    " pages, huge pages whole and in parts, pages of smaller sizes, private and shared",
    f"{IDLE_DOC}; {_MOVE}; {_HUGE}; mm/migrate.c folio_migrate_flags()",
    nodes=2,
    since="6.1",  # 2e3468778dbe
)
def idle_and_used(live: Live) -> None:
    bitmap = IdleBitmap(live)
    _need_kept_use(live)
    here, there = live.nodes[:2]
    for kind, by in zip(_kinds(live), cycle(MOVES)):
        with live.about(f"{kind.name}, {by}"):

            def looks(kind: _Kind = kind, by: str = by) -> list[list[bool]]:
                memory = kind.make(live, here)
                # those that a CPU has not yet put on the lists are passed over: whoever moves pages has that done
                migrate(memory.actor, there, here)
                bitmap.mark(frame for part in range(_PARTS) for frame in _some_frames(live, memory, part))
                before = _idle_parts(live, bitmap, memory)
                for part in (_READ, _WRITTEN):
                    let_uses_show(memory.part(part))
                _use_parts(memory)
                _move_all(live, memory, by, here, there)
                moved = _idle_parts(live, bitmap, memory)
                let_uses_show(memory)
                memory.expect_filled()
                used = _idle_parts(live, bitmap, memory)
                memory.actor.end()
                return [before, moved, used]

            wanted = [[True] * _PARTS, [part == _UNUSED for part in range(_PARTS)], [False] * _PARTS]
            # what somebody has a hold of when it is to be marked is passed over
            found = live.host.last_attempt(looks, wanted.__eq__)
            live.expect("parts that are idle: marked, moved when two were used, used", wanted, found)


def _move_all(live: Live, memory: Memory, by: str, source: int, target: int) -> None:
    """Move all of it, again where somebody had a hold of a part. Raises Failed where some never moves."""

    def moved() -> set[int]:
        MOVES[by](live, memory, source, target)
        return set(memory.numa_maps().nodes)

    found = live.host.last_look(moved, {target}.__eq__)
    if found != {target}:
        # each of the others would be waited for as long
        live.fail("nodes that it is on", {target}, found)


def _some_frames(live: Live, memory: Memory, part: int) -> list[int]:
    return [entry & FRAME for entry in _some_entries(live, memory, part)]


def _some_entries(live: Live, memory: Memory, part: int) -> list[int]:
    """Return what pagemap has of the first base page of a part, which a huge page begins with, and of some others."""
    return memory.pagemap(memory.at(part) + place * live.base_page % memory.size for place in _SOME)


def _idle_parts(live: Live, bitmap: IdleBitmap, memory: Memory) -> list[bool]:
    """Tell of each part whether some of its base pages are idle; one flag is for a page of whatever size."""
    parts = (_some_frames(live, memory, part) for part in range(_PARTS))
    return [any(bitmap.is_idle(frame) for frame in frames) for frames in parts]


def _need_kept_use(live: Live) -> None:
    """Have nobody else act. Raises CannotRun where what moves is unused, or nodes lack memory."""
    if not keeps_use_when_split(live):
        raise CannotRun("an entry of migration has no room for whether its page was used (PTE inversion)")
    let_nobody_else_act(live)
    need_memory(live, live.nodes[:2], 2 * _PARTS * pmd_size(live))


def _keeps_use(live: Live, kind: _Kind) -> bool:
    """Tell whether what moves is to be Referenced as before.

    On aarch64 all but huge pages that are mapped whole were unused when they had moved, on 6.12 and on 7.3: why is
    open. Others were not looked at.
    """
    is_whole = kind.advice == MADV_HUGEPAGE and not kind.in_parts
    return live.host.architecture == "x86_64" or (live.host.architecture == "aarch64" and is_whole)


def _kinds(live: Live) -> list[_Kind]:
    let_only_pmd_inherit(live)
    smaller = [_Kind(f"pages of {size >> 10} kB", smaller=size) for size, _path in some_smaller_sizes(live)]
    return [*_KINDS, *smaller]


def _make_unused(live: Live, memory: Memory, *, has_written: bool) -> None:
    clear_refs(live, memory, CLEAR_REFS_ALL)
    if has_written:
        # this one has the processor forget what it knows, and mark what is used from then on
        clear_refs(live, memory, CLEAR_REFS_SOFT_DIRTY)
    else:
        let_uses_show(memory)


def _use_parts(memory: Memory) -> None:
    memory.part(_READ).expect_filled(1 + _READ * memory.size)
    memory.part(_WRITTEN).fill(1 + _WRITTEN * memory.size)


class BitsOfMoved(LiveTest):
    def test_bits_of_moved(self) -> None:
        self.run_area(BITS_OF_MOVED)
