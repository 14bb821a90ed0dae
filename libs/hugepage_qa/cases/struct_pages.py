"""Struct pages of huge pages, of which vm.hugetlb_optimize_vmemmap gives back all but those in one base page."""

from hugepage_qa.cases.checked_pages import checks_pages
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.tree import size_name
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk

OPTIMIZE = "proc/sys/vm/hugetlb_optimize_vmemmap"
#: bytes; a kernel with a larger one does not have the switch
_STRUCT_PAGE = 64
_BOOT = "nr_memmap_boot_pages"
_ON_MEMORY = "sys/module/memory_hotplug/parameters/memmap_on_memory"


def struct_pages(live: Live, size: int) -> int:
    """Return the bytes of the struct pages of one page of ``size`` bytes."""
    return size // live.base_page * _STRUCT_PAGE


def need_struct_pages(live: Live, size: int) -> None:
    """Raise CannotRun where the struct pages of a page of ``size`` bytes fill no more than the base page it keeps."""
    if struct_pages(live, size) <= live.base_page:
        raise CannotRun(f"the struct pages of {size_name(size)} fill no more than one base page")


def need_struct_pages_elsewhere(live: Live) -> None:
    """Raise CannotRun where memory that was added has its struct pages in itself, and keeps them (memmap_on_memory)."""
    if (live.host.read(_ON_MEMORY) or "N").strip() not in ("N", "0"):
        raise CannotRun("memory that was added has its struct pages in itself, and keeps them")


def optimize_struct_pages(live: Live, *, on: bool = True) -> None:
    """Have new pages of pools give their struct pages back, or keep them.

    Raises CannotRun without the switch, and where all memory of pages that did so is lost when they are freed, or the
    kernel may panic at it later, when others use it.
    """
    quirk = Quirk.DEMOTED_PARTS_LOSE_MEMORY
    if on and live.has_bug(quirk):
        known = f"{quirk.value}, a known bug of this kernel, has"
        if checks_pages(live):
            raise CannotRun(
                f"{known} pages that gave their struct pages back be bad when they are freed, and their memory lost"
                " until it is rebooted: with init_on_alloc=0 it can be judged"
            )
        if not live.host.is_thrown_away():
            raise CannotRun(
                f"{known} struct pages say for ever that they are of huge pages, at which it may panic later: a"
                " throwaway machine can judge it"
            )
        live.host.is_spoiled = True
    live.set_knob(OPTIMIZE, str(int(on)))


def read_counted_struct_pages(live: Live) -> int | None:
    """Return the base pages that are counted as struct pages, None before Linux 6.11 (15995a352474)."""
    counters = read_vmstat(ObservedTree(live.host))
    if "nr_memmap_pages" not in counters:
        return None
    return counters["nr_memmap_pages"] + counters[_BOOT]


def read_struct_pages_of_boot(live: Live) -> int | None:
    """Return the base pages with struct pages that were made as the machine booted, None before Linux 6.11.

    They are no part of MemTotal until a page of a pool gives them back: free_vmemmap_page() in mm/hugetlb_vmemmap.c
    frees them as memory that was reserved, and whatever replaces them later is taken from what is free.
    """
    return read_vmstat(ObservedTree(live.host)).get(_BOOT)


def keep_struct_pages_that_nobody_counts(live: Live) -> None:
    """Let new pages of a pool keep their struct pages until the case ends where those of the boot are not counted."""
    if read_struct_pages_of_boot(live) is None:
        live.set_knob_if_there(OPTIMIZE, "0")
