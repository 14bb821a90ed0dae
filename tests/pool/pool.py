"""The run-time pool: what writes to its files do, and what they never do."""

from hugepage_qa.live.case import Area
from hugepage_qa.live.live import Live
from hugepage_qa.model.rules import HUGETLB_DOC
from hugepage_qa.plugins.live_test import LiveTest

POOL = Area("pool")


@POOL.case("pages in use survive a shrink of the pool as surplus", f"{HUGETLB_DOC} Caveat: shrinking", pages=2)
def shrink_below_use(live: Live) -> None:
    memory = live.map(2)
    memory.fill()
    live.set_nr(1)
    live.expect_pool(nr=2, free=0, surplus=1)
    memory.expect_filled()
    memory.unmap(0, 1)
    live.expect_pool(nr=1, free=0)
    memory.unmap(1)
    live.expect_pool(nr=1, free=1)


class Pool(LiveTest):
    """Cases on the pool of every page size of the machine.

    :avocado: enable
    :avocado: tags=hugetlb,pool
    """

    timeout = 600

    def test_pool(self) -> None:
        """Every case for every page size."""
        self.run_area(POOL)
