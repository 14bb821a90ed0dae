"""The quota of a mount: struct hugepage_subpool in mm/hugetlb.c."""

from typing import Protocol

from hugepage_qa.model.hugetlb_pool.kernel import PoolKernel
from hugepage_qa.model.known import Quirk


class Reserving(Protocol):
    """What a subpool takes its reserve from: the pool of its page size."""

    kernel: PoolKernel

    def reserve(self, pages: int) -> bool:
        """Promise pages."""

    def unreserve(self, pages: int) -> None:
        """Take a promise back."""


class Subpool:
    """Pages of one mount: at most ``most``, ``least`` of them reserved from the start (None: not limited).

    ``used`` is counted only with ``most``; ``reserved`` of the ``least`` pages are not taken yet.
    """

    def __init__(self, pool: Reserving, least: int | None, most: int | None) -> None:
        self._pool = pool
        self._kernel = pool.kernel
        self.least = least
        self.most = most
        self.used = 0
        self.reserved = least or 0
        self._is_mounted = True

    def get(self, pages: int) -> int | None:
        """Take pages; return how many of them the pool must promise, None above the limit.

        hugepage_subpool_get_pages().
        """
        if self.most is not None:
            if self.used + pages > self.most:
                return None
            self.used += pages
        covered = min(pages, self.reserved)
        self.reserved -= covered
        return pages - covered

    def put(self, pages: int) -> int:
        """Give pages back; return how many promises of the pool end with that: hugepage_subpool_put_pages()."""
        if self.most is not None:
            self.used -= pages
        ending = pages
        if self.least is not None and self.used < self.least:
            ending = max(0, self.reserved + pages - self.least)
            self.reserved = min(self.least, self.reserved + pages)
        self._release()
        return ending

    def fail(self, pages: int, promised: int, lost_by: Quirk) -> None:
        """Undo get() for ``pages`` of which the pool was to promise ``promised`` and could not.

        ``lost_by`` is the quirk of the caller: alloc_hugetlb_folio() or hugetlb_reserve_pages().
        """
        if self._makes_up_reserve(pages, promised) and self._kernel.follows(Quirk.SUBPOOL_RESERVE_MADE_UP):
            self.put(pages)
            return
        covered = pages - promised
        if self._drops_reserve(covered, promised) and self._kernel.follows(Quirk.SUBPOOL_RESERVE_DROPPED):
            self._pool.unreserve(self.put(covered))
            covered = 0
        if self.most is not None and promised and not self._kernel.follows(lost_by):
            self.used -= promised
        if covered:
            self._pool.unreserve(self.put(covered))
        self._release()

    def _makes_up_reserve(self, pages: int, promised: int) -> bool:
        """Tell whether put() would count pages as reserved that the pool never promised."""
        if self.least is None or not promised:
            return False
        used = self.used - pages if self.most is not None else 0
        return used < self.least

    def _drops_reserve(self, covered: int, promised: int) -> bool:
        """Tell whether put() takes the mount for full because what failed is still counted as used."""
        if self.least is None or self.most is None or not covered:
            return False
        return self.used - covered - promised < self.least <= self.used - covered

    def unmount(self) -> None:
        """End with the mount, or with the last page: hugepage_put_subpool()."""
        self._is_mounted = False
        self._release()

    def _release(self) -> None:
        """Give the reserve back when neither mount nor pages are left: unlock_or_release_subpool()."""
        if self._is_mounted or not self._is_free:
            return
        if self.least is not None:
            self._pool.unreserve(self.least)
            self.least = None

    @property
    def _is_free(self) -> bool:
        if self.most is not None:
            return self.used == 0
        return self.least is None or self.reserved == self.least
