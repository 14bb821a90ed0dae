"""Threads that wait for a program to handle their faults: who is told of them, who is woken, and who waits on."""

import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import combinations

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory, value_or_signal
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.userfaultfd import MESSAGE_SIZE, Feature, Mode, PageFault, Told, Userfault, offered_features
from hugepage_qa.kernel.uapi import MREMAP_MAYMOVE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Came

WOKEN = Area("memory/woken-threads")

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
_PAGES = 3
#: the threads' own words, which they store first of all, and store again (use_again() in repeaters.c)
_WORD_OF_A_THREAD = 64
_VALUE = 1 << 40
_NO_FEATURE = Feature(0)
#: of a thread, in /proc/PID/task/TID/syscall (proc_pid_syscall() in fs/proc/base.c)
_RUNNING = "running"


@dataclass(frozen=True)
class Watched:
    """Pages whose faults a program handles, and how it handles that of one page, waking who waits or not.

    ``content`` is what ``fill`` stored of which the pages are made, or as which they lie there; None for zeroes. Where
    the program is told of exact addresses threads wait for words in each part of a page, else at its beginning.
    """

    name: str
    memory: Memory
    fault: Userfault
    told: Told
    handle: Callable[[int, bool], object]
    content: int | None = _VALUE

    def place(self, page: int) -> int:
        """Return how many bytes into its page the thread of a page stores, before the words that threads have there."""
        if not self.fault.is_exact:
            return 0
        return (0, self.memory.size // 2, self.memory.size - _PAGES * _WORD_OF_A_THREAD)[page]

    def told_of(self, pages: Iterable[int]) -> list[PageFault]:
        """Return what is told of threads that wait for ``pages``, in their order."""
        if not self.fault.is_exact:
            return [PageFault(self.told, self.memory.at(page)) for page in pages]
        # a thread stores what is beside its word first
        words = {page: self.place(page) + page * _WORD_OF_A_THREAD + WORD for page in pages}
        return [PageFault(self.told, self.memory.at(page) + offset) for page, offset in words.items()]


@WOKEN.case(WOKEN_ALONE, WAKES, since="5.19", sizes=Sizes.BUDDY, pages=2 * _PAGES)
def of_hugetlb_pages(live: Live) -> None:
    for make in (kind for more in _addresses(live) for kind in _hugetlb_kinds(live, more)):
        watched = make()
        with live.about(watched.name):
            _expect_woken_alone(live, watched)
        watched.memory.actor.end()
        live.expect_pool(nr=2 * _PAGES, free=2 * _PAGES)


@WOKEN.case(WOKEN_ALONE, WAKES, since="5.19", sizes=Sizes.ONCE)
def of_other_pages(live: Live) -> None:
    for make in (kind for more in _addresses(live) for kind in _other_kinds(live, more)):
        watched = make()
        with live.about(watched.name):
            _expect_woken_alone(live, watched)
        watched.memory.actor.end()


@WOKEN.case(TOLD_ONCE, READS, since="5.19", sizes=Sizes.BUDDY, pages=2 * _PAGES)
def told_of_hugetlb_pages(live: Live) -> None:
    for make in _hugetlb_kinds(live):
        watched = make()
        with live.about(watched.name):
            _expect_told_once(live, watched)
        watched.memory.actor.end()
        live.expect_pool(nr=2 * _PAGES, free=2 * _PAGES)


@WOKEN.case(TOLD_ONCE, READS, since="5.19", sizes=Sizes.ONCE)
def told_of_other_pages(live: Live) -> None:
    for make in _other_kinds(live):
        watched = make()
        with live.about(watched.name):
            _expect_told_once(live, watched)
        watched.memory.actor.end()


def _addresses(live: Live) -> tuple[Feature, ...]:
    """Return the features by which a program is told of pages, and of the byte that was accessed."""
    # the processor tells the base page alone (get_fault_address() in arch/s390/mm/fault.c)
    return (_NO_FEATURE,) if live.host.architecture == "s390x" else (_NO_FEATURE, Feature.EXACT_ADDRESS)


def _hugetlb_kinds(live: Live, more: Feature = _NO_FEATURE) -> list[Callable[[], Watched]]:
    def missing(*, shared: bool) -> Watched:
        memory = live.map(_PAGES, shared=shared)
        source = live.map(1, memory.actor)
        source.fill(_VALUE)
        return _missing(f"missing, shared {shared}", memory, source, Feature.MISSING_HUGETLBFS | more)

    def protected() -> Watched:
        memory = live.map(_PAGES)
        memory.fill(_VALUE)
        return _protected("protected", memory, Feature.WP_HUGETLBFS_SHMEM | more)

    def of_a_file() -> Watched:
        file = new_memfd(live)
        file.truncate(_PAGES)
        file.map(_PAGES).fill(_VALUE)
        return _of_a_file("in the file", file.map(_PAGES), Feature.MINOR_HUGETLBFS | more)

    offered = offered_features(live)
    kinds: list[Callable[[], Watched]] = [partial(missing, shared=False), partial(missing, shared=True)]
    kinds += [protected] if Feature.WP_HUGETLBFS_SHMEM in offered else []
    return kinds + ([of_a_file] if Feature.MINOR_HUGETLBFS in offered else [])


def _other_kinds(live: Live, more: Feature = _NO_FEATURE) -> list[Callable[[], Watched]]:
    offered = offered_features(live)
    protecting = {False: Feature.PAGEFAULT_FLAG_WP, True: Feature.WP_HUGETLBFS_SHMEM}

    def pages(*, shared: bool, fills: bool) -> Memory:
        # base pages side by side, in the middle of what could be a huge page
        memory = map_aligned(live, 1, pmd_size(live), shared=shared)
        first = memory.address + memory.size // 2
        part = Memory(live, memory.actor, first, _PAGES, live.base_page)
        if fills:
            part.fill(_VALUE)
        return part

    def source_for(memory: Memory) -> Memory:
        source = map_aligned(live, 1, live.base_page, actor=memory.actor)
        source.fill(_VALUE)
        return source

    def missing(*, shared: bool) -> Watched:
        memory = pages(shared=shared, fills=False)
        return _missing(f"missing, shared {shared}", memory, source_for(memory), Feature.MISSING_SHMEM | more)

    def zeroes() -> Watched:
        memory = pages(shared=False, fills=False)
        fault = Userfault(memory, Mode.MISSING, more, waits=True)
        return Watched("zeroes", memory, fault, Told.WRITE, lambda page, wakes: fault.zero(page, wakes=wakes), None)

    def moved() -> Watched:
        memory = pages(shared=False, fills=False)
        fault = Userfault(memory, Mode.MISSING, Feature.MOVE | more, waits=True)

        def move(page: int, wakes: bool) -> None:
            fault.move(source_for(memory), page, wakes=wakes)

        return Watched("moved", memory, fault, Told.WRITE, move)

    def protected(*, shared: bool) -> Watched:
        return _protected(f"protected, shared {shared}", pages(shared=shared, fills=True), protecting[shared] | more)

    def of_a_file() -> Watched:
        memory = pages(shared=True, fills=True)
        # mapped once more (mremap(2) of no bytes), where nothing of it is mapped yet
        actor, length = memory.actor, memory.length
        other = actor.call("mremap", memory.address, 0, length, MREMAP_MAYMOVE) % (1 << 64)
        return _of_a_file("in the file", Memory(live, actor, other, _PAGES, live.base_page), Feature.MINOR_SHMEM | more)

    kinds: list[Callable[[], Watched]] = [partial(missing, shared=False), partial(missing, shared=True), zeroes]
    kinds += [moved] if Feature.MOVE in offered else []
    kinds += [partial(protected, shared=shared) for shared, feature in protecting.items() if feature in offered]
    return kinds + ([of_a_file] if Feature.MINOR_SHMEM in offered else [])


def _missing(name: str, memory: Memory, source: Memory, feature: Feature) -> Watched:
    fault = Userfault(memory, Mode.MISSING, feature, waits=True)
    return Watched(name, memory, fault, Told.WRITE, lambda page, wakes: fault.copy(source, page, wakes=wakes))


def _protected(name: str, memory: Memory, feature: Feature) -> Watched:
    fault = Userfault(memory, Mode.WRITE_PROTECTED, feature, waits=True)
    fault.write_protect(length=memory.length)

    def allow(page: int, wakes: bool) -> None:
        fault.write_protect(page, on=False, wakes=wakes)

    return Watched(name, memory, fault, Told.WRITE | Told.WRITE_PROTECTED, allow)


def _of_a_file(name: str, memory: Memory, feature: Feature) -> Watched:
    fault = Userfault(memory, Mode.MINOR, feature, waits=True)

    def go_on(page: int, wakes: bool) -> None:
        fault.go_on(offset=page * memory.size, wakes=wakes)

    return Watched(name, memory, fault, Told.WRITE | Told.MINOR, go_on)


def _expect_woken_alone(live: Live, watched: Watched) -> None:
    fault = watched.fault
    _have_all_wait(live, watched)
    _expect_told(live, watched, range(_PAGES), "at first")
    for first, end in combinations(range(_PAGES + 1), 2):
        fault.wake(first, end - first)
        # one that goes on though its page is not among them is told of here, or the next time
        _expect_told(live, watched, range(first, end), f"when pages {first} to {end - 1} were woken")
    middle = _PAGES // 2
    # a thread that is counted as one that waits looks at its page once more before it sleeps (handle_userfault())
    live.host.wait_until(lambda: _are_asleep(live, watched.memory.actor))
    watched.handle(middle, False)
    live.expect("threads that wait when one page is handled, and nobody woken", (0, _PAGES), fault.waiting(live))
    others = [page for page in range(_PAGES) if page != middle]
    for page in others:
        fault.wake(page, 1)
        _expect_told(live, watched, [page], f"when page {page} was woken")
    # the word that its thread stores first of all
    address = watched.memory.at(middle) + watched.place(middle) + middle * _WORD_OF_A_THREAD
    word = value_or_signal(partial(watched.memory.actor.read, address))
    live.expect("word of who is not woken", _filled(watched, middle), word)
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
    live.host.wait_until(lambda: fault.waiting(live) == (_PAGES - 1, _PAGES - 1))
    live.expect("threads that wait when one page is handled", (_PAGES - 1, _PAGES - 1), fault.waiting(live))
    told = fault.faults_at_once(live, 2 * MESSAGE_SIZE - 1)
    live.expect("messages that there is room for", 1, len(told))
    live.expect("threads that wait when one was told of", (_PAGES - 2, _PAGES - 1), fault.waiting(live))
    told += fault.faults_at_once(live, _PAGES * MESSAGE_SIZE)
    live.expect("what is told", watched.told_of(range(1, _PAGES)), sorted(told, key=lambda one: one.address))
    live.expect("whether poll(2) tells of a message when all were read", False, fault.is_readable())
    live.expect_errno(errno.EAGAIN, fault.faults_at_once, live, MESSAGE_SIZE)
    for page in range(1, _PAGES):
        watched.handle(page, True)
    _expect_gone_on(live, watched, [])
    _expect_all_done(live, watched)


def _have_all_wait(live: Live, watched: Watched) -> None:
    """Have a thread write to each page."""
    for page in range(_PAGES):
        address = watched.memory.at(page) + watched.place(page)
        watched.memory.actor.use(address, _WORD_OF_A_THREAD, _WORD_OF_A_THREAD)
    live.host.wait_until(lambda: watched.fault.waiting(live) == (_PAGES, _PAGES))
    live.expect("threads that wait", (_PAGES, _PAGES), watched.fault.waiting(live))


def _are_asleep(live: Live, actor: Actor) -> bool:
    """Tell whether no thread of ``actor`` runs or is about to: those that do not stay asleep are told as running.

    That is so as well where the kernel does not tell (lib/syscall.c task_current_syscall()).
    """
    threads = f"proc/{actor.pid}/task"
    told = [live.host.read(f"{threads}/{thread}/syscall") or "" for thread in live.host.names(threads)]
    return _RUNNING not in map(str.strip, told)


def _filled(watched: Watched, page: int) -> int:
    """Return what is in the word of the thread of a page: each is filled alike from a source, or as they lie."""
    if watched.content is None:
        return 0
    lies_there = bool(watched.told & (Told.MINOR | Told.WRITE_PROTECTED))
    in_page = watched.place(page) + page * _WORD_OF_A_THREAD
    return watched.content + in_page + (page * watched.memory.size if lies_there else 0)


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
    live.expect("what came of the accesses", _PAGES * [Came.DONE], [done.came for done in watched.memory.actor.stop(0)])
    live.expect("threads that wait at last", (0, 0), watched.fault.waiting(live))
    watched.fault.expect_nothing_told(live)


class WokenThreads(LiveTest):
    def test_woken_threads(self) -> None:
        self.run_area(WOKEN)
