"""Control groups of the hugetlb controller: mm/hugetlb_cgroup.c, mm/page_counter.c."""

import errno
from collections import Counter


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
        """Take a charge back."""
        self._pages[size] -= pages


class ControlGroup:
    """A control group. ``used`` counts pages in use, ``reserved`` pages that are promised (rsvd)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.used = GroupCounter()
        self.reserved = GroupCounter()
