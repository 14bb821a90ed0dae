"""Faults that a program is told of, or that are refused for it: the kernel gives back what it took for them."""

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import CHARGED_AHEAD, Version, new_group
from hugepage_qa.cases.group_memory import USED, actor_in
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import allow_on_advice, map_aligned, pmd_size
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, offered_features
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE, MREMAP_MAYMOVE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.actor_threads import Came

NOTHING_KEPT = Area("userfaultfd/nothing-kept")

DOC = "ioctl_userfaultfd(2) UFFD_FEATURE_SIGBUS, UFFDIO_REGISTER_MODE_MISSING, _MINOR, _WP"
#: faults of each kind at least: twice as many base pages as may be charged besides, and more
_FAULTS = 16 * CHARGED_AHEAD
#: for how long a thread goes on before it is asked how many it had, and how often it is asked
_SECONDS, _TIMES = 0.2, 100
#: a system call that the kernel writes to memory for, and one that it reads it for
_WRITES, _READS = "read", "pwrite64"


@dataclass(frozen=True)
class Kind:
    """Memory of which faults are a program's: in what ``mode``, of huge pages or not, shared or not."""

    mode: Mode
    shared: bool
    advice: int
    feature: Feature

    @property
    def name(self) -> str:
        return f"{self.mode.name}, shared {self.shared}, {'huge' if self.advice == MADV_HUGEPAGE else 'base'} pages"

    def make(self, live: Live, actor: Actor) -> Memory:
        """Return such memory of ``actor``, whose faults nobody handles."""
        memory = map_aligned(live, 1, pmd_size(live), shared=self.shared, actor=actor, advice=self.advice)
        if self.mode != Mode.MISSING:
            memory.fill()
        if self.mode == Mode.MINOR:
            # mapped once more (mremap(2) of no bytes), where nothing of it is mapped yet
            other = actor.call("mremap", memory.address, 0, memory.length, MREMAP_MAYMOVE) % (1 << 64)
            memory = Memory(live, actor, other, 1, memory.size)
        fault = Userfault(memory, self.mode, self.feature)
        if self.mode == Mode.WRITE_PROTECTED:
            fault.write_protect(length=memory.length)
        return memory


def _kinds(live: Live) -> Iterator[Kind]:
    offered = offered_features(live)
    for advice in (MADV_NOHUGEPAGE, MADV_HUGEPAGE):
        for mode, shared, feature in (
            (Mode.MISSING, False, Feature(0)),
            (Mode.MISSING, True, Feature.MISSING_SHMEM),
            (Mode.WRITE_PROTECTED, False, Feature.PAGEFAULT_FLAG_WP),
            (Mode.WRITE_PROTECTED, True, Feature.WP_HUGETLBFS_SHMEM),
            (Mode.MINOR, True, Feature.MINOR_SHMEM),
        ):
            if feature in offered:
                yield Kind(mode, shared, advice, feature)


@NOTHING_KEPT.case(
    "of many faults of base pages and huge pages, private and shared, that are missing, protected or not mapped yet,"
    " which a program handles, and which are refused, nothing stays charged to the group of who has them, whether the"
    " kernel wanted to write there or to read",
    f"{DOC}; mm/memory.c do_anonymous_page(); mm/huge_memory.c __do_huge_pmd_anonymous_page(); mm/shmem.c"
    " shmem_get_folio_gfp()",
    sizes=Sizes.ONCE,
)
def of_refused_faults(live: Live) -> None:
    let_nobody_else_act(live)
    allow_on_advice(live)
    group = new_group(live, "memory", Version.TWO)
    for kind in _kinds(live):
        actor = actor_in(live, group)
        with live.about(kind.name):
            memory = kind.make(live, actor)
            for name in (_WRITES, _READS) if kind.mode != Mode.WRITE_PROTECTED else (_WRITES,):
                before = group.read_number(USED)
                _have_refused(live, memory, name)
                more = group.read_number(USED) - before
                # each would be charged for a base page at least
                left = more if more >= _FAULTS * live.base_page // 2 else 0
                live.expect(f"bytes that {_FAULTS} refused faults of {name}(2) left charged", 0, left)
        actor.end()


@NOTHING_KEPT.case(
    "of faults of pages of a pool, private and shared, that are missing, and that a program handles, which are refused,"
    " the pool is as before, whether the kernel wanted to write there or to read",
    f"{DOC}; mm/hugetlb.c hugetlb_no_page(), hugetlb_handle_userfault()",
    sizes=Sizes.BUDDY,
    pages=2,
)
def of_refused_faults_of_a_pool(live: Live) -> None:
    for shared in (False, True):
        memory = live.map(1, shared=shared)
        Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
        for name in (_WRITES, _READS):
            with live.about(f"shared {shared}, {name}"):
                _have_refused(live, memory, name)
                live.expect_pool(nr=2, free=2, resv=1)
        memory.actor.end()
        live.expect_pool(nr=2, free=2)


def _have_refused(live: Live, memory: Memory, name: str) -> None:
    """Have system calls ``name`` that want the middle of ``memory`` be refused, so often. Raises CannotRun."""
    actor, address = memory.actor, memory.address + memory.size // 2
    writes = name == _WRITES
    file = live.open(actor, "/dev/zero", os.O_RDONLY) if writes else actor.call("memfd_create", "target", 0)
    at = () if writes else (0,)
    times = 0
    for _time in range(_TIMES):
        actor.threads.attempt(name, file, address, live.base_page, *at)
        [done] = actor.threads.stop(_SECONDS)
        live.expect(f"errors of {name}", {errno.EFAULT}, {*done.errors})
        live.expect(f"what came of {name}", Came.REFUSED, done.came)
        times += done.times
        if times >= _FAULTS:
            actor.call("close", file)
            return
    raise CannotRun(f"this machine is too slow for {_FAULTS} faults")


class NothingKept(LiveTest):
    def test_nothing_kept(self) -> None:
        self.run_area(NOTHING_KEPT)
