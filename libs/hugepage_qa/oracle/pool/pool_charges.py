"""Who pays for a page: reservations (struct resv_map), quotas of mounts (struct hugepage_subpool), control groups.

Source: mm/hugetlb.c, mm/hugetlb_cgroup.c and mm/page_counter.c.
"""

import errno
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.pool.pool_kernel import PoolKernel


class GroupCounter:
    """Pages of each size that are charged to a group, and how many may be."""

    def __init__(self) -> None:
        self._pages: Counter[int] = Counter()
        self._limits: dict[int, int] = {}

    def usage(self, size: int) -> int:
        """Return what is charged, in bytes."""
        return self._pages[size] * size

    def set_limit(self, size: int, limit: int | None) -> None:
        """Limit to ``limit`` bytes, rounded down to whole pages; None for no limit. Raises OSError (EBUSY).

        page_counter_set_max() refuses a limit below what is charged.
        """
        if limit is None:
            self._limits.pop(size, None)
            return
        if limit // size < self._pages[size]:
            raise OSError(errno.EBUSY, "more is charged than the limit")
        self._limits[size] = limit // size

    def charge(self, size: int, pages: int) -> bool:
        """Charge ``pages``, all or none: page_counter_try_charge()."""
        limit = self._limits.get(size)
        if limit is not None and self._pages[size] + pages > limit:
            return False
        self._pages[size] += pages
        return True

    def uncharge(self, size: int, pages: int) -> None:
        """Take ``pages`` off: page_counter_uncharge()."""
        self._pages[size] -= pages


class ControlGroup:
    """A control group. ``used`` counts pages in use, ``reserved`` pages that are reserved (rsvd)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.used = GroupCounter()
        self.reserved = GroupCounter()


class FileReservation:
    """The pages of a file that have or had a reservation, and the group that each is charged to."""

    def __init__(self) -> None:
        self._groups: dict[int, ControlGroup | None] = {}

    def __contains__(self, index: int) -> bool:
        return index in self._groups

    def missing(self, first: int, pages: int) -> list[int]:
        """Return the pages of a range that are not in the map: region_chg()."""
        return [index for index in range(first, first + pages) if index not in self._groups]

    def add(self, indexes: Iterable[int], group: ControlGroup | None) -> None:
        """Enter pages: region_add(). ``group`` is None for a page that was charged when it was touched."""
        self._groups.update(dict.fromkeys(indexes, group))

    def remove(self, first: int, end: int | None, size: int) -> int:
        """Remove a range (to the end of the map with None), end its charges; return how many pages were in it.

        region_del(), hugetlb_cgroup_uncharge_file_region(); ``size`` of a page in bytes.
        """
        removed = [index for index in self._groups if first <= index and (end is None or index < end)]
        charged = Counter(group for index in removed if (group := self._groups.pop(index)) is not None)
        for group, pages in charged.items():
            group.reserved.uncharge(size, pages)
        return len(removed)


class PrivateReservation:
    """The reservation of a private mapping, shared by what it is split into.

    ``used_up`` are the pages that have taken their reservation: the opposite of what a file's map holds.
    """

    def __init__(self, group: ControlGroup) -> None:
        self._group = group
        self.used_up: set[int] = set()

    def close(self, first: int, end: int, size: int) -> int:
        """End the charge of a range that is unmapped; return how many of its pages were never touched.

        hugetlb_vm_op_close(), hugetlb_cgroup_uncharge_counter().
        """
        self._group.reserved.uncharge(size, end - first)
        return sum(index not in self.used_up for index in range(first, end))


class Reserving(Protocol):
    """What a subpool takes its reserve from: the pool of its page size."""

    kernel: PoolKernel

    def reserve(self, pages: int) -> bool:
        """Reserve pages; return whether there are as many."""

    def unreserve(self, pages: int) -> None:
        """Take a reservation back."""


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
        """Take pages; return how many of them the pool must reserve, None above the limit.

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
        """Give pages back; return how many reservations of the pool end with that: hugepage_subpool_put_pages()."""
        if self.most is not None:
            self.used -= pages
        ending = pages
        if self.least is not None and self.used < self.least:
            ending = max(0, self.reserved + pages - self.least)
            self.reserved = min(self.least, self.reserved + pages)
        self._release()
        return ending

    def fail(self, pages: int, from_pool: int, lost_by: Quirk) -> None:
        """Undo get() for ``pages`` of which the pool was to reserve ``from_pool`` and could not.

        ``lost_by`` is the quirk of the caller: alloc_hugetlb_folio() or hugetlb_reserve_pages().
        """
        if self._makes_up_reserve(pages, from_pool) and self._kernel.follows(Quirk.SUBPOOL_RESERVE_MADE_UP):
            self.put(pages)
            return
        covered = pages - from_pool
        if self._drops_reserve(covered, from_pool) and self._kernel.follows(Quirk.SUBPOOL_RESERVE_DROPPED):
            self._pool.unreserve(self.put(covered))
            covered = 0
        if self.most is not None and from_pool and not self._kernel.follows(lost_by):
            self.used -= from_pool
        if covered:
            self._pool.unreserve(self.put(covered))
        self._release()

    def _makes_up_reserve(self, pages: int, from_pool: int) -> bool:
        """Tell whether put() would count pages as reserved that the pool never reserved."""
        if self.least is None or not from_pool:
            return False
        used = self.used - pages if self.most is not None else 0
        return used < self.least

    def _drops_reserve(self, covered: int, from_pool: int) -> bool:
        """Tell whether put() takes the mount for full because what failed is still counted as used."""
        if self.least is None or self.most is None or not covered:
            return False
        return self.used - covered - from_pool < self.least <= self.used - covered

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
