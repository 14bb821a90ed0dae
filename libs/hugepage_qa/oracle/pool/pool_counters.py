"""The pool of one huge page size: the counters of struct hstate in mm/hugetlb.c, and what changes them."""

import errno
from collections.abc import Mapping
from dataclasses import dataclass

from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.pool.pool_charges import ControlGroup, Subpool
from hugepage_qa.oracle.pool.pool_kernel import PoolKernel

#: counters of 64-bit kernels that fall below 0 go on from here
_UNSIGNED_LONG = 1 << 64


@dataclass(eq=False)
class Page:
    """A huge page in use. ``value`` is what its first 8 bytes hold; a page starts zeroed."""

    value: int = 0
    #: belongs to a private mapping (folio_test_anon()), not to a file
    is_anonymous: bool = False
    #: page table entries that point to it
    mapped: int = 0
    is_cached: bool = False
    #: its reservation comes back when it is freed (HPageRestoreReserve)
    restores_reservation: bool = False
    subpool: Subpool | None = None
    group: ControlGroup | None = None
    reserving_group: ControlGroup | None = None


@dataclass(frozen=True)
class PageSize:
    """A size of huge pages, in bytes.

    ``is_gigantic``: larger than the largest block of the page allocator (hstate_is_gigantic()).
    ``may_seem_shared``: its page table may be taken for one that processes share. ``table``: bytes that one page table
    covers. ``has_demote``: whether its pool may have the file (hugetlb_init_hstates(), which with hugetlb_cma= gives it
    to gigantic pages alone).
    """

    size: int
    is_gigantic: bool
    may_seem_shared: bool
    table: int
    has_demote: bool = True


class FreshMemory:
    """What the page allocator gives: all that is asked for, unless it is known to have given less."""

    def __init__(self) -> None:
        self._limit: int | None = None
        #: pages asked for since the last limit was set
        self.asked = 0

    def limit(self, pages: int | None) -> None:
        """From here on only ``pages`` more are given (it was observed), or all with None."""
        self._limit = pages
        self.asked = 0

    @property
    def is_limited(self) -> bool:
        """Tell whether less may be given than is asked for."""
        return self._limit is not None

    def take(self, pages: int) -> int:
        """Return how many of ``pages`` are given."""
        self.asked += pages
        if self._limit is None:
            return pages
        given = min(pages, self._limit)
        self._limit -= given
        return given


@dataclass
class Pool:
    """Pages of one size: in the pool, surplus included; free; reserved; above what was asked for."""

    page: PageSize
    kernel: PoolKernel
    memory: FreshMemory
    nr: int = 0
    free: int = 0
    resv: int = 0
    surplus: int = 0
    overcommit: int = 0

    @property
    def size(self) -> int:
        """Bytes of a page."""
        return self.page.size

    @property
    def persistent(self) -> int:
        """What was asked for as nr_hugepages and is there: persistent_huge_pages()."""
        return self.nr - self.surplus

    @property
    def available(self) -> int:
        """Pages that are free and reserved by nobody: available_huge_pages()."""
        return self.free - self.resv

    def counters(self) -> Mapping[str, int]:
        """Return the files of the pool in sysfs and what they hold."""
        return {
            "nr_hugepages": self.nr,
            "free_hugepages": self.free,
            "resv_hugepages": self.resv % _UNSIGNED_LONG,
            "surplus_hugepages": self.surplus,
            "nr_overcommit_hugepages": self.overcommit,
        }

    # --- what the administrator writes ---

    def set_count(self, count: int) -> None:
        """Write nr_hugepages: set_max_huge_pages()."""
        self.surplus -= min(self.surplus, max(0, count - self.persistent))
        if count > self.persistent:
            self._add_free(self.memory.take(count - self.persistent))
        else:
            self._shrink(count)

    def _shrink(self, count: int) -> None:
        # what is needed wraps when bugs let resv_hugepages fall below 0
        removed = min(self.free, max(0, self.persistent - max(count, self._needed() % _UNSIGNED_LONG)))
        self.free -= removed
        self.nr -= removed
        self.surplus += min(self.nr - self.surplus, max(0, self.persistent - count))

    def _needed(self) -> int:
        """Return how many persistent pages are in use or reserved."""
        if not self.kernel.shrinks_below_surplus:
            return self.resv + self.nr - self.free
        persistent_free = self.free
        if self.free > self.persistent:
            persistent_free = max(0, self.free - self.surplus)
        return self.resv + self.persistent - persistent_free

    def _add_free(self, pages: int) -> None:
        self.nr += pages
        self.free += pages

    def set_overcommit(self, count: int) -> None:
        """Write nr_overcommit_hugepages: nr_overcommit_hugepages_store(). Raises OSError (EINVAL)."""
        if not self._may_overcommit:
            raise OSError(errno.EINVAL, "gigantic pages cannot be overcommitted")
        self.overcommit = count

    @property
    def _may_overcommit(self) -> bool:
        return not self.page.is_gigantic or self.kernel.can_overcommit_gigantic

    def demote(self, count: int, target: "Pool") -> None:
        """Write demote: split ``count`` free pages into pages of ``target``: demote_store(). Raises OSError (EBUSY)."""
        # free less reserved is unsigned: below 0 every page seems to be available, and above where less than none is
        # reserved
        while count and self.available:
            split = min(count, self.free if self.kernel.follows(Quirk.DEMOTE_TAKES_RESERVED) else 1)
            if self.free < split or split == 0:
                raise OSError(errno.EBUSY, "no free page is left")
            self.free -= split
            self.nr -= split
            target.add_demoted(split * (self.size // target.size))
            count -= split

    def add_demoted(self, pages: int) -> None:
        """Take in pages that a larger one was split into: demote_free_hugetlb_folios()."""
        # before Linux 6.12 each went through free_huge_page(), which gives a page back while there is surplus
        absorbed = 0 if self.kernel.demotes_into_free_list else min(pages, self.surplus)
        self.surplus -= absorbed
        self._add_free(pages - absorbed)

    # --- reservations ---

    def reserve(self, pages: int) -> bool:
        """Reserve ``pages`` more, with surplus pages if need be; False when there are not enough.

        hugetlb_acct_memory() with a delta that is not negative, gather_surplus_pages().
        """
        if pages == 0:
            # also where more is reserved than there is, as demotion leaves it
            return True
        needed = max(0, self.resv + pages - self.free)
        if needed:
            if not self._may_overcommit or self.surplus + needed > self.overcommit:
                # those that were taken up to the limit went back
                return False
            if self.memory.take(needed) < needed:
                return False
            self.surplus += needed
            self._add_free(needed)
        self.resv += pages
        if pages > self.free:
            # allowed_mems_nr(): only reservations below 0 bring it here
            self.unreserve(pages)
            return False
        return True

    def unreserve(self, pages: int) -> None:
        """Take a reservation back, and give free surplus pages away: return_unused_surplus_pages()."""
        self.resv -= pages
        removed = min(pages, self.surplus, self.free)
        self.surplus -= removed
        self.free -= removed
        self.nr -= removed

    # --- pages ---

    def take_page(self, is_reserved: bool) -> Page | None:
        """Return a page for a fault, a surplus page where no other may be taken, or None.

        ``is_reserved``: it was reserved, and the reservation goes with it.
        dequeue_hugetlb_folio_vma(), alloc_buddy_hugetlb_folio_with_mpol() in alloc_hugetlb_folio().
        """
        # free less reserved is unsigned: below 0 every page seems to be available
        if self.free and (is_reserved or self.available):
            self.free -= 1
        elif self._may_overcommit and self.surplus < self.overcommit and self.memory.take(1):
            self.surplus += 1
            self.nr += 1
        else:
            return None
        self.resv -= is_reserved
        return Page(restores_reservation=is_reserved)

    def free_page(self, page: Page) -> None:
        """Free a page that nothing uses: free_huge_folio()."""
        reserved = page.restores_reservation
        if not reserved and page.subpool is not None:
            # the mount would fall below its min_size=
            reserved = page.subpool.put(1) == 0
        page.restores_reservation = False
        self._uncharge(page)
        self.resv += reserved
        is_kept = not self.surplus or (reserved and not self.kernel.follows(Quirk.RESERVED_SURPLUS_FREED))
        if is_kept:
            self.free += 1
        else:
            self.surplus -= 1
            self.nr -= 1

    def _uncharge(self, page: Page) -> None:
        if page.group is not None:
            page.group.used.uncharge(self.size, 1)
        if page.reserving_group is not None:
            page.reserving_group.reserved.uncharge(self.size, 1)
        page.group = page.reserving_group = None
