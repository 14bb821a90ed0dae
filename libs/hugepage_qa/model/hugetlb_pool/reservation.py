"""Reservations of files and of private mappings: struct resv_map in mm/hugetlb.c."""

from collections import Counter
from collections.abc import Iterable

from hugepage_qa.model.hugetlb_pool.cgroup import ControlGroup


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
