"""However a guest ends, all its pages are back in the pool, and no file of it is left in hugetlbfs."""

from collections.abc import Mapping

from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.cases.guest.guests import Guests
from hugepage_qa.cases.live import Live
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.plugins.vt_test import VtTest, choose, read_backing, run_variant

RULE = Rule(
    "all-back",
    "a guest takes exactly its pages, and gives all of them back however it ends",
    "mm/hugetlb.c free_huge_folio(), hugetlb_unreserve_pages(); fs/hugetlbfs/inode.c hugetlbfs_evict_inode()",
)

ENDS = {"destroy": Guest.destroy, "sigkill": Guest.kill}


def run(test: VtTest, params: Mapping[str, str], _env: object) -> None:
    """Run one variant for avocado-vt. Raises InputError for a parameter that is none."""
    backing, end = read_backing(params), choose(params, "guest_end", ENDS)

    def taken_and_given_back(_live: Live, guests: Guests) -> None:
        guest = guests.new(**backing)
        guests.expect_started(guest)
        end(guest)
        guests.expect_all_back(guest)

    run_variant(test, params, RULE, taken_and_given_back)
