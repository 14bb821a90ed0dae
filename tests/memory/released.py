"""process_mrelease(2): memory of a killed process that is given back before it has ended, huge pages among it."""

import errno
import mmap
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.reached_from_outside import word_read_by
from hugepage_qa.cases.thp_memory import need_blocks, pmd_size
from hugepage_qa.cases.thp_policy import advised, huge_pages, map_in_parts
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, map_file, shared_huge_pages
from hugepage_qa.kernel.smaps import read_smaps
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused

RELEASED = Area("memory/released")

SOURCE = "mm/oom_kill.c process_mrelease(), __oom_reap_task_mm() (884a7e5964e0)"
SINCE = "5.15"
_PAGES = 3
# include/uapi/linux/sched.h: CLONE_VM, CLONE_VFORK, CLONE_CHILD_SETTID
_SHARES_ALL = 0x100 | 0x4000 | 0x1000000
# include/uapi/linux/ptrace.h, include/uapi/linux/wait.h
_PTRACE_SEIZE, _PTRACE_O_TRACEEXIT, _PTRACE_EVENT_EXIT, _WALL = 0x4206, 1 << 6, 6, 0x40000000
_STOPPED: Final = 0x7F


@RELEASED.case(
    "process_mrelease(2) of a killed process gives back all memory that is its alone, huge pages whole, in parts or"
    " with holes, base pages and copies of a file, wherever they are mapped; a child keeps what it shares with it",
    SOURCE,
    sizes=Sizes.ONCE,
    since=SINCE,
)
def private(live: Live) -> None:
    for with_a_child in (False, True):
        with live.about("with a child" if with_a_child else "alone"):
            kinds = _private_memory(live)
            actor = next(iter(kinds.values())).actor
            child = actor.fork() if with_a_child else None
            with _on_its_way_out(live, actor.pid) as holder:
                live.expect("whether it has memory yet", True, all(one.smaps().rss > 0 for one in kinds.values()))
                for _time in range(2):
                    live.expect_success(_release, holder, actor.pid)
                    for kind, one in kinds.items():
                        found = one.all_mappings()
                        live.expect(f"Rss of {kind}", 0, sum(mapping.rss for mapping in found))
                        live.expect(f"AnonHugePages of {kind}", 0, sum(mapping.anon_huge_pages for mapping in found))
            if child:
                for kind, one in kinds.items():
                    wrong = one.seen_by(child).wrong(0, one.size)
                    live.expect(f"words that a child sees changed of {kind}", 0, wrong)
                child.end()
            actor.end()


def _private_memory(live: Live) -> dict[str, Memory]:
    """Return memory of a new actor by what it is, of which the first page is filled, and all others but for holes.

    Raises as ``need_blocks`` does.
    """
    huge = huge_pages(live, _PAGES)
    actor = huge.actor
    parts, holes = (advised(live, _PAGES, actor=actor) for _each in range(2))
    for one in (parts, holes):
        one.fill()
        need_blocks(live, one)
        one.expect_huge()
    map_in_parts(live, parts)
    holes.advise(MADV_DONTNEED, 1, 1)
    actor.call("madvise", holes.at(2) + live.base_page, live.base_page, MADV_DONTNEED)
    small = advised(live, _PAGES, MADV_NOHUGEPAGE, actor=actor)
    small.fill()
    file = actor.call("memfd_create", "copied", 0)
    actor.call("ftruncate", file, pmd_size(live))
    copies = map_file(live, actor, file, 1, shared=False)
    copies.fill()
    named = {"huge pages": huge, "parts": parts, "huge pages with holes": holes, "base pages": small}
    return named | {"copies of a file": copies}


@RELEASED.case(
    "process_mrelease(2) of a killed process leaves others what they share with it: shared huge pages, mapped whole",
    SOURCE,
    sizes=Sizes.ONCE,
    since=SINCE,
)
def shared(live: Live) -> None:
    let_only_pmd_inherit(live)
    memory = shared_huge_pages(live, _PAGES)
    child = memory.fork()
    expected = [1 + number * memory.size for number in range(_PAGES)]
    live.expect("what the child reads", expected, [child.read(number) for number in range(_PAGES)])
    with _on_its_way_out(live, memory.actor.pid) as holder:
        live.expect_success(_release, holder, memory.actor.pid)
        child.expect_filled()
        live.expect("ShmemPmdMapped of the child", memory.length, child.smaps().shmem_pmd_mapped)
        child.touch(0, 7)
        live.expect("what the child has written", 7, child.read())


@RELEASED.case(
    "process_mrelease(2) of a killed process with pages of a pool leaves others theirs, and when it has ended all of"
    " its own are free, and none is reserved",
    SOURCE,
    pages=4,
    since=SINCE,
)
def of_a_pool(live: Live) -> None:
    # a page of its own, one that is only reserved, and one that both map
    memory = live.map(2)
    memory.fill_part(0, live.base_page)
    common = live.map(1, memory.actor, shared=True)
    common.fill_part(0, live.base_page)
    other = common.seen_by(forked(live, memory).actor)
    live.expect("what the other sees", 1, other.read())
    with _on_its_way_out(live, memory.actor.pid) as holder:
        live.expect_success(_release, holder, memory.actor.pid)
        live.expect("words that the other sees changed", 0, other.wrong(0, live.base_page))
    memory.actor.exit()
    # the child has two: what was common, and the one that its parent had filled
    live.expect_pool(nr=4, free=2, known={Quirk.UNMAP_RESERVES_PAGE_IN_USE: {"resv": -1}})
    live.expect("words that the other sees changed at last", 0, other.wrong(0, live.base_page))
    other.actor.end()
    live.expect_pool(nr=4, free=4)


@RELEASED.case(
    "process_mrelease(2) of a killed process that has all its memory in common with one that nobody has killed is"
    " EINVAL, and takes nothing; when that one is killed, too, all is given back",
    f"{SOURCE}, task_will_free_mem(); clone(2) CLONE_VM",
    sizes=Sizes.ONCE,
    since=SINCE,
)
def of_one_that_shares_all(live: Live) -> None:
    memory, reader = huge_pages(live, _PAGES), live.actor()
    actor = memory.actor
    number = actor.mmap(live.base_page, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    asked = live.host.uapi.pack("8Q", _SHARES_ALL, 0, number, 0, signal.SIGCHLD, 0, 0, 0)
    # from here on the child answers for it, on its stack: until that one has ended it waits in the kernel
    actor.call("clone3", asked, len(asked))
    child, _rest = live.host.uapi.unpack("2I", live.host.uapi.pack("Q", actor.read(number)))
    with _on_its_way_out(live, child) as holder:
        live.expect_errno(errno.EINVAL, _release, holder, child)
        live.expect("AnonHugePages of who lives", memory.length, memory.smaps().anon_huge_pages)
        for place in (0, memory.size - WORD, memory.size, memory.length - WORD):
            live.expect(f"what it has at {place}", 1 + place, word_read_by(live, reader, memory, place))
        holder.call("kill", actor.pid, signal.SIGKILL)
        live.expect_success(_release, holder, child)
        left = read_smaps(ObservedTree(live.host), child) or ()
        live.expect("Rss of all anonymous memory", 0, sum(one.rss for one in left if not one.path))


@RELEASED.case(
    "process_mrelease(2) of a process that nobody has killed is EINVAL, and so is any flag; of one that has ended it is"
    " ESRCH, and of what is no process EBADF; nothing is lost by these",
    SOURCE,
    sizes=Sizes.ONCE,
    since=SINCE,
)
def refused(live: Live) -> None:
    memory, other = huge_pages(live, _PAGES), live.actor()
    process = other.call("pidfd_open", memory.actor.pid, 0)
    file = live.open(other, "/proc/self/maps", os.O_RDONLY)
    for what, number, descriptor, flags in (
        ("one that lives", errno.EINVAL, process, 0),
        ("a flag", errno.EINVAL, process, 1),
        ("another flag", errno.EINVAL, process, 1 << 31),
        ("a file", errno.EBADF, file, 0),
        ("what is not open", errno.EBADF, -1, 0),
    ):
        with live.about(what):
            live.expect_errno(number, other.call, "process_mrelease", descriptor, flags)
            memory.expect_filled()
            memory.expect_huge()
    with _on_its_way_out(live, memory.actor.pid), live.about("a flag for one that was killed"):
        live.expect_errno(errno.EINVAL, other.call, "process_mrelease", process, 1)
        live.expect("Rss", memory.length, memory.smaps().rss)
    memory.actor.end()
    with live.about("one that has ended"):
        live.expect_errno(errno.ESRCH, other.call, "process_mrelease", process, 0)


@contextmanager
def _on_its_way_out(live: Live, process: int) -> Iterator[Actor]:
    """Kill ``process``, and have it stay with all its memory meanwhile; yield who holds it. Raises CannotRun.

    A debugger that asked for it (PTRACE_O_TRACEEXIT, ptrace(2)) has it stop before it gives its memory back, as one is
    that waits for something on its way out. When that one lets go it ends.
    """
    holder = live.actor()
    try:
        holder.call("ptrace", _PTRACE_SEIZE, process, 0, _PTRACE_O_TRACEEXIT)
    except Refused as refusal:
        raise CannotRun(f"no process may debug another one here: {refusal.strerror}") from refusal
    try:
        holder.call("kill", process, signal.SIGKILL)
        _process, (status,) = holder.call_with_buffers("wait4", process, bytes(4), _WALL, 0)
        expected = _PTRACE_EVENT_EXIT << 16 | signal.SIGTRAP << 8 | _STOPPED
        live.expect("wait status of who was killed", expected, live.host.uapi.unpack("I", status)[0])
        yield holder
    finally:
        # whom it holds goes on with its end then
        holder.end()


class Released(LiveTest):
    def test_released(self) -> None:
        self.run_area(RELEASED)


def _release(actor: Actor, process: int) -> None:
    """Have ``actor`` release the memory of a process. Raises Refused."""
    descriptor = actor.call("pidfd_open", process, 0)
    try:
        actor.call("process_mrelease", descriptor, 0)
    finally:
        actor.call("close", descriptor)
