"""Memory that is said to be broken: madvise(2) MADV_SOFT_OFFLINE and MADV_HWPOISON on huge pages."""

import errno
import signal

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.uapi import MADV_HWPOISON, MADV_SOFT_OFFLINE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Fault

HWPOISON = Area("hwpoison")
SOFT = "madvise(2) MADV_SOFT_OFFLINE; mm/memory-failure.c soft_offline_page()"
# not of files: the page stays in their page cache, and counted in the pool, until the machine boots again
HARD = "madvise(2) MADV_HWPOISON; mm/memory-failure.c memory_failure(), try_memory_failure_hugetlb()"
# include/uapi/asm-generic/siginfo.h
BUS_MCEERR_AR = 4


@HWPOISON.case("a page that will break is replaced by a free one, and nobody notices", SOFT, sizes=Sizes.BUDDY, pages=3)
def soft_offline_takes_a_free_page(live: Live) -> None:
    memory = live.map(1)
    memory.fill()
    before = _corrupted(live)
    _break(live, memory, MADV_SOFT_OFFLINE)
    live.expect_pool(nr=2, free=1)
    live.expect_sysctl(2)
    memory.expect_filled()
    live.expect("base pages out of use", 1, _corrupted(live) - before)
    memory.unmap()
    live.expect_pool(nr=2, free=2)


@HWPOISON.case("without a free page the one that will break gets a new one", SOFT, sizes=Sizes.BUDDY, pages=1)
def soft_offline_without_a_free_page(live: Live) -> None:
    memory = live.map(1)
    memory.fill()
    before = _corrupted(live)
    _break(live, memory, MADV_SOFT_OFFLINE)
    live.expect_pool(nr=1, free=0)
    live.expect_sysctl(1)
    memory.expect_filled()
    live.expect("base pages out of use", 1, _corrupted(live) - before)
    memory.unmap()
    live.expect_pool(nr=1, free=1)


@HWPOISON.case(
    "with enable_soft_offline=0 no page is taken out of use before it breaks, and who asks for it is told EOPNOTSUPP",
    "Documentation/admin-guide/sysctl/vm.rst enable_soft_offline; mm/memory-failure.c soft_offline_page()",
    sizes=Sizes.BUDDY,
    since="6.11",
    pages=2,
)
def soft_offline_disabled(live: Live) -> None:
    memory = live.map(1)
    memory.fill()
    before = _corrupted(live)
    live.set_knob("proc/sys/vm/enable_soft_offline", "0")
    live.expect_errno(errno.EOPNOTSUPP, _break, live, memory, MADV_SOFT_OFFLINE)
    live.expect("base pages out of use", 0, _corrupted(live) - before)
    memory.expect_filled()
    live.expect_pool(nr=2, free=1)


@HWPOISON.case("a broken page ends its user and no other, and leaves the pool", HARD, sizes=Sizes.BUDDY, pages=3)
def broken_private_page(live: Live) -> None:
    memory, other = live.map(2), live.map(1)
    memory.fill()
    other.fill()
    before = _corrupted(live)
    _break(live, memory, MADV_HWPOISON)
    _expect_broken(live, memory)
    memory.expect_filled(first=1)
    other.expect_filled()
    live.expect("base pages out of use", 1, _corrupted(live) - before)
    memory.unmap()
    live.expect_pool(nr=2, free=1)
    live.expect_sysctl(2)


def _break(live: Live, memory: Memory, advice: int) -> None:
    """Tell the kernel that the first base page of ``memory`` is broken, or will be. Raises CannotRun, OSError."""
    try:
        memory.actor.call("madvise", memory.address, live.base_page, advice)
    except OSError as error:
        if error.errno != errno.EINVAL or "HardwareCorrupted" in read_meminfo(live.host):
            raise
        raise CannotRun("this kernel has no CONFIG_MEMORY_FAILURE") from error


def _expect_broken(live: Live, memory: Memory) -> None:
    try:
        memory.read()
    except Fault as fault:
        live.expect("signal and code", (signal.SIGBUS, BUS_MCEERR_AR), (fault.signal, fault.code))
    else:
        live.expect("signal and code", (signal.SIGBUS, BUS_MCEERR_AR), None)


def _corrupted(live: Live) -> int:
    """Return the base pages that are out of use."""
    return read_meminfo(ObservedTree(live.host)).get("HardwareCorrupted", 0) // live.base_page


class HwpoisonTest(LiveTest):
    """Huge pages with broken memory.

    :avocado: enable
    """

    def test_hwpoison(self) -> None:
        """Every case for every page size."""
        self.run_area(HWPOISON)
