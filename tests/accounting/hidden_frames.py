"""Where memory lies, which the kernel shows to who has CAP_SYS_ADMIN alone: pagemap of memory of each kind."""

import errno
import os
from collections.abc import Callable

from hugepage_qa.cases.capabilities import SYS_ADMIN, become_nobody, without_capability
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME, PAGEMAP, Memory, read_entries
from hugepage_qa.cases.swapped import need_swap, swap_out
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, huge_zeroes, mapped_in_parts
from hugepage_qa.cases.thp_shared_memory import shared_base_pages, shared_huge_pages
from hugepage_qa.kernel.proc_tables import find_mount
from hugepage_qa.plugins.avocado_test import LiveTest

HIDDEN_FRAMES = Area("accounting/hidden-frames")
DOC = "Documentation/admin-guide/mm/pagemap.rst: since Linux 4.2 the PFN field is zeroed without CAP_SYS_ADMIN"
SHOWN = (
    "pagemap shows the frames of memory to who had CAP_SYS_ADMIN when he opened it, whatever he has when he reads, and"
    " nobody else; all else of it, it shows to the user whose process it is"
)
# include/uapi/linux/prctl.h
_PR_SET_DUMPABLE = 4
#: whose frames, by their numbers, are for root: mode 0400 (fs/proc/page.c)
_OF_FRAMES = ("kpageflags", "kpagecount", "kpagecgroup")


@HIDDEN_FRAMES.case(
    f"of hugetlb pages, private, shared and of a file: {SHOWN}",
    f"{DOC}; fs/proc/task_mmu.c pagemap_read(), pagemap_hugetlb_range()",
    pages=1,
)
def hugetlb_pages(live: Live) -> None:
    for name in ("private", "shared", "of a file"):
        memory = new_memfd(live).map(1) if name == "of a file" else live.map(1, shared=name == "shared")
        memory.touch()
        with live.about(name):
            _expect_hidden(live, memory)
        memory.actor.end()
        live.expect_pool(nr=1, free=1)


@HIDDEN_FRAMES.case(
    f"of transparent huge pages, mapped as a whole and in parts, of base pages, shared and not, and of zeroes: {SHOWN}",
    f"{DOC}; fs/proc/task_mmu.c pagemap_read(), pagemap_pmd_range(), pte_to_pagemap_entry()",
    sizes=Sizes.ONCE,
)
def transparent_pages(live: Live) -> None:
    # what it collapses between two looks lies elsewhere
    let_nobody_else_act(live)
    kinds: tuple[Callable[[Live], Memory], ...] = (
        *(huge_pages, mapped_in_parts, huge_zeroes, base_pages),
        *(shared_huge_pages, shared_base_pages),
    )
    for make in kinds:
        memory = make(live)
        with live.about(make.__name__.replace("_", " ")):
            _expect_hidden(live, memory)
        memory.actor.end()


@HIDDEN_FRAMES.case(
    f"of pages in swap, and where in it they lie: {SHOWN}",
    f"{DOC}; fs/proc/task_mmu.c pagemap_read(), pte_to_pagemap_entry()",
    sizes=Sizes.ONCE,
)
def swapped_pages(live: Live) -> None:
    memory = base_pages(live)
    need_swap(live, memory.length)
    swap_out(live, memory, memory.length)
    _expect_hidden(live, memory)


@HIDDEN_FRAMES.case(
    "who is not privileged opens neither pagemap of a process of another user nor what tells of frames by numbers",
    f"{DOC}; fs/proc/task_mmu.c pagemap_open(); fs/proc/page.c proc_page_init(): mode 0400",
    sizes=Sizes.ONCE,
)
def files_of_others(live: Live) -> None:
    owner, stranger = live.actor(), live.actor()
    become_nobody(stranger)
    names = [name for name in _OF_FRAMES if name in live.host.names("proc")]
    mount = find_mount(live.host, "/proc")
    if mount and mount.option("hidepid") is not None:
        live.notes.append("/proc hides processes of others (hidepid): their pagemap was not looked for")
    else:
        names.append(f"{owner.pid}/pagemap")
    for name in names:
        with live.about(name):
            live.expect_errno(errno.EACCES, live.open, stranger, f"/proc/{name}", os.O_RDONLY)


def _expect_hidden(live: Live, memory: Memory) -> None:
    """Expect pagemap to show the frames of the first page as the file was opened, and the rest of it always."""
    actor, places = memory.actor, (0, 1, memory.size // live.base_page // 2, memory.size // live.base_page - 1)

    def read(descriptor: int) -> list[str]:
        first = memory.address // live.base_page
        return [hex(read_entries(actor, descriptor, first + place, 1)[0]) for place in places]

    def opened() -> int:
        return live.open(actor, PAGEMAP, os.O_RDONLY)

    def looks() -> tuple[list[str], dict[str, list[str]], dict[str, list[str]]]:
        privileged = opened()
        first, shown, hidden = read(privileged), dict[str, list[str]](), dict[str, list[str]]()
        with without_capability(actor, SYS_ADMIN):
            shown["opened with CAP_SYS_ADMIN, and read without"] = read(privileged)
            unprivileged = opened()
            hidden["opened and read without CAP_SYS_ADMIN"] = read(unprivileged)
        hidden["opened without CAP_SYS_ADMIN, and read with it"] = read(unprivileged)
        shown["opened and read with CAP_SYS_ADMIN"] = read(opened())
        return first, shown, hidden

    def hide(entries: list[str]) -> list[str]:
        return [hex(int(entry, 16) & ~FRAME) for entry in entries]

    # compaction may move base pages in between
    first, shown, hidden = live.host.last_attempt(looks, lambda seen: all(each == seen[0] for each in seen[1].values()))
    live.expect("entries without a frame", [], [entry for entry in first if not int(entry, 16) & FRAME])
    for how, found in shown.items():
        live.expect(how, first, found)
    for how, found in hidden.items():
        live.expect(how, hide(first), found)
    become_nobody(actor)
    # the user that it has now is to open its files, which only root may do of one that has changed its user (proc(5))
    actor.call("prctl", _PR_SET_DUMPABLE, 1, 0, 0, 0)
    # a page that moves in that moment is shown as such
    found = live.host.last_attempt(lambda: read(opened()), hide(first).__eq__)
    live.expect("opened and read by another user than root", hide(first), found)


class HiddenFrames(LiveTest):
    def test_hidden_frames(self) -> None:
        self.run_area(HIDDEN_FRAMES)
