"""What a migrated guest finds in its memory: what an emulator left behind is told apart from what a kernel lost."""

import pytest

from hugepage_qa.cases.guest.two_hosts import is_of_earlier_round


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
