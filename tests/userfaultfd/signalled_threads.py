"""Threads that wait for a program to handle their faults, and get signals meanwhile."""

import signal
from collections.abc import Iterable

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.handled_pages import PAGES, WORD_OF_A_THREAD, Watched, huge_kinds, hugetlb_kinds, other_kinds
from hugepage_qa.cases.live import Live
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.actor_threads import Came
from hugepage_qa.process.process_table import STATE, split_stat

SIGNALLED = Area("userfaultfd/signalled-threads", sizes=Sizes.ONCE)

INTERRUPTED = (
    "a thread that waits for a program to handle its fault runs its handler of a signal at once, and stops when its"
    " process is stopped; where it tries again after that it waits again, and the program is told of it once more, and"
    " of no other thread that has got no signal"
)
SIGNALS = (
    "fs/userfaultfd.c, mm/userfaultfd.c: handle_userfault(), userfaultfd_get_blocking_state(), since dfa37dc3fc1f;"
    " signal(7), userfaultfd(2)"
)
_STOPPED = "T"
#: the first ends the store beside a thread's word, of which nothing is told, the second that of the word itself
#: (use_again() in repeaters.c)
_TIMES = 2


@SIGNALLED.case(INTERRUPTED, SIGNALS, since="5.19", sizes=Sizes.BUDDY, pages=2 * PAGES)
def waiting_for_hugetlb_pages(live: Live) -> None:
    for make in hugetlb_kinds(live):
        watched = make()
        with live.about(watched.name):
            _expect_interrupted(live, watched)
        watched.memory.actor.end()
        live.expect_pool(nr=2 * PAGES, free=2 * PAGES)


@SIGNALLED.case(INTERRUPTED, SIGNALS, since="5.19")
def waiting_for_other_pages(live: Live) -> None:
    for make in (*huge_kinds(live), *other_kinds(live)):
        watched = make()
        with live.about(watched.name):
            _expect_interrupted(live, watched)
        watched.memory.actor.end()


def _expect_interrupted(live: Live, watched: Watched) -> None:
    actor = watched.memory.actor
    threads = [_have_wait(live, watched, page) for page in range(PAGES)]
    for page, thread in enumerate(threads):
        for time in range(1, _TIMES + 1):
            # a handler that leaves the access, after which it is tried again
            actor.call("tgkill", actor.pid, int(thread), signal.SIGSEGV)
            _expect_told(live, watched, [page], f"when the thread of page {page} has got signal {time}")
    other = live.actor()
    other.call("kill", actor.pid, signal.SIGSTOP)
    expected = PAGES * [_STOPPED]
    found = live.host.last_look(lambda: _states(live, actor, threads), expected.__eq__)
    if found != expected:
        # who has not stopped is told of no more
        live.fail("states of the threads of a stopped process", expected, found)
    other.call("kill", actor.pid, signal.SIGCONT)
    _expect_told(live, watched, range(PAGES), "when all have stopped and go on")
    for page in range(PAGES):
        watched.handle(page, True)
    came = PAGES * [Came.SIGSEGV | Came.DONE]
    live.expect("what came of the accesses", came, [done.came for done in actor.threads.stop(0)])
    live.expect("threads that wait at last", (0, 0), watched.fault.waiting(live))
    watched.fault.expect_nothing_told(live)


def _have_wait(live: Live, watched: Watched, page: int) -> str:
    """Have a new thread write to ``page``, expect it to be told of, and return its number."""
    threads = f"proc/{watched.memory.actor.pid}/task"
    before = live.host.names(threads)
    watched.memory.actor.threads.use(watched.memory.at(page), WORD_OF_A_THREAD, WORD_OF_A_THREAD)
    [thread] = set(live.host.names(threads)) - {*before}
    live.expect(f"what is told of page {page}", watched.told_of([page])[0], watched.fault.await_fault(live))
    return thread


def _expect_told(live: Live, watched: Watched, pages: Iterable[int], when: str) -> None:
    """Expect a fault of each of ``pages`` to be told of, and all threads to wait then, of which no more is told."""
    wanted = watched.told_of(pages)
    told = [watched.fault.await_fault(live) for _page in wanted]
    live.expect(f"what is told {when}", wanted, sorted(told, key=lambda fault: fault.address))
    live.expect(f"threads that wait {when}", (0, PAGES), watched.fault.waiting(live))


def _states(live: Live, actor: Actor, threads: Iterable[str]) -> list[str]:
    """Return the states of ``threads`` of ``actor``, as proc_pid_stat(5) has them; none of one that is gone."""
    stats = (live.host.observe(f"proc/{actor.pid}/task/{thread}/stat") or "" for thread in threads)
    return [split_stat(stat)[STATE] if stat else "" for stat in stats]


class SignalledThreads(LiveTest):
    def test_signalled_threads(self) -> None:
        self.run_area(SIGNALLED)
