"""What a list of pages comes to when some of them cannot move."""

import errno

import pytest

from hugepage_qa.oracle.page_moves import ListedPage, Moves, moves_of, status_of_absent
from hugepage_qa.version import KernelVersion

_GOES, _HELD, _ARRIVED = ListedPage(0, 1), ListedPage(0, 1, held=True), ListedPage(1, 1)
_COMES, _HELD_ARRIVED, _ABSENT = ListedPage(1, 0), ListedPage(1, 1, held=True), ListedPage(-errno.ENOENT, 1)


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        ([_GOES, _COMES], Moves(0, [1, 0], [1, 0], moved=2)),
        ([_HELD, _GOES], Moves(1, [None, None], [0, 1], moved=1, failed=1)),
        ([_HELD, _COMES, _GOES], Moves(3, [None, None, None], [0, 1, 0], failed=1)),
        # told of before the row that it ends
        ([_HELD, _ARRIVED, _GOES], Moves(2, [None, 1, None], [0, 1, 0], failed=1)),
        ([_GOES, _COMES, _HELD], Moves(1, [1, 0, None], [1, 0, 0], moved=2, failed=1)),
        # what is where it is to be, held or not there is not tried
        ([_HELD_ARRIVED, _ABSENT, _GOES], Moves(0, [1, -errno.ENOENT, 1], [1, -errno.ENOENT, 1], moved=1)),
    ],
)
def test_pages_that_were_not_tried_are_left_and_not_counted(pages: list[ListedPage], expected: Moves) -> None:
    assert moves_of(pages) == expected


@pytest.mark.parametrize(
    ("version", "number"),
    [
        (KernelVersion(6, 5), errno.ENOENT),
        (KernelVersion(6, 6), errno.EFAULT),
        (KernelVersion(6, 11), errno.EFAULT),
        (KernelVersion(6, 12), errno.ENOENT),
    ],
)
def test_an_absent_page_was_told_as_no_memory_for_a_while(version: KernelVersion, number: int) -> None:
    assert status_of_absent(version) == -number
