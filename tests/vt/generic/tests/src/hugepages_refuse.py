"""A guest that cannot have its pages is refused, nothing is left of it, and it starts once they are there."""

from collections.abc import Callable, Mapping

from hugepage_qa.cases.guest.guests import Guests
from hugepage_qa.cases.live import Live
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.plugins.vt_test import VtTest, choose, read_backing, run_variant

RULE = Rule(
    "refused-then-started",
    "a guest is refused when pages are short, leaves nothing, and starts once they are there",
    "mm/hugetlb.c hugetlb_reserve_pages(): ENOMEM; libvirt.org/formatdomain.html memoryBacking",
)

#: of how many pages that a guest needs, how many are there
FREE_PAGES: Mapping[str, Callable[[int], int]] = {
    "all_but_one": lambda pages: pages - 1,
    "half": lambda pages: pages // 2,
    "none": lambda _pages: 0,
}


def run(test: VtTest, params: Mapping[str, str], _env: object) -> None:
    """Run one variant for avocado-vt. Raises InputError for a parameter that is none."""
    backing, free = read_backing(params), choose(params, "free_pages", FREE_PAGES)

    def refused_then_started(_live: Live, guests: Guests) -> None:
        guest = guests.new(guests.cell(2), **backing)
        guests.expect_refused_then_started(guest, free(guest.pages))

    run_variant(test, params, RULE, refused_then_started)
