"""Hugetlb pages that count as memory of a group, and are refused to it: what stays reserved, charged and counted.

The hierarchy of version 2 is mounted with memory_hugetlb_accounting for each case.
"""

import errno
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from hugepage_qa.cases.added_up import add_up_counters, tells_of_pages_in_use
from hugepage_qa.cases.case import Area
from hugepage_qa.cases.hugetlb_accounting import accounted_group
from hugepage_qa.cases.hugetlb_files import HugeFile, new_memfd
from hugepage_qa.cases.hugetlb_group import V2_DOC, HugetlbGroup
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.uapi import MADV_POPULATE_WRITE
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Fault, Refused, limit_cpu_time
from hugepage_qa.process.actor_link import ActorGone

REFUSED = Area("cgroup/refused-by-memory")

RULE = (
    f"{V2_DOC} memory_hugetlb_accounting, memory.max; mm/hugetlb.c alloc_hugetlb_folio(), vma_commit_reservation(),"
    " free_huge_folio()"
)
_SINCE = "6.7"  # 8cba9576df60
#: of the pool, of which a group has room for one
_PAGES = 2
_IS_REFUSED = 1
_SECONDS = 5
_NO_END = "no end"
_TOUCH, _HAD = "what a touch gets", "success"


@dataclass(frozen=True)
class _Kind:
    """What is mapped, whether of a file, and how: its pages are reserved, unless it says otherwise."""

    name: str
    shared: bool = False
    of_a_file: bool = False
    noreserve: bool = False

    def map(self, live: Live, actor: Actor) -> tuple[Memory, HugeFile | None]:
        """Map all pages in ``actor``, of a file that is returned, too, if it is of one."""
        file = new_memfd(live, actor) if self.of_a_file else None
        if file:
            file.truncate(_PAGES)
        descriptor = file.descriptor if file else None
        return live.map(_PAGES, actor, fd=descriptor, shared=self.shared, noreserve=self.noreserve), file


_PRIVATE, _SHARED = _Kind("private"), _Kind("shared", shared=True)
_FILE, _PRIVATE_OF_A_FILE = _Kind("file", shared=True, of_a_file=True), _Kind("private, of a file", of_a_file=True)
_UNRESERVED = (
    _Kind("private, not reserved", noreserve=True),
    _Kind("shared, not reserved", shared=True, noreserve=True),
    _Kind("file, not reserved", shared=True, of_a_file=True, noreserve=True),
)


@REFUSED.case(
    "a page that memory.max has no room for is refused to who asks for it by a system call, and changes nothing: it"
    " stays free and reserved, is charged to nobody and in no count of what is in use (nr_hugetlb), and is had by who"
    " has reserved it when there is room: of shared memory and of files",
    RULE,
    pages=_PAGES,
    since=_SINCE,
)
def shared_and_reserved(live: Live) -> None:
    _expect_nothing_changed(live, (_SHARED, _FILE))


@REFUSED.case(
    "the same of private memory, anonymous and of a file, of which each page is reserved once",
    RULE,
    pages=_PAGES,
    since=_SINCE,
)
def private_and_reserved(live: Live) -> None:
    _expect_nothing_changed(live, (_PRIVATE, _PRIVATE_OF_A_FILE))


@REFUSED.case(
    "the same where nothing is reserved: nothing is afterwards, and nothing is taken that others have reserved",
    RULE,
    pages=_PAGES,
    since=_SINCE,
)
def not_reserved(live: Live) -> None:
    _expect_nothing_changed(live, _UNRESERVED)


@REFUSED.case(
    "who touches a page that memory.max has no room for gets SIGBUS",
    RULE,
    pages=_PAGES,
    since=_SINCE,
)
def touched(live: Live) -> None:
    group = accounted_group(live)
    # a private page may have lost its reservation by the first fault, and the next one is told so
    for kind in (_SHARED, _FILE, _PRIVATE, _PRIVATE_OF_A_FILE):
        with live.about(kind.name):
            memory, _file = _with_one_page(live, group, kind)
            limit_cpu_time(memory.actor, _SECONDS)
            with _same_in_use(live):
                for _time in range(2):
                    found = _touched(memory)
                    live.expect(_TOUCH, signal.SIGBUS.name, found, {Quirk.REFUSED_CHARGE_NEVER_ENDS: _NO_END})
                    if found == _NO_END:
                        live.fail(_TOUCH, signal.SIGBUS.name, found)
                    _expect_as_before(live, group, kind)
            limit_cpu_time(memory.actor, 0)
            group.group.write("memory.max", "max")
            _expect_had(live, group, memory)


@REFUSED.case(
    "a page that hugetlb.max or the pool refuses where memory.max has room is not charged as memory, however often it"
    " is asked for",
    f"{RULE}, mem_cgroup_charge_hugetlb()",
    pages=_PAGES,
    since=_SINCE,
)
def refused_by_others(live: Live) -> None:
    group = accounted_group(live)
    for kind in (_PRIVATE, _FILE, *_UNRESERVED):
        with live.about(f"hugetlb.max, {kind.name}"):
            group.limit(1)
            memory, file = _within_the_limit(live, group, kind)
            _expect_refused(live, group, kind, memory, file)
            live.expect_signal(signal.SIGBUS, memory.touch, _IS_REFUSED)
            _expect_as_before(live, group, kind)
            group.limit(None)
            _expect_had(live, group, memory)
    for kind in _UNRESERVED:
        with live.about(f"the pool, {kind.name}"):
            live.set_nr(1)
            memory, _file = kind.map(live, group.actor())
            memory.touch(0)
            with _same_in_use(live):
                for _time in range(2):
                    live.expect_signal(signal.SIGBUS, memory.touch, _IS_REFUSED)
                    live.expect_pool(nr=1, free=0)
                    group.expect_charged(usage=1, reserved=1)
                    _expect_memory(live, group, 1)
            memory.actor.end()
            live.expect_pool(nr=1, free=1)
            live.reserve(_PAGES)


def _expect_nothing_changed(live: Live, kinds: Sequence[_Kind]) -> None:
    group = accounted_group(live)
    for kind in kinds:
        with live.about(kind.name):
            memory, file = _with_one_page(live, group, kind)
            _expect_refused(live, group, kind, memory, file)
            group.group.write("memory.max", "max")
            _expect_had(live, group, memory)


def _with_one_page(live: Live, group: HugetlbGroup, kind: _Kind) -> tuple[Memory, HugeFile | None]:
    """Return memory of a process in ``group``, which has its first page and no room for another one."""
    group.group.write("memory.max", str(live.size + live.size // 2))
    return _within_the_limit(live, group, kind)


def _within_the_limit(live: Live, group: HugetlbGroup, kind: _Kind) -> tuple[Memory, HugeFile | None]:
    memory, file = kind.map(live, group.actor())
    memory.touch(0)
    _expect_as_before(live, group, kind)
    return memory, file


def _expect_refused(live: Live, group: HugetlbGroup, kind: _Kind, memory: Memory, file: HugeFile | None) -> None:
    """Expect each system call that asks for the second page to be refused it, and nothing to change by that."""
    # which of the two it is depends on what the fault gets, VM_FAULT_OOM or VM_FAULT_SIGBUS
    asks: list[tuple[Callable[[], object], set[int]]] = [
        (partial(_read_into, live, memory), {errno.EFAULT}),
        (partial(memory.advise, MADV_POPULATE_WRITE, _IS_REFUSED, 1), {errno.ENOMEM, errno.EFAULT}),
    ]
    if file and kind.shared:
        asks.append((partial(file.allocate, 1, _IS_REFUSED), {errno.ENOMEM, errno.ENOSPC}))
    with _same_in_use(live):
        for ask, allowed in asks:
            for _time in range(2):
                found = _errno(ask)
                live.expect(f"whether errno, {found}, is one of {sorted(allowed)}", True, found in allowed)
                _expect_as_before(live, group, kind)


@contextmanager
def _same_in_use(live: Live) -> Iterator[None]:
    """Expect nr_hugetlb, which Linux has since 6.13, to be what it was before: a page is in use."""
    before = _in_use(live)
    if before is not None:
        tells_of_pages_in_use(live, [before])
    yield
    live.expect("nr_hugetlb", before, _in_use(live))


def _in_use(live: Live) -> int | None:
    add_up_counters(live)
    return read_vmstat(ObservedTree(live.host)).get("nr_hugetlb")


def _expect_had(live: Live, group: HugetlbGroup, memory: Memory) -> None:
    """Expect the page that was refused to be had now that there is room, and all to be given back."""
    found = _touched(memory)
    if found != _HAD:
        live.fail(_TOUCH, _HAD, found)
    live.expect("what the pages hold", [1, 1], [memory.read(page) for page in range(_PAGES)])
    live.expect_pool(nr=_PAGES, free=0)
    group.expect_charged(usage=_PAGES, reserved=_PAGES)
    _expect_memory(live, group, _PAGES)
    memory.actor.end()
    live.expect_pool(nr=_PAGES, free=_PAGES)
    group.expect_charged(usage=0, reserved=0)
    _expect_memory(live, group, 0)


def _expect_as_before(live: Live, group: HugetlbGroup, kind: _Kind) -> None:
    """Expect one page to be had and charged, and the other one to be free, and reserved if it was."""
    resv = 0 if kind.noreserve else 1
    live.expect_pool(nr=_PAGES, free=_PAGES - 1, resv=resv)
    group.expect_charged(usage=1, reserved=1 + resv)
    _expect_memory(live, group, 1)


def _expect_memory(live: Live, group: HugetlbGroup, pages: int) -> None:
    """Expect memory.current to have so many pages, and less than half of one besides that processes have."""

    def found() -> int:
        return round(group.group.read_number("memory.current") / live.size)

    live.expect("pages in memory.current", pages, live.host.last_look(found, pages.__eq__))


def _touched(memory: Memory) -> str:
    """Touch the second page and return what that gets: the name of a signal, or that it does not end."""
    try:
        memory.touch(_IS_REFUSED)
    except Fault as fault:
        return fault.signal.name
    except ActorGone:
        return _NO_END
    return _HAD


def _read_into(live: Live, memory: Memory) -> None:
    """Have the kernel store a word in the second page (read(2))."""
    source = live.open(memory.actor, "/dev/zero")
    try:
        memory.actor.call("read", source, memory.at(_IS_REFUSED), WORD)
    finally:
        memory.actor.call("close", source)


def _errno(ask: Callable[[], object]) -> int:
    try:
        ask()
    except Refused as refusal:
        return refusal.errno or 0
    return 0


class CgroupRefusedByMemory(LiveTest):
    def test_refused_by_memory(self) -> None:
        self.run_area(REFUSED)
