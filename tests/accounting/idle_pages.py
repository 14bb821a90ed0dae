"""What the kernel tells of the frames of huge pages: whether they were used since somebody has marked them as idle."""

from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import CLEAR_REFS_ALL, CLEAR_REFS_ANON, CLEAR_REFS_MAPPED, clear_refs
from hugepage_qa.cases.debugfs import expect_split
from hugepage_qa.cases.file_contents import Brought, KnownFile
from hugepage_qa.cases.frames import (
    ANONYMOUS,
    COMPOUND_HEAD,
    COMPOUND_TAIL,
    HUGE,
    IDLE,
    MAPPED,
    SWAP_BACKED,
    TRANSPARENT,
    UPTODATE,
    kpageflags,
)
from hugepage_qa.cases.idle_bitmap import BITS, DOC, IdleBitmap, use
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act, let_rest
from hugepage_qa.cases.large_folios import file_case
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.lru_batches import drain_lru_batches
from hugepage_qa.cases.mapped_memory import FRAME, WORD, Memory
from hugepage_qa.cases.page_generations import need_no_generations
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import (
    advised,
    base_pages,
    huge_pages,
    mapped_in_parts,
    set_policy,
    some_smaller_sizes,
)
from hugepage_qa.cases.thp_shared_memory import filled_file, mount_tmpfs, shared_base_pages, shared_huge_pages
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

IDLE_PAGES = Area("accounting/idle-pages", sizes=Sizes.ONCE)

#: an anonymous huge page can be split to other sizes than a base page
_ORDERS_SINCE = KernelVersion(6, 10)
#: what kpageflags shows of a page of a process as long as nobody changes it
_LASTING = MAPPED | ANONYMOUS | SWAP_BACKED | UPTODATE | COMPOUND_HEAD | COMPOUND_TAIL | HUGE | TRANSPARENT


@IDLE_PAGES.case(
    "a huge page that was marked as idle is so until it is used, and no longer then",
    f"{DOC}; mm/page_idle.c page_idle_clear_pte_refs_one()",
)
def idle_huge_page(live: Live) -> None:
    bitmap = IdleBitmap(live)
    let_rest(live)
    used, unused = huge_pages(live), huge_pages(live)
    frames = [bitmap.mark_huge(memory) for memory in (used, unused)]
    use(used)
    live.expect("whether both are idle", [0, 1], [bitmap.is_idle(frame) for frame in frames])
    used.expect_huge()


@IDLE_PAGES.case(
    "what was used before it was marked as idle shows as referenced until clear_refs has it be unused, and no longer"
    " then: huge pages and others, anonymous and shared; a huge page that clear_refs has passed by is idle still",
    f"{DOC}; Documentation/filesystems/proc.rst clear_refs, Referenced; fs/proc/task_mmu.c clear_refs_pte_range(),"
    " clear_refs_test_walk()",
)
def marked_and_cleared(live: Live) -> None:
    bitmap = IdleBitmap(live)
    let_nobody_else_act(live)
    private, shared = (huge_pages, mapped_in_parts, base_pages), (shared_huge_pages, shared_base_pages)
    for number, make in product((CLEAR_REFS_ALL, CLEAR_REFS_ANON, CLEAR_REFS_MAPPED), private + shared):
        memory = make(live)
        is_huge = make not in (base_pages, shared_base_pages)
        with live.about(f"{number}, {make.__name__}"):
            if is_huge:
                first = bitmap.mark_huge(memory)
            else:
                # those that a CPU has not yet put on the lists are passed over
                bitmap.mark(entry & FRAME for entry in memory.whole_pagemap())
            before = _referenced(memory)
            if make is not mapped_in_parts:
                # before Linux 5.16 the first base page alone tells of all
                live.expect("Referenced when it is marked", memory.length, before)
            clear_refs(live, memory, number)
            cleared = number in (CLEAR_REFS_ALL, CLEAR_REFS_MAPPED if make in shared else CLEAR_REFS_ANON)
            live.expect("Referenced after clear_refs", 0 if cleared else before, _referenced(memory))
            if is_huge:
                live.expect("whether it is idle still", 1, bitmap.is_idle(first))
            memory.expect_filled()
        memory.actor.end()


@IDLE_PAGES.case(
    "kpageflags shows of base pages that are marked as idle what it showed before, and that they are idle besides, and"
    " of such that were used again what it showed before: of huge pages, mapped whole or in parts, of base pages, of"
    " shared memory and of files, and of pages of smaller sizes",
    f"{DOC}; Documentation/admin-guide/mm/pagemap.rst IDLE; fs/proc/page.c stable_page_flags()",
)
def flags_beside_idle(live: Live) -> None:
    bitmap = IdleBitmap(live)
    let_nobody_else_act(live)
    path = f"{mount_tmpfs(live, 'always')}/file"
    for make in (huge_pages, mapped_in_parts, base_pages, shared_huge_pages, shared_base_pages, None):
        memory = make(live) if make else filled_file(live, path, 1)
        with live.about(make.__name__ if make else "a file"):
            _expect_flags_kept(live, bitmap, memory)
        memory.actor.end()
    for size, directory in some_smaller_sizes(live):
        set_policy(live, "madvise", pmd="never")
        live.set_knob(f"{directory}/enabled", "always")
        memory = advised(live)
        memory.fill()
        with live.about(f"pages of {size >> 10} kB"):
            _expect_flags_kept(live, bitmap, memory)
        memory.actor.end()


def _expect_flags_kept(live: Live, bitmap: IdleBitmap, memory: Memory) -> None:
    """Mark all of ``memory`` as idle, and use it: expect some of its base pages to be what they were but for that."""
    count = memory.size // live.base_page
    places = sorted({0, 1, 2, count // 2, count - 1})

    def seen() -> list[tuple[int, int, bool]]:
        frames = [entry & FRAME for entry in memory.whole_pagemap()]
        for frame in {frame // BITS: frame for frame in frames}.values():
            # the kernel looks now whether those of this word were used
            bitmap.is_idle(frame)
        looked_at = [frames[place] for place in places]
        shown = kpageflags(live, bitmap.actor, looked_at)
        return [(frame, flags & _LASTING, bool(flags & IDLE)) for frame, flags in zip(looked_at, shown, strict=True)]

    def looks() -> list[list[tuple[int, int, bool]]]:
        use(memory)
        before = seen()
        bitmap.mark(entry & FRAME for entry in memory.whole_pagemap())
        marked = seen()
        use(memory)
        return [before, marked, seen()]

    def wanted(looks: list[list[tuple[int, int, bool]]]) -> list[list[tuple[int, int, bool]]]:
        before, marked, _used = looks
        unused = [(frame, flags, False) for frame, flags, _idle in before]
        # those that a CPU has not yet put on the lists are passed over
        idle = [(frame, flags, is_idle) for (frame, flags, _idle), (*_is, is_idle) in zip(before, marked, strict=True)]
        return [unused, idle if any(is_idle for *_is, is_idle in marked) else [], unused]

    # pages may move meanwhile
    found = live.host.last_attempt(looks, lambda looks: looks == wanted(looks))
    subject = f"frames, their flags, and whether they are idle, of base pages {places}: before, marked, used again"
    live.expect(subject, wanted(found), found)
    live.expect("whether these were shown as mapped", {MAPPED}, {flags & MAPPED for _frame, flags, _idle in found[0]})


@IDLE_PAGES.case(
    "a huge page that is idle when it is split is so in all its parts, of whatever size they are, and in none if it was"
    " used: an anonymous one, one that is mapped in parts, and one of a tmpfs; the anonymous ones show as referenced if"
    " they were used before they were marked",
    f"{DOC}; mm/huge_memory.c __split_huge_page(), split_huge_pages_pid(), split_huge_pages_in_file()",
    since="5.13",  # a process can be named to split_huge_pages
)
def split_when_idle(live: Live) -> None:
    bitmap = IdleBitmap(live)
    let_nobody_else_act(live)
    point = mount_tmpfs(live, "always")
    count = pmd_size(live) // live.base_page
    orders = (0, 2, count.bit_length() - 2) if live.kernel_version >= _ORDERS_SINCE else (0,)
    rows: list[tuple[Callable[[Live], Memory] | None, int]] = [
        *product((huge_pages, mapped_in_parts), orders),
        (None, 0),
    ]
    for (make, order), is_used in product(rows, (False, True)):
        path = f"{point}/{is_used}"
        memory = make(live) if make else filled_file(live, path, 1)
        with live.about(f"{make.__name__ if make else 'a file'}, order {order}, {'used' if is_used else 'idle'}"):
            first = bitmap.mark_huge(memory)
            if is_used:
                use(memory)
                live.expect("whether what was used is idle", 0, bitmap.is_idle(first))
            where = f"{memory.actor.pid},{memory.address:#x},{memory.at(1):#x}" if make else f"{path},0x0,{count:#x}"
            expect_split(live, f"{where},{order}" if order else where, 1)
            # parts of a file are mapped no more
            look = partial(_idle_parts, live, memory, order, None if make else first)
            # base pages may move meanwhile, and are idle where they are then
            idle = live.host.last_attempt(look, {not is_used}.__eq__)
            live.expect("whether parts are idle", {not is_used}, idle)
            if make:
                live.expect("Referenced of all parts", memory.length, _referenced(memory))
            memory.expect_filled()
        memory.actor.end()


def _idle_parts(live: Live, memory: Memory, order: int, first: int | None) -> set[bool]:
    """Return whether the parts of a huge page are idle: of one that is mapped, or had the frames from ``first`` on."""
    count = memory.size // live.base_page
    frames = [entry & FRAME for entry in memory.whole_pagemap()] if first is None else [*range(first, first + count)]
    # a frame of a part that has moved is nobody's
    shown = kpageflags(live, memory.actor, frames[:: 1 << order])
    return {bool(flags & IDLE) for flags in shown if flags & SWAP_BACKED}


@partial(file_case, IDLE_PAGES, by=(Brought.WRITTEN,))(
    "a page of a file that nobody has mapped is idle, once it was marked so, until a system call reads it or writes to"
    " it, and no longer then",
    f"{DOC} Implementation Details; mm/filemap.c __filemap_get_folio(), filemap_read()",
)
def used_by_calls(live: Live, file: KnownFile) -> None:
    # folio_mark_accessed() returns then before it looks at the mark
    need_no_generations(live, "of it what system calls use stays idle")
    bitmap = IdleBitmap(live)

    def write() -> None:
        file.write(WORD, 2 * WORD)

    def read() -> None:
        # who goes on reading in the same page is not counted again: by another descriptor
        descriptor = live.open(file.actor, file.path)
        live.expect("bytes read", WORD, file.actor.call("pread64", descriptor, bytes(WORD), WORD, 0))

    def looks(use_it: Callable[[], None]) -> list[int]:
        memory = file.map()
        words = [piece.value for piece in file.contents.between(0, WORD)]
        live.expect("words that are read in a mapping", words, [memory.read()])
        frame = memory.frame()
        memory.unmap()
        drain_lru_batches(live, file.actor)
        bitmap.mark([frame])
        before = bitmap.is_idle(frame)
        use_it()
        return [before, bitmap.is_idle(frame)]

    for what in (write, read, write):
        # somebody may have a hold of the page, or move it
        found = live.host.last_attempt(partial(looks, what), [1, 0].__eq__)
        live.expect(f"whether it is idle, before and after a {what.__name__}", [1, 0], found)
    file.expect("used")


def _referenced(memory: Memory) -> int:
    return sum(mapping.fields["Referenced"] for mapping in memory.mappings())


class IdlePages(LiveTest):
    def test_idle_pages(self) -> None:
        self.run_area(IDLE_PAGES)
