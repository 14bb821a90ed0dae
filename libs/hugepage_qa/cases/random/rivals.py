"""What may be done to memory while threads use it: system calls on a part of it, and what these may find then."""

import mmap
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import PAGEMAP, WORD, Memory
from hugepage_qa.cases.memory_policy import moving
from hugepage_qa.cases.race import Threads
from hugepage_qa.cases.thp_memory import room_for
from hugepage_qa.kernel.uapi import (
    FALLOC_FL_KEEP_SIZE,
    FALLOC_FL_PUNCH_HOLE,
    MADV_COLD,
    MADV_COLLAPSE,
    MADV_DONTNEED,
    MADV_HUGEPAGE,
    MADV_NOHUGEPAGE,
    MADV_PAGEOUT,
    MADV_POPULATE_WRITE,
    MAP_FIXED,
    MAP_HUGETLB,
)
from hugepage_qa.oracle.issue_tables import ALL_ISSUES
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.process.actor import Fault
from hugepage_qa.process.actor_threads import Came
from hugepage_qa.version import KernelVersion


class Kind(Enum):
    """Which memory it is."""

    PRIVATE_HUGETLB = "private hugetlb pages"
    SHARED_HUGETLB = "a file of hugetlb pages"
    ANONYMOUS = "anonymous memory"
    SHARED = "a file in memory"


HUGETLB = frozenset({Kind.PRIVATE_HUGETLB, Kind.SHARED_HUGETLB})
_PRIVATE = frozenset({Kind.PRIVATE_HUGETLB, Kind.ANONYMOUS})
_FILES = frozenset({Kind.SHARED_HUGETLB, Kind.SHARED})
_TRANSPARENT = frozenset({Kind.ANONYMOUS, Kind.SHARED})
_EVERY = frozenset(Kind)

_PUNCH = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
#: of a file in /proc that is read: to get there the kernel goes through all of it
_FAR = 1 << 24
#: bytes of a file that are read at once: a base page of 64K is more than a request to an actor may hold
_READ = 4096
_PAGES_MORE = 4
#: where in a base page the threads that use it store nothing
_BESIDE = 2048
_NOTHING = Came(0)
_FORKS = 3


@dataclass(frozen=True)
class Arena:
    """``memory`` of a kind, of which ``length`` bytes from ``start`` on are acted on; ``descriptor`` is its file's.

    ``debugfs`` is where that is mounted, without leading slash.
    """

    live: Live
    threads: Threads
    kind: Kind
    memory: Memory
    descriptor: int
    start: int
    length: int
    debugfs: str | None

    @property
    def offset(self) -> int:
        """Where the part begins in its file."""
        return self.start - self.memory.address

    def write(self, path: str, *texts: str) -> None:
        """Have a thread for each of ``texts`` write it to a file of the kernel again and again."""
        file = self.live.open(self.memory.actor, path, os.O_WRONLY)
        for text in texts:
            self.threads.attempt("pwrite64", file, text.encode(), len(text), 0)

    def read(self, path: str, offset: int = _FAR) -> None:
        """Have a thread read a file of the kernel again and again."""
        file = self.live.open(self.memory.actor, path, os.O_RDONLY)
        self.threads.attempt("pread64", file, bytes(_READ), _READ, offset)


Act = Callable[[Arena], None]


@dataclass(frozen=True)
class Rival:
    """What is done to memory of these ``kinds``; it ``brings`` those who use it more than what they stored.

    ``cuts``: it leaves several mappings where there was one. ``moves``: it takes one mapping away and brings it back.
    ``last``: it is begun when all others have been, for new threads would map their stacks where the memory was. On
    kernels that have one of ``known`` it spoils what is judged.
    """

    kinds: frozenset[Kind]
    act: Act
    brings: Came = _NOTHING
    since: KernelVersion | None = None
    cuts: bool = False
    moves: bool = False
    last: bool = False
    known: frozenset[Quirk] = frozenset()

    def is_bearable(self, version: KernelVersion, architecture: str) -> bool:
        """Tell whether this kernel can do it, and is not spoiled by it."""
        if self.since is not None and version < self.since:
            return False
        return not any(ALL_ISSUES[quirk].applies_to(version, architecture) for quirk in self.known)


def _advise(*advices: int) -> Act:
    def act(arena: Arena) -> None:
        for advice in advices:
            arena.threads.attempt("madvise", arena.start, arena.length, advice)

    return act


def _protect(arena: Arena) -> None:
    for prot in (mmap.PROT_READ, READ_WRITE):
        arena.threads.attempt("mprotect", arena.start, arena.length, prot)


def _lock(arena: Arena) -> None:
    for name in ("mlock", "munlock"):
        arena.threads.attempt(name, arena.start, arena.length)


def _replace(arena: Arena) -> None:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
    if arena.kind in HUGETLB:
        flags |= MAP_HUGETLB | arena.live.size_flag
    arena.threads.attempt("mmap", arena.start, arena.length, READ_WRITE, flags, -1, 0)


def _map_anew(arena: Arena) -> None:
    # without a reservation of its own, as what it replaces may be
    flags = mmap.MAP_SHARED | MAP_FIXED | arena.live.host.uapi.map_noreserve
    arena.threads.attempt("mmap", arena.start, arena.length, READ_WRITE, flags, arena.descriptor, arena.offset)


def _move(arena: Arena) -> None:
    memory = arena.memory
    arena.threads.move(memory, room_for(memory.actor, memory.pages, memory.size))


def _truncate(arena: Arena) -> None:
    for length in (arena.offset, arena.memory.length):
        arena.threads.attempt("ftruncate", arena.descriptor, length)


def _allocate(mode: int) -> Act:
    return lambda arena: arena.threads.attempt("fallocate", arena.descriptor, mode, arena.offset, arena.length)


def _read_file(arena: Arena) -> None:
    arena.threads.attempt("pread64", arena.descriptor, bytes(_READ), _READ, arena.offset)


def _read_of_another(arena: Arena) -> None:
    actor, step = arena.memory.actor, arena.live.base_page
    room = actor.mmap(step, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    local, remote = (actor.uapi.pack("2Q", address, step) for address in (room, arena.start))
    arena.threads.attempt("process_vm_readv", actor.pid, local, 1, remote, 1, 0)


def _move_to_nodes(arena: Arena) -> None:
    for node in arena.live.nodes[:2]:
        arena.threads.attempt("move_pages", *moving(arena.memory, node))


def _split(arena: Arena) -> None:
    words = f"{arena.memory.actor.pid},{arena.start:#x},{arena.start + arena.length:#x}"
    arena.write(f"/{arena.debugfs}/split_huge_pages", words)


def _resize_pool(arena: Arena) -> None:
    path = arena.live.pool_file("nr_hugepages")
    count = int(arena.live.host.read(path) or 0)
    arena.write(f"/{path}", str(count), str(count + _PAGES_MORE))


def _fork(arena: Arena) -> None:
    # what is private to its parent it writes over, for itself alone
    offset = 0 if arena.kind in _PRIVATE else _BESIDE
    for _fork in range(_FORKS):
        child = arena.memory.actor.fork()
        # what is not there, or not to be written, in this moment
        with suppress(Fault):
            child.write(arena.memory.address + offset, 1)
        child.end()


#: all that can be drawn; a kernel without a system call or an advice refuses it, which does no harm
RIVALS: Mapping[str, Rival] = {
    "discard": Rival(frozenset({Kind.ANONYMOUS}), _advise(MADV_DONTNEED), Came.GONE),
    # before, who writes meanwhile may find no page (2820b0f09be9)
    "discard-hugetlb": Rival(
        frozenset({Kind.PRIVATE_HUGETLB}), _advise(MADV_DONTNEED), Came.GONE, since=KernelVersion(6, 7)
    ),
    "unmap-pages": Rival(_FILES, _advise(MADV_DONTNEED)),
    "free": Rival(frozenset({Kind.ANONYMOUS}), _advise(mmap.MADV_FREE), Came.GONE),
    "remove": Rival(_FILES, _advise(mmap.MADV_REMOVE), Came.GONE),
    "punch": Rival(_FILES, _allocate(_PUNCH), Came.GONE),
    "allocate": Rival(_FILES, _allocate(0)),
    "truncate": Rival(_FILES, _truncate, Came.GONE | Came.SIGBUS),
    "read-file": Rival(_FILES, _read_file),
    "map-anew": Rival(_FILES, _map_anew, cuts=True),
    "replace": Rival(_PRIVATE, _replace, Came.GONE, cuts=True),
    "move": Rival(_PRIVATE, _move, Came.SIGSEGV, moves=True, last=True),
    "protect": Rival(_EVERY, _protect, Came.SIGSEGV, cuts=True),
    "lock": Rival(_EVERY, _lock, cuts=True),
    "populate": Rival(_EVERY, _advise(MADV_POPULATE_WRITE)),
    "move-to-nodes": Rival(_TRANSPARENT, _move_to_nodes),
    "move-hugetlb-to-nodes": Rival(HUGETLB, _move_to_nodes, known=frozenset({Quirk.UNMAP_PASSES_OVER_A_MOVE})),
    "read-of-another": Rival(_EVERY, _read_of_another),
    "smaps": Rival(_EVERY, lambda arena: arena.read("/proc/self/smaps")),
    "numa-maps": Rival(_EVERY, lambda arena: arena.read("/proc/self/numa_maps")),
    "pagemap": Rival(_EVERY, lambda arena: arena.read(PAGEMAP, arena.start // arena.live.base_page * WORD)),
    "clear-refs": Rival(_EVERY, lambda arena: arena.write("/proc/self/clear_refs", "1", "4")),
    "compact": Rival(_EVERY, lambda arena: arena.write("/proc/sys/vm/compact_memory", "1")),
    "fork": Rival(_EVERY, _fork, last=True, known=frozenset({Quirk.UNMAP_RESERVES_PAGE_IN_USE})),
    "resize-pool": Rival(HUGETLB, _resize_pool),
    "collapse": Rival(_TRANSPARENT, _advise(MADV_COLLAPSE)),
    "split": Rival(_TRANSPARENT, _split),
    "swap-out": Rival(_TRANSPARENT, _advise(MADV_PAGEOUT)),
    "cold": Rival(_TRANSPARENT, _advise(MADV_COLD)),
    "advise": Rival(_TRANSPARENT, _advise(MADV_HUGEPAGE, MADV_NOHUGEPAGE), cuts=True),
}
