"""Breakpoints of uprobes in files of a tmpfs: each is in the text of processes that map it, and nowhere else."""

import errno
import mmap
import os
from functools import partial
from operator import eq

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.reached_from_outside import word_read_by
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.cases.thp_shared_memory import (
    expect_mapped_whole,
    let_only_pmd_inherit,
    map_start_of_file,
    mount_tmpfs,
)
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import MADV_COLLAPSE, MAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused
from hugepage_qa.version import KernelVersion

PROBED_TEXT = Area("files/probed-text", sizes=Sizes.ONCE)

UPROBES = "perf_event_open(2); kernel/events/uprobes.c"
_PMU = "sys/bus/event_source/devices/uprobe"
# of struct perf_event_attr, up to config2: include/uapi/linux/perf_event.h PERF_ATTR_SIZE_VER1
_ATTRIBUTES = 72
# instructions of x86: NOP eight times, and the breakpoint in place of the first
_TEXT, _BROKEN = 0x9090909090909090, 0x90909090909090CC
#: since when a page stays the process's own that anybody holds (__uprobe_write())
_KEEPS_WHAT_IS_HELD = KernelVersion(6, 16)
_EXECUTABLE = mmap.PROT_READ | mmap.PROT_EXEC


@PROBED_TEXT.case(
    "a breakpoint of a uprobe, wherever in a file of a tmpfs, in huge pages or not, is in the memory of each process"
    " that maps it as text, before or after, whole or made longer, and in a child's; the rest of it, shared mappings"
    " and other huge pages stay as they are; when it is gone no text has it, and"
    " before 6.16 that of a process that never forked is the file's again",
    f"{UPROBES} uprobe_write_opcode(), uprobe_mmap(); mm/mremap.c",
)
def breakpoints(live: Live) -> None:
    _need_x86_64(live)
    let_only_pmd_inherit(live)
    for huge in ("always", "never"):
        with live.about(f"huge={huge}"):
            _expect_breakpoints(live, huge, pages=2 if huge == "always" else 0)


def _need_x86_64(live: Live) -> None:
    """Raise CannotRun where the instructions of these cases are others'."""
    if live.host.architecture != "x86_64":
        raise CannotRun("the case has instructions of x86_64 alone")


def _expect_breakpoints(live: Live, huge: str, pages: int) -> None:
    size, base = pmd_size(live), live.base_page
    path = f"{mount_tmpfs(live, huge)}/text"
    with_blocks(live, size, pages)
    file = map_start_of_file(live, path, 2)
    file.fill()
    offsets = [0, base + WORD, size // 2 + base - WORD, size - base, size - WORD]
    for offset in offsets:
        file.actor.write(file.address + offset, _TEXT)
    expect_mapped_whole(live, file, pages, f"huge={huge}")
    early = _map_text(live, path, 2)
    expect_mapped_whole(live, early, pages, f"huge={huge}, as text")
    _expect_text(live, early, offsets, _TEXT)
    uprobes = _Uprobes(live, path, offsets)
    late, longer = _map_text(live, path, 2), _map_text(live, path, 1)
    moved = longer.actor.call("mremap", longer.address, size, 2 * size, MREMAP_MAYMOVE, 0)
    longer = Memory(live, longer.actor, moved % (1 << 64), 2, size)
    child = early.fork()
    texts = {"mapped before": early, "mapped after": late, "made longer": longer, "of a child": child}
    for name, text in texts.items():
        with live.about(f"text {name}"):
            _expect_text(live, text, offsets, _BROKEN)
    _expect_text(live, file, offsets, _TEXT)
    copies = len({offset // base for offset in offsets}) * base
    for name, text in {"mapped before": early, "mapped after": late}.items():
        with live.about(f"text {name}"):
            live.expect("memory of its own", copies, text.smaps().fields["Anonymous"])
            expect_mapped_whole(live, text, pages // 2, f"huge={huge}, with breakpoints in the first half")
    uprobes.remove()
    for name, text in texts.items():
        with live.about(f"text {name}, without breakpoints"):
            _expect_text(live, text, offsets, _TEXT)
    # a page that was shared with a child, or moved, may stay the process's own
    if live.kernel_version < _KEEPS_WHAT_IS_HELD:
        for offset in offsets:
            file.actor.write(file.address + offset, _TEXT + 1)
        _expect_text(live, late, offsets, _TEXT + 1)
        live.expect("memory of its own, without breakpoints", 0, late.smaps().fields["Anonymous"])
    for memory in (file, early, late, longer):
        memory.actor.end()


@PROBED_TEXT.case(
    "text in huge pages is mapped whole again as soon as the last breakpoint of uprobes in a huge page of it is gone,"
    " and no sooner, wherever that was, of however many, in base pages of their own or in one, twice in one place or in"
    " both huge pages, whether one process maps it or two, before the breakpoints or while they are there; the file"
    " stays in huge pages, and other mappings of it whole",
    f"{UPROBES} uprobe_write_opcode(), uprobe_write(); mm/khugepaged.c collapse_pte_mapped_thp()",
    since="5.4",
)
def mapped_whole_again(live: Live) -> None:
    _need_x86_64(live)
    let_nobody_else_act(live)
    size, base = pmd_size(live), live.base_page
    with_blocks(live, size, 2)
    path = f"{mount_tmpfs(live, 'always')}/text"
    file = map_start_of_file(live, path, 2)
    file.fill()
    places = [0, WORD, base, size // 2 + base - WORD, size - base, size - WORD, size, size + base, 2 * size - WORD]
    for place in places:
        file.actor.write(file.address + place, _TEXT)
    early = _map_text(live, path, 2)
    expect_mapped_whole(live, early, 2, "huge=always, as text")
    one_each = [[place] for place in places]
    several = [[0, WORD], [0, base, size - WORD], [size - base, base, 0], [0, 0], [0, size + base, base, size]]
    for offsets in one_each + several:
        for others in range(2):
            with live.about(f"breakpoints at {offsets}, {1 + others} processes"):
                _expect_whole_again(live, path, [file, early], offsets, places, others)
        if live.differences:
            return


def _expect_whole_again(
    live: Live, path: str, mapped: list[Memory], offsets: list[int], places: list[int], others: int
) -> None:
    """Put breakpoints at ``offsets``, map the text in ``others`` more processes, and take the last one away each time.

    Judged are how many huge pages of each mapping are mapped whole, and the words at ``places``.
    """
    broken = [{place // pmd_size(live) for place in offsets[:left]} for left in range(len(offsets), -1, -1)]
    expected = [[mapped[0].pages - len(pages)] * (len(mapped) - 1 + others) for pages in broken]

    def found() -> list[list[int]]:
        uprobes = _Uprobes(live, path, offsets)
        texts = mapped[1:] + [_map_text(live, path, 2) for _other in range(others)]
        if live.kernel_version >= _KEEPS_WHAT_IS_HELD:
            _settle(live, texts, mapped[0], offsets)
        seen = [_mapped_whole(texts)]
        for left in range(len(offsets) - 1, -1, -1):
            uprobes.remove_last()
            words = [_BROKEN if place in offsets[:left] else _TEXT for place in places]
            for text in texts:
                _expect_words(live, text, places, words)
            seen.append(_mapped_whole(texts))
        for text in texts[len(mapped) - 1 :]:
            text.actor.end()
        return seen

    # anybody may hold a page for a moment
    keeps = live.kernel_version >= _KEEPS_WHAT_IS_HELD
    seen = live.host.last_attempt(found, partial(eq, expected)) if keeps else found()
    live.expect(
        "huge pages mapped whole in each text, with all breakpoints and with one less each time", expected, seen
    )
    live.expect("huge pages mapped whole by others", 2, _mapped_whole(mapped[:1])[0])


def _settle(live: Live, texts: list[Memory], file: Memory, offsets: list[int]) -> None:
    """Have no list of a processor hold the pages at ``offsets`` of the texts when the breakpoints are taken away.

    Who takes one away touches the page first. Without generations of pages (CONFIG_LRU_GEN) the second touch has a page
    wait to become active (mm/swap.c folio_mark_accessed()), which holds it; one that is active is touched freely.
    Processors empty their lists when ``file``, which is mapped whole, is to be collapsed (madvise_collapse()); when
    memory is compacted, too, but what that moves is on a list again.
    """
    file.advise(MADV_COLLAPSE)
    for text in texts:
        for offset in offsets:
            for _time in range(2):
                live.expect("the word read from outside", _BROKEN, word_read_by(live, file.actor, text, offset))
    file.advise(MADV_COLLAPSE)


def _mapped_whole(texts: list[Memory]) -> list[int]:
    """Return how many huge pages are mapped whole in each text."""
    return [text.smaps().shmem_pmd_mapped // text.size for text in texts]


def _map_text(live: Live, path: str, pages: int) -> Memory:
    """Map the first pages of a file as text in a new process, and read all of it."""
    actor, size = live.actor(), pmd_size(live)
    descriptor, address = live.open(actor, path, os.O_RDONLY), room_for(actor, pages, size)
    actor.mmap(pages * size, _EXECUTABLE, mmap.MAP_PRIVATE | MAP_FIXED, descriptor, address=address)
    actor.sum(address, pages * size)
    return Memory(live, actor, address, pages, size)


def _expect_text(live: Live, text: Memory, offsets: list[int], word: int) -> None:
    _expect_words(live, text, offsets, [word] * len(offsets))


def _expect_words(live: Live, text: Memory, offsets: list[int], words: list[int]) -> None:
    found = [text.actor.read(text.address + offset) for offset in offsets]
    live.expect(
        "words with an instruction to stop at", [f"{word:x}" for word in words], [f"{each:x}" for each in found]
    )
    live.expect("words that are other than those of the file", len(offsets), text.wrong(0, text.length))


class _Uprobes:
    """Breakpoints at ``offsets`` of a file in the text of all processes (perf_event_open(2)), until removed."""

    def __init__(self, live: Live, path: str, offsets: list[int]) -> None:
        """Raise CannotRun where the kernel has none, or is locked down."""
        kind = read_integer(live.host, f"{_PMU}/type")
        if kind is None:
            raise CannotRun("this kernel has no CONFIG_UPROBE_EVENTS")
        self._actor, uapi = live.actor(), live.host.uapi
        name = self._actor.mmap(live.base_page, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        text = path.encode() + bytes(WORD - len(path.encode()) % WORD)
        for at in range(0, len(text), WORD):
            self._actor.write(name + at, uapi.unpack("Q", text[at : at + WORD])[0])
        self._descriptors = list[int]()
        for offset in offsets:
            words = uapi.pack("2I5Q2I2Q", kind, _ATTRIBUTES, *[0] * 7, name, offset)
            try:
                self._descriptors.append(self._actor.call("perf_event_open", words, -1, 0, -1, 0))
            except Refused as refusal:
                if refusal.errno not in (errno.EPERM, errno.EACCES):
                    raise
                raise CannotRun("this kernel is locked down: nobody gets breakpoints (kernel_lockdown(7))") from refusal

    def remove(self) -> None:
        """Take the breakpoints away. Raises Refused."""
        for descriptor in self._descriptors:
            self._actor.call("close", descriptor)

    def remove_last(self) -> None:
        """Take the breakpoint away that was put last of those that are left. Raises Refused."""
        self._actor.call("close", self._descriptors.pop())


class ThpProbedText(LiveTest):
    def test_probed_text(self) -> None:
        self.run_area(PROBED_TEXT)
