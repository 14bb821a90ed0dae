"""What stays huge after each way to clear huge pages of text, and that the code stays right."""

import os
import re
from collections.abc import Callable

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.debugfs import expect_split
from hugepage_qa.cases.hugetext import ENABLED, expect_collapsed, huge_page_of_text, switch
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.text_program import TextProgram, start_again, start_text
from hugepage_qa.oracle.program_text import Clearing, Kind, stays_huge
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.text_program_build import Recipe

CLEARING = Area("text/clearing", sizes=Sizes.ONCE)

DISABLE_DOC = "Alibaba Cloud Linux, Huge Pages: disable"
_SPLIT = re.compile(r"huge_memory: \d+ of \d+ THP split")


@CLEARING.case(
    "0 written to hugetext_enabled splits nothing, and a new process maps the huge page cache again",
    DISABLE_DOC,
)
def switched_off(live: Live) -> None:
    program, huge = _collapsed_and_switched_off(live)
    _expect_huge(live, program, huge, Clearing.SWITCH_OFF)
    later = start_again(live, program.built)
    _expect_huge(live, later, huge, Clearing.SWITCH_OFF)


@CLEARING.case(
    "drop_caches leaves text that a process maps huge, and evicts it once no process does",
    f"{DISABLE_DOC}, method 1; mm/truncate.c invalidate_mapping_pages()",
)
def dropped_caches(live: Live) -> None:
    _expect_only_unmapped_text_to_go(live, Clearing.DROP_CACHES, _drop_caches)


@CLEARING.case(
    "evicting the pages of a file (vmtouch -e) leaves text that a process maps huge, and works once no process does",
    f"{DISABLE_DOC}, method 2; mm/fadvise.c POSIX_FADV_DONTNEED",
)
def evicted(live: Live) -> None:
    _expect_only_unmapped_text_to_go(live, Clearing.EVICT_FILE, _evict)


@CLEARING.case(
    "split_huge_pages splits text that is mapped, says how many it split, and collapsing begins again",
    f"{DISABLE_DOC}, method 3; mm/huge_memory.c split_huge_pages_set()",
)
def split(live: Live) -> None:
    program, huge = _collapsed_and_switched_off(live)
    live.host.new_kernel_log()
    attempts = expect_split(live, "1", 1)
    said = [line for line in live.host.new_kernel_log() if _SPLIT.search(line)]
    live.expect("lines of the kernel log, one on each split", attempts, len(said))
    _expect_huge(live, program, huge, Clearing.SPLIT)
    live.host.write(ENABLED, "1")
    again = start_again(live, program.built)
    again.touch()
    expect_collapsed(live, again, 1)


@CLEARING.case(
    "split_huge_pages splits the huge page cache of a file that nobody maps, too",
    f"{DISABLE_DOC}, method 3; mm/huge_memory.c split_huge_pages_set()",
)
def split_unmapped(live: Live) -> None:
    program, huge = _collapsed_and_switched_off(live)
    program.actor.end()
    expect_split(live, "1", 1)
    _expect_huge(live, start_again(live, program.built), huge, Clearing.SPLIT, mapped=False)


@CLEARING.case(
    "opening a library for writing drops its huge pages, and its code stays right",
    "fs/open.c do_dentry_open(), mm/truncate.c truncate_pagecache()",
)
def opened_for_writing(live: Live) -> None:
    program = _collapsed(live, Kind.LIBRARY)
    huge = program.huge()
    live.open(live.actor(), program.built.file, os.O_RDWR)
    _expect_huge(live, program, huge, Clearing.OPEN_FOR_WRITE)


def _collapsed(live: Live, kind: Kind = Kind.FIXED) -> TextProgram:
    # at addresses that do not depend on the mode: what is started later fits the same huge pages
    size = huge_page_of_text(live)
    switch(live, 1)
    program = start_text(live, Recipe(size, kind=kind))
    program.touch()
    expect_collapsed(live, program, 1)
    return program


def _collapsed_and_switched_off(live: Live) -> tuple[TextProgram, int]:
    """Return a program, and how many bytes of its text are huge still when 0 was written to hugetext_enabled."""
    program = _collapsed(live)
    huge = program.huge()
    live.host.write(ENABLED, "0")
    return program, huge


def _expect_only_unmapped_text_to_go(
    live: Live, clearing: Clearing, clear: Callable[[Live, TextProgram], None]
) -> None:
    """Clear text while a process maps it, and again once none does."""
    program, huge = _collapsed_and_switched_off(live)
    clear(live, program)
    _expect_huge(live, program, huge, clearing)
    program.actor.end()
    clear(live, program)
    _expect_huge(live, start_again(live, program.built), huge, clearing, mapped=False)


def _drop_caches(live: Live, _program: TextProgram) -> None:
    live.host.write("proc/sys/vm/drop_caches", "3")


def _evict(live: Live, program: TextProgram) -> None:
    actor = live.actor()
    descriptor = live.open(actor, program.built.file, os.O_RDONLY)
    actor.call("fadvise64", descriptor, 0, 0, live.host.uapi.posix_fadv_dontneed)
    actor.call("close", descriptor)


def _expect_huge(live: Live, program: TextProgram, huge: int, clearing: Clearing, *, mapped: bool = True) -> None:
    program.touch()
    expected = huge if stays_huge(clearing, mapped=mapped) else 0
    live.expect(f"FilePmdMapped after {clearing.value}", expected, program.huge())
    program.expect_intact()


class HugetextClearing(LiveTest):
    def test_clearing(self) -> None:
        self.run_area(CLEARING)
