"""What a list of pages comes to when some of them cannot move."""

import errno

import pytest

from hugepage_qa.oracle.page_moves import ListedPage, moves_of, status_of_absent
from hugepage_qa.version import KernelVersion

_GOES, _HELD, _ARRIVED = ListedPage(0, 1), ListedPage(0, 1, held=True), ListedPage(1, 1)
_COMES = ListedPage(1, 0)


@pytest.mark.parametrize(
    ("pages", "left", "status", "nodes"),
    [
        ([_GOES, _COMES], 0, [1, 0], [1, 0]),
        ([_HELD, _GOES], 1, [None, None], [0, 1]),
        ([_HELD, _COMES, _GOES], 3, [None, None, None], [0, 1, 0]),
        # told of before the row that it ends
        ([_HELD, _ARRIVED, _GOES], 2, [None, 1, None], [0, 1, 0]),
        ([_GOES, _COMES, _HELD], 1, [1, 0, None], [1, 0, 0]),
    ],
)
def test_pages_that_were_not_tried_are_left(
    pages: list[ListedPage], left: int, status: list[int | None], nodes: list[int]
) -> None:
    found = moves_of(pages)
    assert (found.left, found.status, found.nodes) == (left, status, nodes)


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
