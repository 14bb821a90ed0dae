"""Memory of a process that others reach, as debuggers do: who sees what they write."""

import mmap
import os
import signal
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import forked
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory, read_of_another
from hugepage_qa.cases.thp_policy import base_pages, huge_pages
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused

WRITTEN_BY_OTHERS = Area("memory/written-by-others")
OLD, NEW = 7, 8


def write_of_another(live: Live, writer: Actor, memory: Memory, value: int, offset: int = 0) -> int:
    """Have ``writer`` store ``value`` in a word of another's ``memory``, as a debugger does. Raises Refused."""
    file = live.open(writer, f"/proc/{memory.actor.pid}/mem", os.O_RDWR)
    written = writer.call("pwrite64", file, live.host.uapi.pack("Q", value), WORD, memory.address + offset)
    writer.call("close", file)
    return written


@WRITTEN_BY_OTHERS.case(
    "what others write into a child's page, wherever in it, is seen by the child alone, and of a shared page by both:"
    " by process_vm_writev(2) and /proc/PID/mem",
    "process_vm_readv(2) process_vm_writev; fs/proc/base.c mem_rw(); fork(2);"
    " mm/hugetlb.c hugetlb_wp(), copy_hugetlb_page_range()",
    pages=4,
)
def others_write_after_a_fork(live: Live) -> None:
    source = live.map(1)
    for shared, by_file in product((False, True), (False, True)):
        memory = live.map(1, shared=shared)
        memory.fill(OLD)
        # a shared page is mapped for the child when it is reached
        child = memory.seen_by(memory.actor.fork()) if shared else forked(live, memory)
        places = 0, live.base_page, live.size - WORD
        for offset in places:
            _expect_others_to_reach(live, source, child, offset, by_file=by_file)
        if shared:
            found = [memory.actor.read(memory.address + offset) for offset in places]
            live.expect("what the parent reads", [NEW] * len(places), found)
        else:
            memory.expect_filled(OLD)
        live.expect_pool(nr=4, free=2 if shared else 1)
        memory.actor.end()
        live.expect_pool(nr=4, free=3)


def _expect_others_to_reach(live: Live, source: Memory, child: Memory, offset: int, *, by_file: bool) -> None:
    """Expect the owner of ``source`` to read a word of ``child``, which was filled with OLD, and to write NEW there."""
    place = source.address + offset
    local, remote = (live.host.uapi.pack("2Q", one.address + offset, WORD) for one in (source, child))
    # before it is written: the machine may forbid both
    live.expect("bytes read", WORD, read_of_another(live, source.actor, child.actor.pid, local, remote))
    live.expect(f"what was read at {offset}", OLD + offset, source.actor.read(place))
    source.actor.write(place, NEW)
    if by_file:
        written = write_of_another(live, source.actor, child, NEW, offset)
    else:
        written = source.actor.call("process_vm_writev", child.actor.pid, local, 1, remote, 1, 0)
    live.expect("bytes written", WORD, written)
    live.expect(f"what the child reads at {offset}", NEW, child.actor.read(child.address + offset))


@WRITTEN_BY_OTHERS.case(
    "a huge page that may only be read is written by a debugger, for its owner alone, who still may not write",
    "fs/proc/base.c mem_rw(); mm/gup.c FOLL_FORCE, can_follow_write_pmd() (CVE-2022-2590)",
    sizes=Sizes.ONCE,
)
def others_write_a_thp_that_is_read_only(live: Live) -> None:
    memory, ordinary = huge_pages(live, 1), base_pages(live)
    for one in (memory, ordinary):
        one.protect(mmap.PROT_READ)
    child = memory.seen_by(memory.actor.fork())
    try:
        write_of_another(live, live.actor(), ordinary, NEW)
    except Refused as refusal:
        raise CannotRun(
            "proc_mem.force_override= or its like forbids debuggers to write what is read-only"
        ) from refusal
    live.expect("bytes written", WORD, write_of_another(live, live.actor(), memory, NEW))
    live.expect("what parent and child read", (NEW, 1), (memory.read(), child.read()))
    for one in (memory, child):
        live.expect_signal(signal.SIGSEGV, one.touch)
    child.expect_filled()


class WrittenByOthers(LiveTest):
    """Cases on memory that other processes write, for every page size of the machine.

    :avocado: enable
    """

    def test_written_by_others(self) -> None:
        """Every case for every page size."""
        self.run_area(WRITTEN_BY_OTHERS)
