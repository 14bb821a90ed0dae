"""What a case acts on: the pool of one page size on the running machine, and actors that use it."""

import mmap
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pool_view import NO_POOL, read_counters
from hugepage_qa.cases.resized_pool import ResizedPool
from hugepage_qa.kernel.smaps import MemoryMapping, read_smaps
from hugepage_qa.kernel.uapi import AT_FDCWD, HUGE_SHIFT, MAP_HUGETLB
from hugepage_qa.machine.host import CannotRun, Host, ObservedTree
from hugepage_qa.machine.knobs import Kind, Knob
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.actor_link import ActorGone

READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
#: VmFlags of memory that userfaultfd protects, which fork(2) copies where it is shared, too (VM_COPY_ON_FORK)
_PROTECTED = {"uw", "ur"}


class Live(ResizedPool):
    """The pool of pages of ``size`` bytes, and what one case does to it, with memory, mounts and processes of its own.

    What is available in the pool when the case starts is put aside (an actor reserves it), so that a case knows to the
    page what it can have, and a reservation made at boot is never given back. Without a size it is the default pool,
    which is empty on a kernel without hugetlb.
    """

    def __init__(self, host: Host, size: int | None, rule: Rule, stack: ExitStack) -> None:
        super().__init__(host, size, rule)
        self._stack = stack
        self._mounted: dict[str, Callable[[], None]] = {}
        #: what says that actors do not answer, or never end, and what they have cannot be cleared up
        self.gone: list[ActorGone] = []

    def put_aside(self) -> None:
        """Reserve what is available now: from here on the case counts from zero.

        Raises CannotRun where some of it is on nodes that the suite may not use (hugetlb_acct_memory()).
        """
        of_others = [self._before.nodes[node].get(self.size, NO_POOL) for node in self.nodes_of_others]
        if any(pool.free for pool in of_others):
            raise CannotRun("pages are free on nodes that the suite, by its cpuset, may not use")
        self.absorb_surplus()
        available = self._base.available
        if available > 0:
            self.map(available, shared=True)
            self._base = read_counters(self.host, self.size)

    def set_knob(self, path: str, value: str) -> None:
        """Write ``value`` to a file such as ``proc/sys/vm/hugetlb_shm_group`` until the case ends.

        Raises CannotRun where the kernel has no such file, OSError when it refuses the value.
        """
        before = Knob(Kind.SYSCTL, path).read(self.host)
        if before is None:
            raise CannotRun(f"this kernel has no /{path}")
        self._stack.callback(self.host.write, path, before)
        self.host.write(path, value)

    def set_knob_if_there(self, path: str, value: str) -> None:
        """Write ``value`` as ``set_knob`` does where the kernel has the file. Raises OSError when it refuses it."""
        if self.host.read(path) is not None:
            self.set_knob(path, value)

    def of_size(self, size: int) -> "Live":
        """Return the pool of another page size for this case; what was available in it is put aside, too."""
        other = Live(self.host, size, self.rule, self._stack)
        other.differences, other._mounted, other.gone = self.differences, self._mounted, self.gone
        other.put_aside()
        return other

    def actor(self) -> Actor:
        """Start an actor; it ends with the case at the latest."""
        actor = self.host.start_actor()
        self._stack.callback(self._end, actor)
        return actor

    def fork(self, actor: Actor) -> Actor:
        """Fork ``actor``, and return its child. Raises KnownBug as ``see_inherited`` does."""
        child = actor.fork()
        self.see_inherited(actor, child)
        return child

    def see_inherited(self, parent: Actor, child: Actor) -> None:
        """Look for pages of a pool that a child lacks which was forked just now. Raises KnownBug (fork-loses-pages)."""
        if self.mmu.may_seem_shared(self.size) and self.has_bug(Quirk.FORK_LOSES_PAGES):
            before, after = (self._mapped_of_pools(actor) for actor in (parent, child))
            lost = [self._is_lost(before[start], mapping) for start, mapping in after.items() if start in before]
            self._end_if_known(Quirk.FORK_LOSES_PAGES, any(lost))

    def _mapped_of_pools(self, actor: Actor) -> dict[int, MemoryMapping]:
        """Return the mappings of pages of a pool that ``actor`` has, by where they begin."""
        found = read_smaps(ObservedTree(self.host), actor.pid) or ()
        return {mapping.start: mapping for mapping in found if "ht" in mapping.flags}

    def _is_lost(self, before: MemoryMapping, after: MemoryMapping) -> bool:
        """Tell whether what fork(2) copies of a mapping lacks, ``after`` it, all pages of a page table.

        It copies private mappings, and shared ones that userfaultfd protects (vma_needs_copy() in mm/memory.c).
        """
        is_copied = not after.is_shared or bool(after.flags & _PROTECTED)
        table = self.mmu.table(after.kernel_page_size)
        of_several_tables = after.start // table < (after.end - 1) // table
        return is_copied and after.hugetlb < before.hugetlb and (of_several_tables or not after.hugetlb)

    def _end(self, actor: Actor) -> None:
        try:
            actor.end()
        except ActorGone as gone:
            self.gone.append(gone)
            raise

    def start_program(self, path: str) -> Actor:
        """Start a program that ``host.build_text`` built; it ends with the case at the latest."""
        actor = self.host.start_program(path)
        self._stack.callback(self._end, actor)
        return actor

    def map(
        self,
        pages: int,
        actor: Actor | None = None,
        *,
        shared: bool = False,
        noreserve: bool = False,
        fd: int | None = None,
        first: int = 0,
        prot: int = READ_WRITE,
        flags: int = 0,
        at: int = 0,
    ) -> Memory:
        """Map ``pages`` huge pages: anonymous ones, or those of file ``fd`` from page ``first`` on. Raises OSError.

        Without an actor a new one is started for it. ``flags`` are further MAP_* flags, ``at`` an address for them.
        """
        actor = actor or self.actor()
        flags |= mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
        flags |= self.host.uapi.map_noreserve if noreserve else 0
        if fd is None:
            flags |= mmap.MAP_ANONYMOUS | self.size_flag | MAP_HUGETLB
        address = actor.mmap(pages * self.size, prot, flags, -1 if fd is None else fd, first * self.size, at)
        return Memory(self, actor, address, pages, self.size)

    @property
    def size_flag(self) -> int:
        """The page size as MAP_HUGE_*, MFD_HUGE_* and SHM_HUGE_* encode it."""
        return (self.size.bit_length() - 1) << HUGE_SHIFT

    def mount(self, **options: str | int) -> str:
        """Mount a hugetlbfs of this page size and return where; it is unmounted after the case. Raises OSError."""
        words = {"pagesize": self.size, **options}
        return self.mount_other(",".join(f"{name}={value}" for name, value in words.items()), "hugetlbfs")

    def mount_other(self, options: str, file_system: str) -> str:
        """Mount a ``file_system`` and return where; it is unmounted after the case. Raises Refused."""
        point = self.host.mount(options, file_system)
        # before the actors end, which have files open there, it would be busy
        self._mounted[point] = self.once_at_the_end(lambda: self.host.unmount(point))
        return point

    def mount_interface(self, file_system: str) -> str:
        """Mount one of the kernel's own, such as debugfs, until the case ends; its path without the leading slash.

        Raises CannotRun on a kernel without it, and where it refuses it.
        """
        if file_system not in (self.host.read("proc/filesystems") or "").split():
            raise CannotRun(f"this kernel has no {file_system}")
        try:
            return self.mount_other("", file_system).lstrip("/")
        except OSError as error:
            raise CannotRun(f"{file_system} cannot be mounted: {error.strerror}") from error

    def unmount(self, point: str) -> None:
        """Unmount what the case has mounted on ``point`` while it goes on. Raises OSError where it stays busy."""
        self._mounted[point]()

    def when_actors_have_ended(self, act: Callable[..., None], *arguments: Any) -> None:
        """Call ``act`` when the case has ended and so have all its actors."""
        # callbacks run last in, first out
        later = self._stack.pop_all()
        self._stack.callback(act, *arguments)
        self._stack.push(later.__exit__)

    def once_at_the_end(self, act: Callable[[], None]) -> Callable[[], None]:
        """Call ``act`` as ``when_actors_have_ended`` does, if what is returned has not been called before."""
        left = [act]

        def once() -> None:
            for each in left:
                each()
            left.clear()

        self.when_actors_have_ended(once)
        return once

    def open(self, actor: Actor, path: str, flags: int = os.O_RDWR | os.O_CREAT) -> int:
        """Have ``actor`` open a file and return its descriptor. Raises OSError."""
        return actor.call("openat", AT_FDCWD, path, flags, 0o600)
