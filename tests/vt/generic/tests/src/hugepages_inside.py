"""A guest on huge pages has huge pages of its own, of which the machine's pool sees nothing."""

from collections.abc import Mapping

from hugepage_qa.cases.guest.guests import Guests
from hugepage_qa.cases.guest.pool_in_guest import expect_pool_of_its_own, room_for_a_pool
from hugepage_qa.cases.live import Live
from hugepage_qa.oracle.rules import HUGETLB_DOC, Rule
from hugepage_qa.plugins.vt_test import VtTest, console_shell, read_backing, run_variant

RULE = Rule(
    "pool-of-its-own",
    "a guest on huge pages reserves, uses and gives back huge pages of its own",
    f"{HUGETLB_DOC}, in the guest",
)


def run(test: VtTest, params: Mapping[str, str], _env: object) -> None:
    """Run one variant for avocado-vt. Raises InputError for a parameter that is none."""
    backing = read_backing(params)

    def pool_of_its_own(live: Live, guests: Guests) -> None:
        guest = guests.new_with_pages(room_for_a_pool(live.size), **backing)
        guest.boot()
        with console_shell(guest) as run_inside:
            expect_pool_of_its_own(live, guest, run_inside)

    run_variant(test, params, RULE, pool_of_its_own)
