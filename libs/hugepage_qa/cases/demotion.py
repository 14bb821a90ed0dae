"""Demotion of free pages of a pool (demote, demote_size) to those of another one."""

from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import read_integer, size_name
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.sizes import KIB


def smaller_pool(live: Live) -> Live:
    """Return the pool that pages of this size are demoted to. Raises CannotRun where there is none."""
    size = (live.host.read(live.pool_file("demote_size")) or "").strip().removesuffix("kB")
    if not size:
        raise CannotRun(f"{size_name(live.size)} has no demote_size: no smaller size, or no way to give its pages back")
    return live.of_size(int(size) * KIB)


def smallest_demote_size(live: Live) -> int:
    """Return the least that demote_size takes, the PMD (HUGETLB_PAGE_ORDER): it may show a smaller one nevertheless.

    hugetlb_init_hstates() takes the next smaller size: arm64 has 64K below 2M. A kernel without transparent huge pages,
    as those with PREEMPT_RT were, has no file that tells the PMD.
    """
    return read_integer(live.host, f"{DIRECTORY}/hpage_pmd_size") or live.mmu.pmd


def demote(live: Live, pages: int, node: int | None = None) -> None:
    """Demote free pages of the pool of the machine, or of a node. Raises OSError."""
    live.host.write(live.pool_file("demote", node=node), f"{pages}")
