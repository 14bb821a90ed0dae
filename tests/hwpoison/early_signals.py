"""Who is told at once that a huge page broke, before it touches it: prctl(2) PR_MCE_KILL, and the knob for all."""

import errno
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from hugepage_qa.cases.broken_memory import (
    EHWPOISON,
    break_page,
    expect_broken,
    is_unsplit,
    mend,
    mended_at_the_end,
    need_mending,
    told_of,
)
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pinned_pages import pipe_with
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.kernel.uapi import (
    MADV_HWPOISON,
    PR_MCE_KILL,
    PR_MCE_KILL_DEFAULT,
    PR_MCE_KILL_EARLY,
    PR_MCE_KILL_GET,
    PR_MCE_KILL_LATE,
    PR_MCE_KILL_SET,
)
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused, hold_back

EARLY_SIGNALS = Area("hwpoison/early-signals", sizes=Sizes.BUDDY)

RULE = "PR_MCE_KILL(2const); Documentation/mm/hwpoison.rst; mm/memory-failure.c collect_procs(), kill_proc()"
MACHINE = "Documentation/admin-guide/sysctl/vm.rst memory_failure_early_kill"
# include/uapi/asm-generic/siginfo.h: signo, errno, code; from byte 16 on the address, and bits of what is lost
_BUS_MCEERR_AO, _SIGINFO, _CODE, _ADDRESS, _LSB = 5, 128, slice(8, 12), slice(16, 24), slice(24, 26)
_BYTES_OF_A_SET = 8
_ATTEMPTS = 5
_CHOSEN = (PR_MCE_KILL_EARLY, PR_MCE_KILL_LATE, PR_MCE_KILL_EARLY, PR_MCE_KILL_DEFAULT)


@dataclass(frozen=True)
class _Signal:
    """What a process is told: the code of SIGBUS, where memory broke, and how many bytes are lost."""

    code: int
    address: int
    extent: int


@EARLY_SIGNALS.case(
    "all processes that asked for it are told at once which page of a file broke, unused by them; others are not",
    RULE,
    pages=1,
)
def page_of_a_file(live: Live) -> None:
    need_mending(live)
    file = new_memfd(live)
    file.truncate(1)
    memory = file.map(1)
    memory.fill()
    frame = memory.frame()
    children = _children_who_chose(live, memory)
    break_page(live, memory, 0, MADV_HWPOISON)
    with mended_at_the_end(live, frame, file.actor.end):
        _expect_signals(live, memory, children, early_kill=False, extent=memory.size)
        file.truncate(0)
    live.expect_pool(nr=1, free=1)


@EARLY_SIGNALS.case(
    "all processes that asked for it are told at once which page broke that they share since fork(), and with"
    " memory_failure_early_kill those that asked for nothing; others are not, and none counts it any longer",
    f"{RULE}; {MACHINE}; Documentation/filesystems/proc.rst HugetlbPages; mm/rmap.c try_to_unmap_one()",
    pages=2,
)
def page_shared_by_fork(live: Live) -> None:
    for left, early_kill in ((1, False), (0, True)):
        with live.about(f"memory_failure_early_kill {early_kill:d}"):
            memory = live.map(1)
            memory.fill()
            for process in _expect_told_early(live, memory, partial(forked, live), early_kill=early_kill):
                live.expect("HugetlbPages", 0, process_status(live, process).hugetlb_pages)
            memory.actor.end()
            live.expect_pool(nr=left, free=left)


@EARLY_SIGNALS.case(
    "of a base page of a huge page those are told that it broke who share the huge page, of that base page alone",
    f"{RULE}; mm/memory-failure.c try_to_split_thp_page()",
    sizes=Sizes.ONCE,
)
def part_of_a_huge_page(live: Live) -> None:
    # a huge page that somebody holds stays broken
    if live.host.has_others:
        need_mending(live)
    for early_kill in (False, True):
        with live.about(f"memory_failure_early_kill {early_kill:d}"):
            for attempt in range(1, _ATTEMPTS + 1):
                if _is_split_and_told(live, early_kill=early_kill, may_be_held=attempt < _ATTEMPTS):
                    break


@EARLY_SIGNALS.case(
    "of a huge page that somebody holds, so that it cannot be split, they are told as well, where a base page of it"
    " broke and that all of it is lost, and madvise(2) is EHWPOISON",
    f"{RULE}, memory_failure(), kill_procs_now()",
    sizes=Sizes.ONCE,
    since="6.11",
)
def part_of_a_held_huge_page(live: Live) -> None:
    need_mending(live)
    for early_kill in (False, True):
        memory = huge_pages(live)
        broken = Memory(live, memory.actor, memory.address + memory.size // 2, 1, live.base_page)
        frame = broken.frame()
        children = _children_who_chose(live, broken, filled=memory.size // 2)
        pipe_with(live, memory)
        with live.about(f"memory_failure_early_kill {early_kill:d}"):
            live.expect_errno(EHWPOISON, break_page, live, broken, 0, MADV_HWPOISON, early_kill=early_kill)
            with mended_at_the_end(live, frame, memory.actor.end):
                _expect_signals(live, broken, children, early_kill=early_kill, extent=memory.size)


def _is_split_and_told(live: Live, *, early_kill: bool, may_be_held: bool) -> bool:
    """Expect those who share a huge page to be told that a base page of it broke; return whether it was split for that.

    It is not while anybody holds it: EHWPOISON, too, since Linux 6.11, and EBUSY before (mm/memory-failure.c
    memory_failure(), MF_MSG_UNSPLIT_THP). It is taken for whole again then.
    """
    memory, number = huge_pages(live, 2), int(early_kill)
    offset = number * memory.size + memory.size // 2
    broken = Memory(live, memory.actor, memory.address + offset, 1, live.base_page)
    frame = broken.frame()
    children = _children_who_chose(live, broken, filled=offset)
    live.host.new_kernel_log()
    try:
        _expect_told(live, broken, children, early_kill=early_kill)
    except Refused as refusal:
        is_held = is_unsplit(told_of(live, frame))
        if not may_be_held or refusal.errno not in (EHWPOISON, errno.EBUSY) or not is_held:
            raise
        for process in (*(child.actor for child in children), memory.actor):
            process.end()
        mend(live, frame)
        return False
    expect_broken(live, broken)
    return True


def _expect_told_early(
    live: Live, memory: Memory, fork: Callable[[Memory], Memory] = Memory.fork, *, early_kill: bool = False
) -> list[Actor]:
    """Expect each child of the actor of a page to be told of its breaking as it has chosen; return all processes.

    The page has what ``fill`` stored. With ``early_kill`` the machine tells those who have not chosen.
    """
    children = _children_who_chose(live, memory, fork)
    _expect_told(live, memory, children, early_kill=early_kill)
    return [memory.actor, *(child.actor for child in children)]


def _children_who_chose(
    live: Live, memory: Memory, fork: Callable[[Memory], Memory] = Memory.fork, filled: int = 0
) -> list[Memory]:
    """Return a page as a child sees it for each of _CHOSEN; it begins ``filled`` bytes behind what was filled."""
    # the signal that is not for a touch would end it
    memory.actor.call("prctl", PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_LATE, 0, 0)
    children = [fork(memory) for _choice in _CHOSEN]
    for child, choice in zip(children, _CHOSEN, strict=True):
        child.expect_filled(1 + filled)
        # nobody is ended by the signal that it waits for
        hold_back(child.actor, signal.SIGBUS)
        child.actor.call("prctl", PR_MCE_KILL, PR_MCE_KILL_SET, choice, 0, 0)
        live.expect("PR_MCE_KILL_GET", choice, child.actor.call("prctl", PR_MCE_KILL_GET, 0, 0, 0, 0))
    return children


def _expect_told(live: Live, memory: Memory, children: list[Memory], *, early_kill: bool) -> None:
    break_page(live, memory, 0, MADV_HWPOISON, early_kill=early_kill)
    _expect_signals(live, memory, children, early_kill=early_kill, extent=memory.size)


def _expect_signals(live: Live, memory: Memory, children: list[Memory], *, early_kill: bool, extent: int) -> None:
    told = _Signal(_BUS_MCEERR_AO, memory.address, extent)
    wanting = {PR_MCE_KILL_EARLY} | ({PR_MCE_KILL_DEFAULT} if early_kill else set())
    expected = [told if choice in wanting else None for choice in _CHOSEN]
    live.expect("what children are told who chose early, late, early, default", expected, [*map(_signal_of, children)])


def _signal_of(memory: Memory) -> _Signal | None:
    """Return the SIGBUS that waits for the actor of ``memory``."""
    uapi = memory.actor.uapi
    now = uapi.pack("2q", 0, 0)
    words = _set_of_sigbus(memory.actor), bytes(_SIGINFO), now, _BYTES_OF_A_SET
    try:
        _number, (_set, told, _now) = memory.actor.call_with_buffers("rt_sigtimedwait", *words)
    except Refused as refusal:
        if refusal.errno != errno.EAGAIN:
            raise
        return None
    (code,), (address,), (lsb,) = (
        uapi.unpack(layout, told[where]) for layout, where in (("i", _CODE), ("Q", _ADDRESS), ("h", _LSB))
    )
    return _Signal(code, address, 1 << lsb)


def _set_of_sigbus(actor: Actor) -> bytes:
    return actor.uapi.pack("Q", 1 << signal.SIGBUS - 1)


class EarlySignals(LiveTest):
    def test_early_signals(self) -> None:
        self.run_area(EARLY_SIGNALS)
