"""Breakpoints of uprobes in files of a tmpfs: each is in the text of processes that map it, and nowhere else."""

import mmap
import os

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.thp_memory import (
    expect_mapped_whole,
    let_only_pmd_inherit,
    map_start_of_file,
    mount_tmpfs,
    pmd_size,
    room_for,
)
from hugepage_qa.kernel.uapi import MAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

PROBED_TEXT = Area("thp/probed-text", sizes=Sizes.ONCE)

UPROBES = "Documentation/trace/uprobetracer.rst; kernel/events/uprobes.c"
_GROUP = "hugepage_qa"
# instructions of x86: NOP eight times, and the breakpoint in place of the first
_TEXT, _BROKEN = 0x9090909090909090, 0x90909090909090CC
_EXECUTABLE = mmap.PROT_READ | mmap.PROT_EXEC


@PROBED_TEXT.case(
    "a breakpoint of a uprobe, wherever in a file of a tmpfs, in huge pages or not, is in the memory of each process"
    " that maps it as text, before or after, whole or made longer, and in a child's; the rest of it, shared mappings"
    " and other huge pages stay as they are; when it is gone all have the file again, and no page of their own",
    f"{UPROBES} uprobe_write_opcode(), uprobe_mmap(); mm/mremap.c",
)
def breakpoints(live: Live) -> None:
    if live.host.architecture != "x86_64" or not live.host.is_thrown_away():
        raise CannotRun("breakpoints are put into text on machines with x86_64 that are thrown away")
    let_only_pmd_inherit(live)
    for huge in ("always", "never"):
        with live.about(f"huge={huge}"):
            _expect_breakpoints(live, huge, pages=2 if huge == "always" else 0)


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
    events = _Events(live, path, offsets)
    events.enable(on=True)
    late, longer = _map_text(live, path, 2), _map_text(live, path, 1)
    moved = longer.actor.call("mremap", longer.address, size, 2 * size, MREMAP_MAYMOVE, 0)
    longer = Memory(live, longer.actor, moved % (1 << 64), 2, size)
    child = early.seen_by(early.actor.fork())
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
    events.enable(on=False)
    for offset in offsets:
        file.actor.write(file.address + offset, _TEXT + 1)
    for name, text in texts.items():
        with live.about(f"text {name}, without breakpoints"):
            _expect_text(live, text, offsets, _TEXT + 1)
            live.expect("memory of its own", 0, text.smaps().fields["Anonymous"])
    events.remove()
    for memory in (file, early, late, longer):
        memory.actor.end()


def _map_text(live: Live, path: str, pages: int) -> Memory:
    """Map the first pages of a file as text in a new process, and read all of it."""
    actor, size = live.actor(), pmd_size(live)
    descriptor, address = live.open(actor, path, os.O_RDONLY), room_for(actor, pages, size)
    actor.mmap(pages * size, _EXECUTABLE, mmap.MAP_PRIVATE | MAP_FIXED, descriptor, address=address)
    actor.sum(address, pages * size)
    return Memory(live, actor, address, pages, size)


def _expect_text(live: Live, text: Memory, offsets: list[int], word: int) -> None:
    found = [text.actor.read(text.address + offset) for offset in offsets]
    live.expect("words with an instruction to stop at", [f"{word:x}"] * len(offsets), [f"{each:x}" for each in found])
    live.expect("words that are other than those of the file", len(offsets), text.wrong(0, text.length))


class _Events:
    """Uprobes at ``offsets`` of a file, which stop nobody until they are enabled (tracefs)."""

    def __init__(self, live: Live, path: str, offsets: list[int]) -> None:
        if "tracefs" not in (live.host.read("proc/filesystems") or "").split():
            raise CannotRun("this kernel has no CONFIG_FTRACE")
        self._live = live
        self._directory = live.mount_other("", "tracefs")
        if "uprobe_events" not in live.host.names(self._directory.lstrip("/")):
            raise CannotRun("this kernel has no CONFIG_UPROBE_EVENTS")
        self._actor: Actor = live.actor()
        self._numbers = range(len(offsets))
        lines = (f"p:{_GROUP}/at{number} {path}:{offset:#x}\n" for number, offset in enumerate(offsets))
        self._write("uprobe_events", "".join(lines))

    def enable(self, *, on: bool) -> None:
        """Have text have breakpoints, or no longer. Raises Refused."""
        self._write(f"events/{_GROUP}/enable", str(int(on)))

    def remove(self) -> None:
        """Take the uprobes away. Raises Refused."""
        self._write("uprobe_events", "".join(f"-:{_GROUP}/at{number}\n" for number in self._numbers))

    def _write(self, name: str, text: str) -> None:
        # to open it without O_APPEND and with O_TRUNC takes all uprobes away
        file = self._live.open(self._actor, f"{self._directory}/{name}", os.O_WRONLY | os.O_APPEND)
        self._actor.call("write", file, text.encode(), len(text))
        self._actor.call("close", file)


class ThpProbedText(LiveTest):
    """Breakpoints of uprobes in huge pages.

    :avocado: enable
    """

    def test_probed_text(self) -> None:
        """Every case, once for the machine."""
        self.run_area(PROBED_TEXT)
