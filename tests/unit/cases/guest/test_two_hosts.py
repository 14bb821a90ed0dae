"""What is seen of a migration: what an emulator left behind is no loss of a kernel, and a page on its way is none."""

import pytest

from hugepage_qa.cases.guest.two_hosts import Look, is_of_earlier_round
from hugepage_qa.cases.pool_view import Counters


@pytest.mark.parametrize(
    "found",
    [
        # of guests that QEMU 7.2 emulated on a machine with other work
        "918738 words are wrong, the first at 0: 0x340000000000 instead of 0x380000000000",
        "516760 words are wrong, the first at 0x3ec000: 0x6458b0ce07a89700 instead of 0x6458aece07a89700",
    ],
)
def test_a_word_of_an_earlier_round(found: str) -> None:
    assert is_of_earlier_round(found)


@pytest.mark.parametrize(
    "found",
    [
        "right",
        "ended by itself",
        "1 words are wrong, the first at 0: 0 instead of 0x380000000000",
        "1 words are wrong, the first at 0x3ec000: 0 instead of 0x6458aece07a89700",
        # later than what was expected, of another line, and one bit that is another
        "1 words are wrong, the first at 0: 0x390000000000 instead of 0x380000000000",
        "1 words are wrong, the first at 0x3ec040: 0x6458b0ce07a89700 instead of 0x6458aece07a89700",
        "1 words are wrong, the first at 0: 0x340000000001 instead of 0x380000000000",
    ],
)
def test_what_no_emulator_leaves_behind(found: str) -> None:
    assert not is_of_earlier_round(found)


@pytest.mark.parametrize(
    ("mapped", "free_before", "free_after", "is_whole"),
    [
        (24, 40, 40, True),
        # out of the pool and not mapped yet, and one that came while it was looked
        (24, 39, 39, False),
        (24, 40, 39, False),
    ],
)
def test_a_moment_at_which_no_page_is_on_its_way(
    mapped: int, free_before: int, free_after: int, is_whole: bool
) -> None:
    before, after = (Counters(nr=128, free=free, resv=free, surplus=0) for free in (free_before, free_after))
    assert Look(mapped, before, after).is_of_one_moment(64) is is_whole
