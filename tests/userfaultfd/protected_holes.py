"""Holes that a program protects, and fills then: they are filled, and protected no longer unless it says so."""

import errno
import signal
from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory, runs
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import advised
from hugepage_qa.cases.thp_shared_memory import map_file, mount_tmpfs
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.kernel.uapi import MADV_NOHUGEPAGE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

HOLES = Area("userfaultfd/protected-holes")

DOC = "Documentation/admin-guide/mm/userfaultfd.rst Write Protect Notifications; ioctl_userfaultfd(2) UFFDIO_COPY"
RULE = "can be filled, once, and are protected then as the call says that fills them"
_VALUE, _NEW_VALUE = 77, 1 << 41
_IS_THERE = errno.EEXIST, -errno.EEXIST


@HOLES.case(
    f"holes of a file and of private memory of huge pages that a program has protected {RULE}",
    f"{DOC}; mm/userfaultfd.c mfill_atomic_hugetlb()",
    since="5.19",
    pages=3,
)
def holes_of_huge_pages(live: Live) -> None:
    for shared, protected in product((True, False), (False, True)):
        with live.about(f"shared {shared}, filled protected {protected}"):
            source = live.map(1)
            source.fill(_VALUE)
            actor = source.actor
            memory = new_memfd(live, actor, pages=2).map(2) if shared else live.map(2, actor)
            fault = Userfault(
                memory, Mode.MISSING | Mode.WRITE_PROTECTED, Feature.MISSING_HUGETLBFS | Feature.WP_HUGETLBFS_SHMEM
            )
            fault.write_protect(length=memory.length)
            live.expect_pool(nr=3, free=2, resv=2)
            live.expect_success(partial(fault.copy, source, 1, protected=protected))
            live.expect_pool(nr=3, free=1, resv=1)
            live.expect_errno(errno.EEXIST, fault.copy, source, 1)
            _expect_as_filled(live, memory.part(1, 1), protected=protected)
            live.expect_signal(signal.SIGBUS, memory.touch)
            actor.end()
        live.expect_pool(nr=3, free=3)


@HOLES.case(
    f"holes of anonymous memory, of a file of a tmpfs and of private memory of it that a program has protected, all of"
    f" it or a part, {RULE}",
    f"{DOC}; UFFD_FEATURE_WP_UNPOPULATED; mm/userfaultfd.c mfill_atomic_install_pte()",
    sizes=Sizes.ONCE,
    since="6.4",
)
def holes_of_base_pages(live: Live) -> None:
    let_nobody_else_act(live)
    base, size = live.base_page, pmd_size(live)
    parts = (0, size), (size // 2, base), (base, size - 2 * base)
    for make, (start, length), protected in product(_KINDS, parts, (False, True)):
        memory = make(live, live.actor())
        source = map_aligned(live, 1, size, actor=memory.actor)
        source.fill(_VALUE)
        features = Feature.MISSING_SHMEM | Feature.WP_HUGETLBFS_SHMEM | Feature.WP_UNPOPULATED
        fault = Userfault(memory, Mode.MISSING | Mode.WRITE_PROTECTED, features)
        with live.about(f"{make.__name__.strip('_')}, {length} bytes from {start} on, filled protected {protected}"):
            fault.write_protect(offset=start, length=length)
            live.expect("bytes that are there", 0, memory.smaps().rss)
            live.expect_success(partial(fault.copy, source, protected=protected))
            live.expect("a second time: errno, .copy", _IS_THERE, fault.copied(source, start, base))
            _expect_as_filled(live, memory, protected=protected)
        memory.actor.end()


def _expect_as_filled(live: Live, memory: Memory, *, protected: bool) -> None:
    """Expect ``memory`` to hold what it was filled with, and all of it to be ``protected``, or none."""
    every = [range(memory.length // live.base_page)] if protected else []
    live.expect("runs of base pages that are protected", every, runs({*protected_pages(memory)}))
    memory.expect_filled(_VALUE)
    for offset in (0, memory.length // 2, memory.length - WORD):
        if protected:
            live.expect_signal(signal.SIGBUS, memory.actor.write, memory.address + offset, _NEW_VALUE)
        else:
            memory.actor.write(memory.address + offset, _NEW_VALUE)


def _anonymous(live: Live, actor: Actor) -> Memory:
    return advised(live, 1, MADV_NOHUGEPAGE, actor=actor)


def _of_a_file(live: Live, actor: Actor, *, shared: bool = True) -> Memory:
    descriptor = live.open(actor, f"{mount_tmpfs(live, 'never')}/file")
    actor.call("ftruncate", descriptor, pmd_size(live))
    return map_file(live, actor, descriptor, 1, shared=shared)


def _private_of_a_file(live: Live, actor: Actor) -> Memory:
    return _of_a_file(live, actor, shared=False)


_KINDS: tuple[Callable[[Live, Actor], Memory], ...] = (_anonymous, _of_a_file, _private_of_a_file)


class ProtectedHoles(LiveTest):
    def test_protected_holes(self) -> None:
        self.run_area(HOLES)
