"""Guards in memory that userfaultfd protects, huge pages or not: they take the place of what is protected there."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.cpu_time import thread_seconds
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act, let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import GUARDED, WORD, Memory
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import advised, base_pages, huge_pages, mapped_in_parts
from hugepage_qa.cases.thp_shared_memory import expect_shared, map_file, map_start, nameless_file
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.kernel.uapi import MADV_GUARD_INSTALL, MADV_GUARD_REMOVE
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor_threads import Came

GUARDED_AND_PROTECTED = Area("userfaultfd/guarded-and-protected", sizes=Sizes.ONCE)

RULE = (
    "of write-protected memory, {kinds}, guards of a part of a huge page, all of it or across two end the call and give"
    " SIGSEGV, {by}; all beside them is what it was, and is protected still; without guards there is what a page that"
    " was given back has, and it can be written when it is protected no more"
)
SOURCE = (
    "madvise(2) MADV_GUARD_INSTALL, MADV_GUARD_REMOVE; mm/madvise.c madvise_guard_install();"
    " Documentation/admin-guide/mm/userfaultfd.rst Write Protect Notifications;"
    " Documentation/admin-guide/mm/pagemap.rst bits 57, 58"
)
_KINDS_OF_FILES = "shared or private memory of a file of a tmpfs, in huge pages, base pages or untouched"
_PAGES = 2
#: what the memory of a process alone, and what a file is filled with
_OWN, _OF_THE_FILE, _NEW_VALUE = 1, 1 << 40, 1 << 41
_FEATURES = Feature.PAGEFAULT_FLAG_WP | Feature.WP_HUGETLBFS_SHMEM | Feature.WP_UNPOPULATED
#: CPU time of a call that takes milliseconds and does not end; on a busy machine it is waited for so long
_SPUN_SECONDS, _LONGEST_SECONDS = 2.0, 60.0
_DONE, _USES_A_CPU, _NEITHER = "there are guards", "the thread uses a CPU all the time", "neither"


@dataclass(frozen=True)
class _Kind:
    """Memory of two huge pages: what it was filled with, and what there is when it is given back; None are zeroes."""

    make: Callable[[Live], Memory]
    filled: int | None
    given_back: int | None


def _huge_pages(live: Live) -> Memory:
    return huge_pages(live, _PAGES)


def _mapped_in_parts(live: Live) -> Memory:
    return mapped_in_parts(live, _PAGES)


def _base_pages(live: Live) -> Memory:
    return base_pages(live, _PAGES)


def _untouched(live: Live) -> Memory:
    return advised(live, _PAGES)


def _shared_huge_pages(live: Live) -> Memory:
    return _of_a_file(live, "always")


def _shared_base_pages(live: Live) -> Memory:
    return _of_a_file(live, "never")


def _untouched_file(live: Live) -> Memory:
    actor = live.actor()
    return map_start(live, actor, nameless_file(live, actor, "never"), _PAGES)


def _private_of_a_file(live: Live) -> Memory:
    actor = live.actor()
    descriptor = nameless_file(live, actor, "never")
    map_start(live, actor, descriptor, _PAGES).fill(_OF_THE_FILE)
    memory = map_file(live, actor, descriptor, _PAGES, shared=False)
    memory.fill(_OWN)
    return memory


def _of_a_file(live: Live, huge: str) -> Memory:
    actor = live.actor()
    memory = map_start(live, actor, nameless_file(live, actor, huge), _PAGES)
    expect_shared(live, memory, huge == "always", f"huge={huge}")
    memory.fill(_OF_THE_FILE)
    return memory


_ANONYMOUS = (
    _Kind(_huge_pages, _OWN, None),
    _Kind(_mapped_in_parts, _OWN, None),
    _Kind(_base_pages, _OWN, None),
    _Kind(_untouched, None, None),
)
_OF_FILES = (
    _Kind(_shared_huge_pages, _OF_THE_FILE, _OF_THE_FILE),
    _Kind(_shared_base_pages, _OF_THE_FILE, _OF_THE_FILE),
    _Kind(_untouched_file, None, None),
    _Kind(_private_of_a_file, _OWN, _OF_THE_FILE),
)


@GUARDED_AND_PROTECTED.case(
    RULE.format(kinds="huge pages, base pages or untouched", by="by madvise(2) or process_madvise(2)"),
    f"{SOURCE}; process_madvise(2)",
    since="6.15",
)
def anonymous(live: Live) -> None:
    let_rest(live)
    for kind, by_process in product(_ANONYMOUS, (False, True)):
        _expect_guards(live, kind, by_process=by_process)


@GUARDED_AND_PROTECTED.case(
    RULE.format(kinds=_KINDS_OF_FILES, by="by madvise(2)"),
    f"{SOURCE}; mm/memory.c zap_nonpresent_ptes()",
    since="6.15",
)
def of_files(live: Live) -> None:
    _expect_guards_in_files(live, by_process=False)


@GUARDED_AND_PROTECTED.case(
    RULE.format(kinds=_KINDS_OF_FILES, by="by process_madvise(2)"),
    f"{SOURCE}, vector_madvise(); process_madvise(2)",
    since="6.15",
)
def of_files_by_vector(live: Live) -> None:
    _expect_guards_in_files(live, by_process=True)


def _expect_guards_in_files(live: Live, *, by_process: bool) -> None:
    let_nobody_else_act(live)
    for kind in _OF_FILES:
        _expect_guards(live, kind, by_process=by_process)


def _expect_guards(live: Live, kind: _Kind, *, by_process: bool) -> None:
    size, base = pmd_size(live), live.base_page
    for place in ((0, base), (size // 2, size), (size, size), (base, size - 2 * base)):
        memory = kind.make(live)
        name = kind.make.__name__.strip("_").replace("_", " ")
        with live.about(f"{name}, {place[1]} bytes at {place[0]}, process_madvise(2) {by_process}"):
            _expect_in_place_of(live, kind, memory, place, by_process=by_process)
        memory.actor.end()


def _expect_in_place_of(live: Live, kind: _Kind, memory: Memory, place: tuple[int, int], *, by_process: bool) -> None:
    """Protect ``memory``, and expect guards to take the place of a part of it, and to leave the rest protected."""
    (offset, length), base = place, live.base_page
    end = offset + length
    fault = Userfault(memory, Mode.WRITE_PROTECTED, _FEATURES)
    fault.write_protect(length=memory.length)
    every = [*range(memory.length // base)]
    live.expect("base pages that are protected", every, protected_pages(memory))
    beside = [number for number in every if not offset <= number * base < end]
    came = _what_comes_of(live, memory, place, by_process=by_process)
    subject = "what comes of the call, and base pages that are protected"
    wanted, known = (_DONE, beside), (_USES_A_CPU, every)
    found = came, protected_pages(memory)
    live.expect(subject, wanted, found, {Quirk.GUARDING_PROTECTED_NEVER_ENDS: known})
    if came != _DONE:
        return
    for word in (offset, offset + length // 2, end - WORD):
        live.expect_signal(signal.SIGSEGV, memory.actor.read, memory.address + word)
        live.expect_signal(signal.SIGSEGV, memory.actor.write, memory.address + word, _NEW_VALUE)
    for word in (number * base for number in (beside[0], beside[-1])):
        live.expect_signal(signal.SIGBUS, memory.actor.write, memory.address + word, _NEW_VALUE)
    rest = (0, offset), (end, memory.length - end)
    live.expect("words beside them that changed", 0, sum(_wrong(memory, one, kind.filled) for one in rest))
    memory.actor.call("madvise", memory.address + offset, length, MADV_GUARD_REMOVE)
    live.expect("words without guards that are others", 0, _wrong(memory, place, kind.given_back))
    fault.write_protect(on=False, length=memory.length)
    memory.fill(_NEW_VALUE)
    memory.expect_filled(_NEW_VALUE)


def _what_comes_of(live: Live, memory: Memory, place: tuple[int, int], *, by_process: bool) -> str:
    """Have a thread install guards, again and again when it can, and return what is seen of it."""
    actor, (offset, length) = memory.actor, place
    start, last = memory.address + offset, memory.address + offset + length - live.base_page
    if by_process:
        vector, itself = actor.uapi.pack("2Q", start, length), actor.call("pidfd_open", actor.pid, 0)
        actor.threads.repeat("process_madvise", itself, vector, 1, MADV_GUARD_INSTALL, 0)
    else:
        actor.threads.repeat("madvise", start, length, MADV_GUARD_INSTALL)

    def look() -> str:
        # before the entry: who is done goes on to use a CPU
        used = max(thread_seconds(live, actor).values(), default=0.0)
        if memory.pagemap([last])[0] & GUARDED:
            return _DONE
        return _USES_A_CPU if used >= _SPUN_SECONDS else _NEITHER

    found = live.host.last_look(look, _NEITHER.__ne__, _LONGEST_SECONDS)
    if found == _DONE:
        (thread,) = actor.threads.stop(0)
        live.expect("what came of it, and errors", (Came.DONE, frozenset[int]()), (thread.came, thread.errors))
    return found


def _wrong(memory: Memory, place: tuple[int, int], value: int | None) -> int:
    """Return how many words of ``place`` are not as memory was filled with ``value``, or not zero. Raises Fault."""
    offset, length = place
    if value is None:
        return memory.nonzero(offset, length)
    return memory.wrong(offset, length, value)


class ThpGuardedAndProtected(LiveTest):
    def test_guarded_and_protected(self) -> None:
        self.run_area(GUARDED_AND_PROTECTED)
