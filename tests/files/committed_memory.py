"""Shared memory and files of a tmpfs in huge pages: how much of memory is committed for them."""

import errno
import mmap
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from operator import eq

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.commit_policy import NEVER, ignores_noreserve, set_overcommit_memory
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.hugetlb_files import HugeFile
from hugepage_qa.cases.hugetlb_segments import IPC_CREAT, IPC_RMID, SHM_NORESERVE, segment_number
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_shared_memory import expect_blocks, map_file
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import FALLOC_FL_KEEP_SIZE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

COMMITTED = Area("files/committed-memory", sizes=Sizes.ONCE)

SOURCE = "Documentation/filesystems/proc.rst Committed_AS; mm/shmem.c"
_PAGES = 4
_COMMITTED = "Committed_AS"
#: for how long somebody else may have a hold of a huge page, which cannot be split then
_SECONDS = 30.0
_FILL: tuple[Callable[[Memory], None], ...] = (Memory.fill, Memory.expect_filled)


class TmpfsFile:
    """A file of four huge pages of a tmpfs or without a name, and its mapping; it ends with its actor."""

    def __init__(self, live: Live, actor: Actor, point: str | None) -> None:
        self._live = live
        self._actor = actor
        if point is None:
            self._descriptor = actor.call("memfd_create", "committed", 0)
        else:
            self._descriptor = live.open(actor, f"{point}/file")
            actor.call("unlinkat", -1, f"{point}/file", 0)
        self._point = point
        self._file = HugeFile(live, actor, self._descriptor)
        self._memory = map_file(live, actor, self._descriptor, _PAGES)

    def truncate(self, length: int) -> None:
        """Make it that long."""
        self._actor.call("ftruncate", self._descriptor, length)

    def map_again(self) -> None:
        """Map it elsewhere, and unmap that."""
        map_file(self._live, self._actor, self._descriptor, _PAGES).unmap()

    def store(self) -> None:
        """Store into each word of its first huge page."""
        self._actor.fill(self._memory.address, self._memory.size, WORD, 1)

    def touch(self, least: int) -> None:
        """Store one word into its second huge page, and expect it to take ``least`` bytes of memory.

        Raises CannotRun where memory is too fragmented for a huge page.
        """
        taken = self._file.blocks + least
        self._memory.touch(1)
        expect_blocks(self._live, self._file, taken)

    def write(self) -> None:
        """Write all of its second huge page: what the first one holds."""
        memory = self._memory
        self._actor.call("pwrite64", self._descriptor, memory.address, memory.size, memory.size)

    def allocate(self, start: int, length: int) -> None:
        """Have pages of its own there (fallocate(2))."""
        self._actor.call("fallocate", self._descriptor, FALLOC_FL_KEEP_SIZE, start, length)

    def allocate_too_much(self) -> None:
        """Be refused more than its mount has left; a file without a name has no limit."""
        if self._point is not None:
            size = self._memory.size
            length = _PAGES * size - self._live.base_page
            self._live.expect_errno(errno.ENOSPC, self.allocate, size + self._live.base_page, length)

    def punch(self, start: int, length: int) -> None:
        """Have a hole there."""
        self._file.punch_bytes(start, length)

    def split(self, act: Callable[["TmpfsFile"], None], change: int) -> None:
        """Do ``act``, which splits a huge page, until st_blocks changes by ``change``. Raises Failed where it does not.

        A page that somebody has a hold of stays whole until he has none.
        """
        left = self._file.blocks + change

        def blocks() -> int:
            act(self)
            return self._file.blocks

        found = self._live.host.last_look(blocks, partial(eq, left), _SECONDS)
        if found != left:
            # each of the others would be waited for as long
            self._live.fail("st_blocks", left, found)

    def close(self) -> None:
        """Close it: its mapping has it still."""
        self._file.close()


#: what is done, and by how many bytes what is committed changes then
Step = tuple[str, Callable[[TmpfsFile], None], int]
Steps = Sequence[Step]


@COMMITTED.case(
    "of a file of a tmpfs, or without a name, the pages are committed that it has, in huge pages or not: those that a"
    " store, a write or fallocate(2) brings, until a hole, a shorter end or its removal takes them; not its length, its"
    " mappings, and what an allocation without room has tried",
    f"{SOURCE} shmem_acct_blocks(), shmem_unacct_blocks()",
    since="5.15",  # before, an allocation without room keeps huge pages
)
def of_files(live: Live) -> None:
    let_nobody_else_act(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "always")
    size = pmd_size(live)
    for huge in ("always", "never", None):
        options = f"huge={huge},size={_PAGES * size},mode=0700"
        point = live.mount_other(options, "tmpfs") if huge else None
        with live.about(f"huge={huge}" if huge else "a file without a name"):
            _expect_committed(live, point, _steps(live, live.base_page if huge == "never" else size))


def _steps(live: Live, least: int) -> Steps:
    """Return steps with a file of which a word that is stored takes ``least`` bytes of memory."""
    base, size = live.base_page, pmd_size(live)
    third = 2 * size

    def splitting(name: str, act: Callable[[TmpfsFile], None], change: int) -> Step:
        return name, lambda file: file.split(act, change), change

    return (
        ("a length", lambda file: file.truncate(_PAGES * size), 0),
        ("one more mapping", TmpfsFile.map_again, 0),
        ("stores", TmpfsFile.store, size),
        ("the same stores", TmpfsFile.store, 0),
        ("a word that is stored", lambda file: file.touch(least), least),
        # of which a word may be one of a base page: Linux 6.14 has folios no larger than what is written (acd7ccb284b8)
        ("a huge page that is written", TmpfsFile.write, size - least),
        ("an allocation", lambda file: file.allocate(third, size), size),
        ("the same allocation", lambda file: file.allocate(third, size), 0),
        ("an allocation without room", TmpfsFile.allocate_too_much, 0),
        ("a hole of a huge page", lambda file: file.punch(0, size), -size),
        splitting("a hole of base pages", lambda file: file.punch(third + base, 2 * base), -2 * base),
        ("the same hole", lambda file: file.punch(third + base, 2 * base), 0),
        ("a hole of parts of base pages", lambda file: file.punch(third + 8 * base + WORD, 2 * base - 2 * WORD), 0),
        splitting("a shorter end", lambda file: file.truncate(third + 16 * base), 16 * base - size),
        ("a longer end", lambda file: file.truncate(_PAGES * size), 0),
        ("its end", lambda file: file.truncate(0), -size - 14 * base),
        ("an allocation behind the end", lambda file: file.allocate(0, 2 * size), 2 * size),
        ("a close", TmpfsFile.close, 0),
    )


def _expect_committed(live: Live, point: str | None, steps: Steps) -> None:
    """Expect each of ``steps`` to change what is committed as it says: all before it are done anew for each."""
    actors = list[Actor]()

    def prepare(number: int) -> TmpfsFile:
        file = TmpfsFile(live, _next_actor(live, actors), point)
        for _name, act, _change in steps[:number]:
            act(file)
        return file

    for number, (name, act, change) in enumerate(steps):
        with live.about(name):
            expect_change(live, {_COMMITTED: change}, partial(prepare, number), act)
    _end(actors)


def _next_actor(live: Live, actors: list[Actor]) -> Actor:
    """Return an actor that there is room for: the one before, which ``actors`` has, ends, and what it had with it."""
    _end(actors)
    with_blocks(live, pmd_size(live), _PAGES)
    actors.append(live.actor())
    return actors[-1]


def _end(actors: list[Actor]) -> None:
    while actors:
        actors.pop().end()


@COMMITTED.case(
    "all of anonymous shared memory is committed when it is mapped, until nobody maps it, whatever of it is there, huge"
    " or not; with MAP_NORESERVE, unless that is ignored, what is there",
    f"{SOURCE} shmem_acct_size(), shmem_unacct_size(); mmap(2) MAP_NORESERVE",
)
def of_anonymous_memory(live: Live) -> None:
    let_nobody_else_act(live)
    size = pmd_size(live)
    length = _PAGES * size
    is_ignored = ignores_noreserve(live)
    actors = list[Actor]()
    for policy, noreserve in product(("always", "never"), (False, True)):
        if noreserve and is_ignored:
            continue
        live.set_knob(f"{DIRECTORY}/shmem_enabled", policy)
        flags = live.host.uapi.map_noreserve if noreserve else 0
        mapped, filled, emptied = (
            partial(_mapped, live, actors, flags, done) for done in ((), _FILL, (*_FILL, _remove))
        )
        all_of_it, there = (0, length) if noreserve else (length, 0)
        steps: tuple[tuple[str, Callable[[], Memory], Callable[[Memory], None], int], ...] = (
            ("stores", mapped, Memory.fill, there),
            ("a hole", filled, _remove, -there),
            ("the end of what is there", filled, Memory.unmap, -length),
            ("the end of a hole", emptied, Memory.unmap, -all_of_it),
        )
        with live.about(f"shmem_enabled {policy}, MAP_NORESERVE {noreserve}"):
            with live.about("a mapping"):
                mapping = partial(_map_only, live, flags)
                expect_change(live, {_COMMITTED: all_of_it}, partial(_next_actor, live, actors), mapping)
            for name, prepare, act, change in steps:
                with live.about(name):
                    expect_change(live, {_COMMITTED: change}, prepare, act)
    _end(actors)


def _map(live: Live, flags: int, actor: Actor) -> int:
    return actor.mmap(_PAGES * pmd_size(live), READ_WRITE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | flags)


def _map_only(live: Live, flags: int, actor: Actor) -> None:
    _map(live, flags, actor)


def _mapped(live: Live, actors: list[Actor], flags: int, done: Sequence[Callable[[Memory], None]]) -> Memory:
    """Return anonymous shared memory of ``_next_actor`` that all this has been ``done`` to."""
    actor = _next_actor(live, actors)
    memory = Memory(live, actor, _map(live, flags, actor), _PAGES, pmd_size(live))
    for act in done:
        act(memory)
    return memory


def _remove(memory: Memory) -> None:
    memory.advise(mmap.MADV_REMOVE)


@COMMITTED.case(
    "all of a segment is committed when it is made, until it is removed, whatever of it is there, huge or not; with"
    " SHM_NORESERVE, unless vm.overcommit_memory is 2, what is there",
    f"{SOURCE}; ipc/shm.c newseg(); Documentation/mm/overcommit-accounting.rst",
)
def of_segments(live: Live) -> None:
    let_nobody_else_act(live)
    length = _PAGES * pmd_size(live)
    for mode, policy, noreserve in product(("0", "1", NEVER), ("always", "never"), (False, True)):
        set_overcommit_memory(live, mode, 2 * length)
        live.set_knob(f"{DIRECTORY}/shmem_enabled", policy)
        flags = SHM_NORESERVE if noreserve else 0
        at_once, later = (0, length) if noreserve and mode != NEVER else (length, 0)
        steps: tuple[tuple[str, Callable[[], _Segment], Callable[[_Segment], None], int], ...] = (
            ("a segment", partial(_Segment, live, flags), _Segment.make, at_once),
            ("stores", partial(_made, live, flags, ()), _Segment.fill, later),
            ("its end, filled", partial(_made, live, flags, (_Segment.fill,)), _Segment.remove, -length),
            ("its end, empty", partial(_made, live, flags, ()), _Segment.remove, -at_once),
        )
        for name, prepare, act, change in steps:
            with live.about(f"vm.overcommit_memory {mode}, shmem_enabled {policy}, SHM_NORESERVE {noreserve}, {name}"):
                expect_change(live, {_COMMITTED: change}, prepare, act).end()


class _Segment:
    """A segment of four huge pages, not made yet, of a new actor."""

    def __init__(self, live: Live, flags: int) -> None:
        self._live = live
        self._flags = IPC_CREAT | 0o600 | flags
        self._actor = live.actor()
        self._number = -1

    def make(self) -> None:
        """Make it."""
        self._number = segment_number(self._live, self._actor, _PAGES * pmd_size(self._live), self._flags)

    def fill(self) -> None:
        """Attach it, fill it and detach it."""
        where = self._actor.call("shmat", self._number, 0, 0) % (1 << 64)
        self._actor.fill(where, _PAGES * pmd_size(self._live), WORD, 1)
        self._actor.call("shmdt", where)

    def remove(self) -> None:
        """Remove it: nobody has it attached."""
        self._actor.call("shmctl", self._number, IPC_RMID, 0)
        self._number = -1

    def end(self) -> None:
        """Remove it if it is there, and end its actor."""
        if self._number >= 0:
            self.remove()
        self._actor.end()


def _made(live: Live, flags: int, done: Sequence[Callable[[_Segment], None]]) -> _Segment:
    """Return a segment that all this has been ``done`` to."""
    segment = _Segment(live, flags)
    for act in (_Segment.make, *done):
        act(segment)
    return segment


class ThpCommittedMemory(LiveTest):
    def test_committed_memory(self) -> None:
        self.run_area(COMMITTED)
