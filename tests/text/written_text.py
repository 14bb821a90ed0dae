"""Files with text that was huge and is no more: what is cached of them when they are opened for writing."""

import os
from collections.abc import Callable

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.debugfs import write_debugfs
from hugepage_qa.cases.file_text import absent_pages, collapse_text, start_eligible_library, whole_pages
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.text_program import TextProgram, start_again
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

WRITTEN = Area("text/written-text", sizes=Sizes.ONCE)

#: for which who holds a page for a moment is waited
_SECONDS = 10.0


@WRITTEN.case(
    "when the last huge page of a file has left the page cache, since it was opened for writing or given up, what is"
    " cached of it then stays cached when it is opened for writing, each time",
    "fs/open.c do_dentry_open(); mm/filemap.c filemap_unaccount_folio(); posix_fadvise(2) POSIX_FADV_DONTNEED",
    since="6.1",
    until="6.16",
)
def written_without_huge_pages(live: Live) -> None:
    for leave in (_opened_for_writing, _given_up):
        with live.about(leave.__name__.strip("_")):
            _expect_kept(live, leave)


@WRITTEN.case(
    "when the last huge page of a file was split, what is cached of it stays cached when it is opened for writing",
    "fs/open.c do_dentry_open(); mm/huge_memory.c split_huge_pages_in_file()",
    since="6.1",
    until="6.16",
)
def written_when_it_was_split(live: Live) -> None:
    _expect_kept(live, _split)


def _expect_kept(live: Live, leave: Callable[[Live, TextProgram], TextProgram]) -> None:
    """Have a file no longer be huge, and expect opens for writing to leave the base pages of it that are cached."""
    library = start_eligible_library(live)
    # MADV_COLLAPSE alone makes it huge
    live.set_knob(f"{DIRECTORY}/enabled", "never")
    every = pmd_size(live) // live.base_page
    collapse_text(live, library)
    library.touch()
    live.expect("FilePmdMapped", whole_pages(live, library), library.huge())
    library = leave(live, library)
    for _time in range(2):
        library.touch()
        live.expect("FilePmdMapped when no huge page is left", 0, library.huge())
        live.expect("base pages of each block that are not cached", {0}, {*absent_pages(live, library)})
        writer = live.actor()
        live.open(writer, library.built.file, os.O_RDWR)
        # a few may be taken by who needs memory, and not all of them
        lost = [absent == every for absent in absent_pages(live, library)]
        live.expect("blocks that have left the page cache", [False] * len(lost), lost)
        library.touch()
        library.expect_intact()
        writer.end()
    library.actor.end()


def _opened_for_writing(live: Live, library: TextProgram) -> TextProgram:
    writer = live.actor()
    live.open(writer, library.built.file, os.O_RDWR)
    writer.end()
    return library


def _given_up(live: Live, library: TextProgram) -> TextProgram:
    """Give up what is cached of it (posix_fadvise(2)), which nobody maps any more, and start it again."""
    again: list[TextProgram] = []

    def is_gone() -> bool:
        for one in again or [library]:
            one.actor.end()
        reader = live.actor()
        descriptor = live.open(reader, library.built.file, os.O_RDONLY)
        reader.call("fadvise64", descriptor, 0, 0, live.host.uapi.posix_fadv_dontneed)
        reader.end()
        again[:] = [start_again(live, library.built)]
        again[0].touch()
        return not again[0].huge()

    # what somebody has a hold of for a moment is passed over
    live.host.wait_until(is_gone, _SECONDS)
    _need_small(live, again[0])
    return again[0]


def _split(live: Live, library: TextProgram) -> TextProgram:
    pages = library.built.elf.size // live.base_page + 1

    def is_split() -> bool:
        write_debugfs(live, "split_huge_pages", f"{library.built.file},0x0,{pages:#x}")
        library.touch()
        return not library.huge()

    live.host.wait_until(is_split, _SECONDS)
    _need_small(live, library)
    return library


def _need_small(live: Live, library: TextProgram) -> None:
    """Raise CannotRun where huge pages are left that others may have a hold of."""
    if library.huge() and live.host.has_others:
        raise CannotRun(f"somebody has had a hold of the huge pages of a file for {_SECONDS:.0f} s")


class WrittenText(LiveTest):
    def test_written_text(self) -> None:
        self.run_area(WRITTEN)
