"""What debuggers may not write into huge pages: what userfaultfd protects, read-only or not, and what is shared."""

import errno
import mmap
import signal
from collections.abc import Callable
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.forced_writes import FORCED_VALUE, debugging, forced_write, need_forced_writes, poked
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, mapped_in_parts
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, shared_base_pages, shared_huge_pages
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused, set_alarm
from hugepage_qa.process.actor_link import ActorGone
from hugepage_qa.sizes import GIB

FORCED = Area("memory/forced-and-protected")

DOC = (
    "Documentation/admin-guide/mm/userfaultfd.rst Write Protect Notifications; ptrace(2) PTRACE_POKEDATA; mm/gup.c"
    " FOLL_FORCE, can_follow_write_pte(), check_vma_flags()"
)
_PROT_NONE = 0
_PROTECTIONS = {_PROT_NONE: "not to be used", mmap.PROT_READ: "read-only", READ_WRITE: "writable"}
_WAYS = forced_write, poked
_OLD = 7
_ENDLESS_SECONDS = 30

Way = Callable[[Live, Memory, int], int]


@FORCED.case(
    "no debugger writes private memory that userfaultfd protects, in huge pages, parts of them or base pages, which its"
    " owner may write, only read or not use at all: it is EIO, and memory and protection stay; a child has none, and"
    " when it is lifted who is written has that alone",
    DOC,
    sizes=Sizes.ONCE,
    since="5.13",
)
def private(live: Live) -> None:
    need_forced_writes(live)
    for make, prot, has_child in product((huge_pages, mapped_in_parts, base_pages), _PROTECTIONS, (False, True)):
        with live.about(f"{make.__name__}, {_PROTECTIONS[prot]}{', of two processes' if has_child else ''}"):
            memory = make(live)
            child = memory.fork() if has_child else None
            fault = _protected(memory, prot)
            _expect_refused(live, memory)
            if child:
                child.expect_filled()
                child.protect(prot)
                _expect_written(live, child, memory, prot)
                _expect_refused(live, memory)
            fault.write_protect(on=False)
            _expect_written(live, memory, None, prot)
            memory.actor.end()


@FORCED.case(
    "no debugger writes shared memory that its owner may only read, nor what userfaultfd protects, in huge pages or"
    " base pages: it is EIO, and memory and protection stay",
    DOC,
    sizes=Sizes.ONCE,
    since="5.19",
)
def shared(live: Live) -> None:
    need_forced_writes(live)
    let_only_pmd_inherit(live)
    for make, prot in product((shared_huge_pages, shared_base_pages), _PROTECTIONS):
        with live.about(f"{make.__name__}, {_PROTECTIONS[prot]}"):
            memory = make(live)
            _expect_shared(live, memory, memory.fork(), prot)


@FORCED.case(
    "no debugger writes pages of a pool that userfaultfd protects: it is EIO, and page and protection stay; nor shared"
    " ones that their owner may only read; what it writes into private ones is their owner's alone, who may not write"
    " what may only be read then either",
    f"{DOC}, FOLL_FORCE of hugetlb (f347454d0341)",
    pages=4,
    since="5.19",
)
def of_a_pool(live: Live) -> None:
    need_forced_writes(live)
    for prot in (READ_WRITE, mmap.PROT_READ):
        _expect_pool_as_protected(live, prot)


@FORCED.case(
    "a debugger that reads or writes pages of a pool that their owner may not use comes back: it writes none that"
    " userfaultfd protects or that is shared, and of private ones those of their owner alone, who may not use them"
    " then either",
    f"{DOC}, FOLL_FORCE of hugetlb (f347454d0341)",
    pages=4,
    since="5.19",
)
def unusable_of_a_pool(live: Live) -> None:
    need_forced_writes(live)
    memory = live.map(1)
    memory.touch()
    memory.protect(_PROT_NONE)
    known = {Quirk.UNUSABLE_GIGANTIC_READ_NEVER_ENDS: False} if live.size == GIB else {}
    live.expect("whether a debugger that reads comes back", True, _comes_back(live, memory), known)
    memory.actor.end()
    _expect_pool_as_protected(live, _PROT_NONE)


def _comes_back(live: Live, memory: Memory) -> bool:
    """Tell whether a debugger that reads a word of ``memory`` comes back before it is ended for it."""
    began = live.host.clock()
    try:
        with debugging(live, memory.actor.pid) as (debugger, file):
            # timers of used time would not do: they are looked at on the way out of the kernel
            set_alarm(debugger, _ENDLESS_SECONDS)
            debugger.result("pread64", file, bytes(WORD), WORD, memory.address)
            set_alarm(debugger, 0)
    except ActorGone:
        if live.host.clock() - began < _ENDLESS_SECONDS:
            # something else ended it
            raise
        return False
    return True


def _expect_pool_as_protected(live: Live, prot: int) -> None:
    """Expect pages of a pool, shared and private, of one process or two, to be written as the cases say."""
    # the last row is the one with a known bug
    for is_shared, has_child in ((True, True), (False, True), (False, False)):
        kind = "shared" if is_shared else "private"
        with live.about(f"{kind}, {_PROTECTIONS[prot]}{', of two processes' if has_child else ''}"):
            memory = live.map(1, shared=is_shared)
            memory.fill()
            if is_shared:
                sharer = memory.fork()
                live.expect("what a child reads", 1, sharer.read())
                _expect_shared(live, memory, sharer, prot)
                continue
            child = forked(live, memory) if has_child else None
            fault = _protected(memory, prot)
            _expect_refused(live, memory)
            fault.write_protect(on=False)
            _expect_written(live, memory, child, prot, may_be_refused=prot != READ_WRITE)
            memory.actor.end()


def _expect_shared(live: Live, memory: Memory, child: Memory, prot: int) -> None:
    """Expect shared memory of both to be written where its owner may write it, and nobody protects it. Ends both."""
    fault = _protected(memory, prot)
    _expect_refused(live, memory)
    child.expect_filled()
    fault.write_protect(on=False)
    if prot != READ_WRITE:
        _expect_refused(live, memory, is_protected=False)
        child.expect_filled()
    else:
        _expect_written(live, memory, None, prot)
        live.expect("what a child reads", [FORCED_VALUE] * len(_places(live, child)), _words(live, child))
    memory.actor.end()


def _protected(memory: Memory, prot: int) -> Userfault:
    feature = Feature.PAGEFAULT_FLAG_WP
    if memory.smaps().is_shared or "ht" in memory.smaps().flags:
        feature |= Feature.WP_HUGETLBFS_SHMEM
    fault = Userfault(memory, Mode.WRITE_PROTECTED, feature)
    fault.write_protect()
    memory.protect(prot)
    return fault


def _expect_refused(live: Live, memory: Memory, *, is_protected: bool = True) -> None:
    """Expect each way to write any place to be EIO, and ``memory`` and the protection of all of it to be as before."""
    for way, offset in product(_WAYS, _places(live, memory)):
        with live.about(f"{way.__name__} at {offset}"):
            known = {Quirk.PROTECTED_GIGANTIC_WRITTEN: 0} if memory.size == GIB else {}
            live.expect("errno", errno.EIO, _errno_of(way, live, memory, offset), known)
    if is_protected:
        every = range(memory.length // live.base_page)
        live.expect("protected base pages", len(every), len(protected_pages(memory)))
    _expect_words(live, memory, [])


def _errno_of(way: Way, live: Live, memory: Memory, offset: int) -> int:
    try:
        way(live, memory, offset)
    except Refused as refusal:
        return refusal.errno or 0
    return 0


def _expect_written(
    live: Live, memory: Memory, other: Memory | None, prot: int, *, may_be_refused: bool = False
) -> None:
    """Expect each place of private memory to be written for its owner alone, who may do no more with it than before.

    Kernels as old as 6.12 write no page of a pool so, and it ``may_be_refused``.
    """
    written = []
    for number, offset in enumerate(_places(live, memory)):
        way = _WAYS[number % len(_WAYS)]
        try:
            live.expect(f"bytes that {way.__name__} writes at {offset}", WORD, way(live, memory, offset))
            written.append(offset)
        except Refused as refusal:
            live.expect(f"errno of {way.__name__} at {offset}", errno.EIO if may_be_refused else 0, refusal.errno)
    if prot != READ_WRITE:
        for offset in _places(live, memory):
            live.expect_signal(signal.SIGSEGV, memory.actor.write, memory.address + offset, _OLD)
    _expect_words(live, memory, written)
    if other:
        _expect_words(live, other, [])


def _expect_words(live: Live, memory: Memory, written: list[int]) -> None:
    """Expect all of ``memory`` as it was filled but for what was ``written``; it is as protected afterwards."""
    prot = memory.smaps().permissions
    memory.protect(mmap.PROT_READ)
    found = [memory.actor.read(memory.address + offset) for offset in written]
    live.expect("what its owner reads", [FORCED_VALUE] * len(written), found)
    wrong = memory.actor.check(memory.address, memory.length, memory.step, 1)
    # of gigantic pages some words alone are looked at
    seen = len(written) if memory.step == WORD else min(wrong, len(written))
    live.expect("words that changed, but for these", seen, wrong)
    memory.protect(sum(bit for bit, flag in ((mmap.PROT_READ, "r"), (mmap.PROT_WRITE, "w")) if flag in prot))


def _places(live: Live, memory: Memory) -> tuple[int, ...]:
    """Return the offsets of the first word, of one behind the middle, and of the last word."""
    return 0, memory.size // 2 + live.base_page + WORD, memory.size - WORD


def _words(live: Live, memory: Memory) -> list[int]:
    return [memory.actor.read(memory.address + offset) for offset in _places(live, memory)]


class ForcedAndProtected(LiveTest):
    def test_forced_and_protected(self) -> None:
        self.run_area(FORCED)
