"""Writes to the files of a pool by who gets a signal meanwhile: he does not wait for all pages that he asked for."""

import os
import signal
from itertools import product

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.thp_memory import map_aligned
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.cases.userfaultfd_calls import UserfaultCalls
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.process_table import STATE, split_stat

INTERRUPTED = Area("pool/interrupted-writes")

_STOPPED = "T"
_PAGES = 2


@INTERRUPTED.case(
    "a pool grows by one page more for who has got a signal, and by no other, by each file that makes it grow; it gives"
    " back all that it is to, whatever signal there is",
    f"{HUGETLB_DOC} nr_hugepages; mm/hugetlb.c set_max_huge_pages(), signal_pending()",
)
def signal_while_it_grows(live: Live) -> None:
    for path, node in _files(live):
        # so that it is seen to be the signal that a page is not there for
        live.reserve(_PAGES, node)
        for before, asked, after in ((_PAGES, 0, 0), (0, _PAGES, 1)):
            with live.about(f"from {before} to {asked} pages by /{path}"):
                _write_with_a_signal(live, path, asked - before)
                for where in {None, node}:
                    live.expect_pool(nr=after, free=after, node=where)
                if after:
                    memory = live.map(after)
                    memory.fill()
                    live.expect_pool(nr=after, free=0)
                    memory.actor.end()
        live.set_nr(0, node)


def _files(live: Live) -> list[tuple[str, int | None]]:
    """Return the paths of the files of numbers of persistent pages, and the node of each."""
    found = []
    for node, name in product((None, *live.nodes), ("nr_hugepages", "nr_hugepages_mempolicy")):
        path = live.pool_file(name, node=node)
        if live.host.read(path) is not None:
            found.append((path, node))
    return found


def _write_with_a_signal(live: Live, path: str, more: int) -> None:
    """Have a process write to ``path`` what it reads and ``more``, and be stopped before the kernel has the text.

    It has written when it stops, and is ended then.
    """
    writer = live.actor()
    text = str((read_integer(live.host, path) or 0) + more).encode()
    memory = map_aligned(live, 1, live.base_page, actor=writer)
    source = map_aligned(live, 1, live.base_page, actor=writer)
    writer.call("pread64", _file_with(writer, text), source.address, len(text), 0)
    fault = Userfault(memory, Mode.MISSING, Feature(0), waits=True, of_kernel=True)
    other = writer.fork()
    descriptor = live.open(writer, f"/{path}", os.O_WRONLY)
    writer.threads.attempt("write", descriptor, memory.address, len(text))
    # the thread waits for the text until another process, which goes on, brings it
    fault.await_fault(live)
    other.call("kill", writer.pid, signal.SIGSTOP)
    # the thread that stops first is the one that tells the others of the signal
    live.host.last_look(lambda: _STOPPED in _states(live, writer), bool)
    UserfaultCalls(other, fault.descriptor).make("copy", memory.address, source.address, live.base_page, 0, 0)
    live.expect(
        "states of its threads", {_STOPPED}, live.host.last_look(lambda: _states(live, writer), {_STOPPED}.__eq__)
    )
    other.call("kill", writer.pid, signal.SIGKILL)
    other.end()


def _file_with(actor: Actor, text: bytes) -> int:
    """Return the descriptor of a file of memory that has ``text``."""
    descriptor = actor.call("memfd_create", "text", 0)
    actor.call("pwrite64", descriptor, text, len(text), 0)
    return descriptor


def _states(live: Live, actor: Actor) -> set[str]:
    """Return the states of the threads of ``actor``, as proc_pid_stat(5) has them."""
    threads = f"proc/{actor.pid}/task"
    stats = (live.host.observe(f"{threads}/{thread}/stat") for thread in live.host.names(threads))
    return {split_stat(stat)[STATE] for stat in stats if stat}


class InterruptedWrites(LiveTest):
    def test_interrupted_writes(self) -> None:
        self.run_area(INTERRUPTED)
