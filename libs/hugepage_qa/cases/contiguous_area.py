"""The area of hugetlb_cma= of a node: gigantic pages that are taken out of it and given back."""

from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.machine.host import CannotRun, ObservedTree


class ContiguousArea:
    """The area of ``node``, out of which ``pages`` can be had when nobody uses it, and no other area."""

    def __init__(self, live: Live, node: int, pages: int) -> None:
        """Have the area free of what others have in it. Raises CannotRun where there is none of that size."""
        self._live = live
        self._node = node
        self._pages = pages
        total = read_meminfo(live.host).get("CmaTotal")
        if total is None:
            raise CannotRun("this kernel has no CONFIG_CMA")
        #: bytes in all areas
        self.size = total
        if total < pages * live.size:
            raise CannotRun(f"CmaTotal is {total} bytes, and {pages} pages are needed: boot/contiguous judges that")
        live.set_nr(pages, node)
        live.expect_pool(nr=pages, free=pages, node=node)
        live.set_nr(0, node)
        self._empty = self.free

    @property
    def free(self) -> int:
        """The bytes that are free in areas."""
        return read_meminfo(ObservedTree(self._live.host))["CmaFree"]

    @property
    def used(self) -> int:
        """The bytes that are in use of what was free when nobody used the area."""
        return self._empty - self.free

    def take(self, pages: int) -> None:
        """Have the pool of the node have ``pages``, and expect them to come out of the area."""
        self._live.set_nr(pages, self._node)
        self._live.expect_pool(nr=pages, free=pages)
        self._live.expect_pool(nr=pages, free=pages, node=self._node)
        self.expect_taken(pages)

    def expect_taken(self, pages: int) -> None:
        """Expect ``pages`` to be taken out of the area.

        A few base pages more or less are of others, or in lists of processors.
        """
        self._live.expect("gigantic pages taken out of the area", pages, round(self.used / self._live.size))

    def expect_whole(self) -> None:
        """Expect the area to have each page of it when nobody uses it: all can be taken."""
        self.expect_taken(0)
        self.take(self._pages)
        self.take(0)
