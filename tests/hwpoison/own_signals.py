"""Whether who says that its own memory broke is told so at once, or when it touches it: prctl(2) PR_MCE_KILL."""

import signal
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Final

from hugepage_qa.cases.broken_memory import (
    EHWPOISON,
    break_in_use,
    break_page,
    expect_broken,
    mended_at_the_end,
    need_mending,
)
from hugepage_qa.cases.broken_while_held import need_to_get_it_back
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pinned_pages import pipe_with
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import huge_pages, map_in_parts, set_policy
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, shared_huge_pages
from hugepage_qa.kernel.uapi import (
    MADV_HWPOISON,
    MADV_NOHUGEPAGE,
    PR_MCE_KILL,
    PR_MCE_KILL_DEFAULT,
    PR_MCE_KILL_EARLY,
    PR_MCE_KILL_LATE,
    PR_MCE_KILL_SET,
)
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

OWN_SIGNALS = Area("hwpoison/own-signals", sizes=Sizes.BUDDY, uncleared=True)

RULE = (
    "PR_MCE_KILL(2const); Documentation/mm/hwpoison.rst early kill, late kill; Documentation/admin-guide/sysctl/vm.rst"
    " memory_failure_early_kill; madvise(2) MADV_HWPOISON; mm/memory-failure.c task_early_kill(), kill_proc()"
)
#: as if it had touched it (MF_ACTION_REQUIRED in mm/madvise.c madvise_inject_error()); before, it is one of all
_TOLD_AS_AT_A_TOUCH: Final = KernelVersion(6, 11)
# include/uapi/asm-generic/siginfo.h
_BUS_MCEERR_AR, _BUS_MCEERR_AO = 4, 5
_CHOICES = {"nothing": None, "early": PR_MCE_KILL_EARLY, "late": PR_MCE_KILL_LATE, "default": PR_MCE_KILL_DEFAULT}
_ROWS = tuple(product(_CHOICES.items(), (False, True)))
_PLACES = 4


@OWN_SIGNALS.case(
    "who says that a private page of a pool that it has broke is told at once if it chose that, or chose nothing and"
    " the machine does, and else when it touches the page; since Linux 6.11 always at once, as at a touch",
    RULE,
    pages=len(_ROWS),
)
def page_of_a_pool(live: Live) -> None:
    for number, (choice, early_kill) in enumerate(_ROWS, start=1):
        _expect_told(live, partial(_page, live), choice, early_kill=early_kill)
        live.expect_pool(nr=len(_ROWS) - number, free=len(_ROWS) - number)


@OWN_SIGNALS.case(
    "who says that any base page of a private page of a pool broke is told where that base page is, and that the page"
    " is lost as a whole",
    f"{RULE}; mm/page_vma_mapped.c page_mapped_in_vma(), check_pte() (442b1eca223b)",
    since="6.12.24",  # 442b1eca223b, which older series got, too; before, a page was found by its first base page alone
    pages=_PLACES,
)
def any_base_page_of_a_pool(live: Live) -> None:
    offsets = 0, live.base_page, live.size // 2, live.size - live.base_page
    for number, offset in enumerate(offsets, start=1):
        with live.about(f"byte {offset}"):
            _expect_told(live, partial(_page, live), ("early", PR_MCE_KILL_EARLY), early_kill=False, offset=offset)
            live.expect_pool(nr=_PLACES - number, free=_PLACES - number)


@OWN_SIGNALS.case(
    "who says that a page of a file of a pool broke, which it has mapped, is told as of a private one",
    RULE,
    since="6.1",  # 8625147cafaa: before, a broken page was taken out of its file
    pages=1,
)
def page_of_a_file(live: Live) -> None:
    need_mending(live)

    def make() -> Memory:
        file = new_memfd(live)
        file.truncate(1)
        memory = file.map(1)
        memory.fill()
        return memory

    for choice, early_kill in _ROWS:
        _expect_told(live, make, choice, early_kill=early_kill, is_mended=True)
        live.expect_pool(nr=1, free=1)


@OWN_SIGNALS.case(
    "who says that a base page broke, private or shared, or one of a huge page, is told as of a page of a pool, of that"
    " base page alone",
    f"{RULE}, try_to_split_thp_page()",
    sizes=Sizes.ONCE,
)
def other_memory(live: Live) -> None:
    set_policy(live, "madvise")
    makes = partial(_base_page, live, shared=False), partial(_base_page, live, shared=True), partial(_part, live)
    for name, make in zip(("private", "shared", "of a huge page"), makes, strict=True):
        for choice, early_kill in _ROWS:
            with live.about(name):
                _expect_told(live, make, choice, early_kill=early_kill)


@OWN_SIGNALS.case(
    "who says that a base page broke of a huge page that a pipe holds, so that it stays mapped, is told at once, and"
    " once more each time that it says so again, where that base page is; each time it is EHWPOISON: whichever it is,"
    " private or shared, mapped as a whole or in base pages",
    "madvise(2) MADV_HWPOISON; mm/memory-failure.c kill_procs_now(), kill_accessing_process(), hwpoison_pte_range()",
    sizes=Sizes.ONCE,
    since="6.11",  # MF_ACTION_REQUIRED
)
def said_again(live: Live) -> None:
    need_to_get_it_back(live)
    let_only_pmd_inherit(live)
    base = live.base_page
    for make, is_whole, offset in product(
        (huge_pages, shared_huge_pages), (True, False), (pmd_size(live) // 2, 0, pmd_size(live) - base)
    ):
        memory = make(live)
        if not is_whole:
            map_in_parts(live, memory)
            memory.expect_filled()
        pipe_with(live, memory)
        part = Memory(live, memory.actor, memory.address + offset, 1, base)
        with (
            live.about(f"{make.__name__}, mapped as a whole {is_whole}, byte {offset}"),
            # a kernel that keeps it apart may refuse
            mended_at_the_end(live, part.frame(), memory.actor.end, may_be_refused=True),
        ):
            for time in range(1, 4):
                live.expect_errno(EHWPOISON, break_page, live, part, 0, MADV_HWPOISON)
                found = memory.actor.told_of_broken_memory()
                told = found and (found.signal, found.code, found.address)
                expected = signal.SIGBUS, _BUS_MCEERR_AR, part.address
                live.expect(f"signal, code, address, time {time}", expected, told)


def _page(live: Live) -> Memory:
    memory = live.map(1)
    memory.fill()
    return memory


def _base_page(live: Live, *, shared: bool) -> Memory:
    memory = map_aligned(live, 1, pmd_size(live), shared=shared, advice=MADV_NOHUGEPAGE)
    broken = Memory(live, memory.actor, memory.address + memory.size // 2, 1, live.base_page)
    broken.fill()
    return broken


def _part(live: Live) -> Memory:
    memory = huge_pages(live)
    return Memory(live, memory.actor, memory.address + memory.size // 2, 1, live.base_page)


def _expect_told(
    live: Live,
    make: Callable[[], Memory],
    choice: tuple[str, int | None],
    *,
    early_kill: bool,
    is_mended: bool = False,
    offset: int = 0,
) -> None:
    """Expect who says that the page that is made broke to be told as it chose, and when it touches the page, too.

    The base page at ``offset`` is said to have broken.
    """
    name, chosen = choice
    with live.about(f"chosen {name}, memory_failure_early_kill {early_kill:d}"):
        memory, frame = _broken(live, make, chosen, offset, early_kill=early_kill)
        found = memory.actor.told_of_broken_memory()
        wanted = chosen == PR_MCE_KILL_EARLY or (chosen in (None, PR_MCE_KILL_DEFAULT) and early_kill)
        code = _BUS_MCEERR_AO if wanted else None
        if live.kernel_version >= _TOLD_AS_AT_A_TOUCH:
            code = _BUS_MCEERR_AR
        expected = code and (signal.SIGBUS, code, memory.address + offset, memory.size)
        told = found and (found.signal, found.code, found.address, found.extent)

        def expect() -> None:
            live.expect("signal, code, address, bytes before a touch", expected, told)
            expect_broken(live, memory, offset)

        if is_mended:
            with mended_at_the_end(live, frame, memory.actor.end):
                expect()
        else:
            expect()
            memory.actor.end()


def _broken(
    live: Live, make: Callable[[], Memory], chosen: int | None, offset: int, *, early_kill: bool
) -> tuple[Memory, int]:
    """Return the page that is made, which its own process said is broken, and the frame that is.

    Raises CannotRun, OSError.
    """

    def say(memory: Memory) -> None:
        if chosen is not None:
            memory.actor.call("prctl", PR_MCE_KILL, PR_MCE_KILL_SET, chosen, 0, 0)
        break_page(live, memory, offset, MADV_HWPOISON, early_kill=early_kill)

    memory, frame, _nothing = break_in_use(live, make, offset, lambda: None, say)
    return memory, frame


class OwnSignals(LiveTest):
    def test_own_signals(self) -> None:
        self.run_area(OWN_SIGNALS)
