"""Threads that wait for a program to handle their faults: who is told of them, who is woken, and who waits on."""

import errno
from functools import partial
from itertools import combinations

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.cpu_time import thread_seconds
from hugepage_qa.cases.handled_pages import (
    PAGES,
    WORD_OF_A_THREAD,
    Watched,
    addresses,
    huge_kinds,
    hugetlb_kinds,
    judge_each,
    marked_kinds,
    other_kinds,
)
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import value_or_signal
from hugepage_qa.cases.userfaultfd_messages import MESSAGE_SIZE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.actor_threads import Came

WOKEN = Area("userfaultfd/woken-threads")

# include/uapi/linux/eventpoll.h
_ADD, _READABLE = 1, 1
#: struct epoll_event, which is packed on x86 alone: without what is told besides, either way
_EVENT = "I12x"

DOC = "Documentation/admin-guide/mm/userfaultfd.rst"
WOKEN_ALONE = (
    "of threads that wait for a program to handle their faults those alone go on, or are told of again, whose page is"
    " handled or woken, whichever range that is; with UFFDIO_*_MODE_DONTWAKE none does until it is woken, and"
    " /proc/PID/fdinfo tells how many wait"
)
WAKES = (
    f"ioctl_userfaultfd(2) UFFDIO_WAKE, UFFDIO_COPY_MODE_DONTWAKE; {DOC}; fs/userfaultfd.c wake_userfault(),"
    " userfaultfd_wake_function(), userfaultfd_show_fdinfo()"
)
TOLD_ONCE = (
    "of a fault that waits a program is told once, as many of them at a time as it has room for, and of one that was"
    " handled before never; poll(2) says whether there is one to be told of, and a read without room is EINVAL"
)
READS = f"userfaultfd(2) Userfaultfd operation; {DOC}; fs/userfaultfd.c userfaultfd_read_iter(), userfaultfd_poll()"
ASLEEP = (
    "a thread that waits for a program to handle its fault sleeps, and uses no CPU time, until that is done; who waits"
    " in poll(2) or epoll(7) for a fault to be told of is woken by it"
)
SLEEPS = (
    f"userfaultfd(2); {DOC}; fs/userfaultfd.c handle_userfault(), userfaultfd_must_wait(), userfaultfd_huge_must_wait()"
)
#: CPU time that another process takes meanwhile, and what a thread that does not sleep has in that time at least, on a
#: machine with one CPU, too
_OTHERS_SECONDS, _AWAKE_SECONDS = 0.2, 0.03
#: a thread that is to wait has been told of long before, on a busy machine, too; one that has used a CPU for so long
#: never waits, and is not to be left until the kernel tells of a stall
_WOKEN_SECONDS, _SPUN_SECONDS = 60.0, 2.0
_IS_WOKEN, _USES_A_CPU, _NEITHER = "who polls is woken", "the thread uses a CPU all the time", "neither"
#: of a thread, in /proc/PID/task/TID/syscall (proc_pid_syscall() in fs/proc/base.c)
_RUNNING = "running"


@WOKEN.case(WOKEN_ALONE, WAKES, since="5.19", sizes=Sizes.BUDDY, pages=2 * PAGES)
def of_hugetlb_pages(live: Live) -> None:
    judge_each(live, (kind for more in addresses(live) for kind in hugetlb_kinds(live, more)), _expect_woken_alone)
    live.expect_pool(nr=2 * PAGES, free=2 * PAGES)


@WOKEN.case(WOKEN_ALONE, WAKES, since="5.19", sizes=Sizes.ONCE)
def of_other_pages(live: Live) -> None:
    judge_each(live, (kind for more in addresses(live) for kind in other_kinds(live, more)), _expect_woken_alone)


@WOKEN.case(TOLD_ONCE, READS, since="5.19", sizes=Sizes.BUDDY, pages=2 * PAGES)
def told_of_hugetlb_pages(live: Live) -> None:
    judge_each(live, hugetlb_kinds(live), _expect_told_once)
    live.expect_pool(nr=2 * PAGES, free=2 * PAGES)


@WOKEN.case(TOLD_ONCE, READS, since="5.19", sizes=Sizes.ONCE)
def told_of_other_pages(live: Live) -> None:
    judge_each(live, other_kinds(live), _expect_told_once)


@WOKEN.case(ASLEEP, SLEEPS, since="5.19", sizes=Sizes.BUDDY, pages=2 * PAGES)
def asleep_for_hugetlb_pages(live: Live) -> None:
    judge_each(live, hugetlb_kinds(live), _expect_asleep)
    live.expect_pool(nr=2 * PAGES, free=2 * PAGES)


@WOKEN.case(
    "a thread that waits for a missing page that was protected before it was there, private or shared, sleeps, and goes"
    " on when that page is filled, alone",
    f"{SLEEPS}; mm/hugetlb.c hugetlb_no_page()",
    since="5.19",
    sizes=Sizes.BUDDY,
    pages=2 * PAGES,
)
def of_protected_holes(live: Live) -> None:
    judge_each(live, marked_kinds(live), _expect_asleep, _expect_woken_alone, _expect_told_once)
    live.expect_pool(nr=2 * PAGES, free=2 * PAGES)


@WOKEN.case(ASLEEP, SLEEPS, since="5.19", sizes=Sizes.ONCE)
def asleep_for_other_pages(live: Live) -> None:
    judge_each(live, (*huge_kinds(live), *other_kinds(live)), _expect_asleep)


# where a thread does not sleep the others wait in vain: it is judged first
@WOKEN.case(WOKEN_ALONE, WAKES, since="5.19", sizes=Sizes.ONCE)
def of_huge_pages(live: Live) -> None:
    kinds = (kind for more in addresses(live) for kind in huge_kinds(live, more))
    judge_each(live, kinds, _expect_asleep, _expect_woken_alone)


@WOKEN.case(TOLD_ONCE, READS, since="5.19", sizes=Sizes.ONCE)
def told_of_huge_pages(live: Live) -> None:
    judge_each(live, huge_kinds(live), _expect_asleep, _expect_told_once)


def _expect_woken_alone(live: Live, watched: Watched) -> None:
    fault = watched.fault
    _have_all_wait(live, watched)
    _expect_told(live, watched, range(PAGES), "at first")
    for first, end in combinations(range(PAGES + 1), 2):
        fault.wake(first, end - first)
        # one that goes on though its page is not among them is told of here, or the next time
        _expect_told(live, watched, range(first, end), f"when pages {first} to {end - 1} were woken")
    middle = PAGES // 2
    # a thread that is counted as one that waits looks at its page once more before it sleeps (handle_userfault())
    live.host.wait_until(lambda: _are_asleep(live, watched.memory.actor))
    watched.handle(middle, False)
    live.expect("threads that wait when one page is handled, and nobody woken", (0, PAGES), fault.waiting(live))
    others = [page for page in range(PAGES) if page != middle]
    for page in others:
        fault.wake(page, 1)
        _expect_told(live, watched, [page], f"when page {page} was woken")
    word = value_or_signal(partial(watched.memory.actor.read, watched.own_word(middle)))
    live.expect("word of who is not woken", watched.filled(middle), word)
    fault.wake(middle, 1)
    _expect_gone_on(live, watched, others)
    for page in others:
        others = [other for other in others if other != page]
        watched.handle(page, True)
        _expect_gone_on(live, watched, others)
    _expect_all_done(live, watched)


def _expect_told_once(live: Live, watched: Watched) -> None:
    fault = watched.fault
    live.expect("whether poll(2) tells of a message before there is one", False, fault.is_readable())
    live.expect_errno(errno.EAGAIN, fault.faults_at_once, live, MESSAGE_SIZE)
    _have_all_wait(live, watched)
    live.expect("whether poll(2) tells of a message", True, fault.is_readable())
    live.expect_errno(errno.EINVAL, fault.faults_at_once, live, MESSAGE_SIZE - 1)
    watched.handle(0, True)
    live.host.wait_until(lambda: fault.waiting(live) == (PAGES - 1, PAGES - 1))
    live.expect("threads that wait when one page is handled", (PAGES - 1, PAGES - 1), fault.waiting(live))
    told = fault.faults_at_once(live, 2 * MESSAGE_SIZE - 1)
    live.expect("messages that there is room for", 1, len(told))
    live.expect("threads that wait when one was told of", (PAGES - 2, PAGES - 1), fault.waiting(live))
    told += fault.faults_at_once(live, PAGES * MESSAGE_SIZE)
    live.expect("what is told", watched.told_of(range(1, PAGES)), sorted(told, key=lambda one: one.address))
    live.expect("whether poll(2) tells of a message when all were read", False, fault.is_readable())
    live.expect_errno(errno.EAGAIN, fault.faults_at_once, live, MESSAGE_SIZE)
    for page in range(1, PAGES):
        watched.handle(page, True)
    _expect_gone_on(live, watched, [])
    _expect_all_done(live, watched)


def _expect_asleep(live: Live, watched: Watched) -> None:
    """Expect a thread to sleep that waits for a page, one after the other: several that do not may stop the machine."""
    actor = watched.memory.actor
    poll = _EventPoll(actor, watched.fault.descriptor)
    for page in range(PAGES):
        live.expect("whether who polls is woken before there is a fault", False, poll.is_woken())
        actor.threads.use(watched.memory.at(page), WORD_OF_A_THREAD, WORD_OF_A_THREAD)
        found = live.host.last_look(partial(_what_comes_of, live, actor, poll), _NEITHER.__ne__, _WOKEN_SECONDS)
        if found != _IS_WOKEN:
            # whose waiting nobody is told of may not sleep either, and what follows would be waited for in vain
            live.fail(f"what comes of a fault of page {page}", _IS_WOKEN, found)
        live.host.wait_until(lambda: _are_asleep(live, actor))
        before = thread_seconds(live, actor)
        other = live.actor()
        other.compute(_OTHERS_SECONDS)
        other.end()
        used = {thread: seconds - before[thread] for thread, seconds in thread_seconds(live, actor).items()}
        awake = [thread for thread, seconds in used.items() if seconds >= _AWAKE_SECONDS]
        live.expect(f"threads that use a CPU while they wait for page {page}", [], awake)
        watched.handle(page, True)
        live.expect("what came of the access", [Came.DONE], [done.came for done in actor.threads.stop(0)])
    live.expect("whether who polls is woken when all are handled", False, poll.is_woken())
    watched.fault.expect_nothing_told(live)


def _what_comes_of(live: Live, actor: Actor, poll: "_EventPoll") -> str:
    """Return what is seen of a fault so far: that ``poll`` is woken, or that the thread that has it does not wait."""
    if poll.is_woken():
        return _IS_WOKEN
    longest = max(thread_seconds(live, actor).values(), default=0.0)
    return _USES_A_CPU if longest >= _SPUN_SECONDS else _NEITHER


def _have_all_wait(live: Live, watched: Watched) -> None:
    """Have a thread write to each page."""
    for page in range(PAGES):
        address = watched.memory.at(page) + watched.place(page)
        watched.memory.actor.threads.use(address, WORD_OF_A_THREAD, WORD_OF_A_THREAD)
    live.host.wait_until(lambda: watched.fault.waiting(live) == (PAGES, PAGES))
    live.expect("threads that wait", (PAGES, PAGES), watched.fault.waiting(live))


def _are_asleep(live: Live, actor: Actor) -> bool:
    """Tell whether no thread of ``actor`` runs or is about to: those that do not stay asleep are told as running.

    That is so as well where the kernel does not tell (lib/syscall.c task_current_syscall()).
    """
    threads = f"proc/{actor.pid}/task"
    told = [live.host.read(f"{threads}/{thread}/syscall") or "" for thread in live.host.names(threads)]
    return _RUNNING not in map(str.strip, told)


def _expect_told(live: Live, watched: Watched, pages: "range | list[int]", when: str) -> None:
    told = [watched.fault.await_fault(live) for _page in pages]
    live.expect(f"what is told {when}", watched.told_of(pages), sorted(told, key=lambda fault: fault.address))


def _expect_gone_on(live: Live, watched: Watched, others: list[int]) -> None:
    """Expect the threads of ``others`` alone to wait, of which nothing is told anew."""
    waiting = (0, len(others))
    found = live.host.last_look(lambda: watched.fault.waiting(live), waiting.__eq__)
    if found != waiting:
        # where one is not woken, or too many are, each page that follows would wait in vain
        live.fail(f"threads that wait, for pages {others}", waiting, found)


def _expect_all_done(live: Live, watched: Watched) -> None:
    live.expect(
        "what came of the accesses", PAGES * [Came.DONE], [done.came for done in watched.memory.actor.threads.stop(0)]
    )
    live.expect("threads that wait at last", (0, 0), watched.fault.waiting(live))
    watched.fault.expect_nothing_told(live)


class _EventPoll:
    """What epoll(7) tells ``actor`` of one of its descriptors: that it can be read, once who waits was woken."""

    def __init__(self, actor: Actor, descriptor: int) -> None:
        """Wait for ``descriptor`` from now on. Raises Refused."""
        self._actor = actor
        self._poll = actor.call("epoll_create1", 0)
        actor.call("epoll_ctl", self._poll, _ADD, descriptor, actor.uapi.pack(_EVENT, _READABLE))

    def is_woken(self) -> bool:
        """Tell whether somebody who waits for it is woken, or would have been. Raises Refused."""
        room = bytes(self._actor.uapi.size_of(_EVENT))
        return self._actor.call("epoll_pwait", self._poll, room, 1, 0, 0, 0) == 1


class WokenThreads(LiveTest):
    def test_woken_threads(self) -> None:
        self.run_area(WOKEN)
