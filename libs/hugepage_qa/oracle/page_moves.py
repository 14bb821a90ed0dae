"""What move_pages(2) does with a list of pages of which some cannot move: what it returns, tells and moves.

mm/migrate.c do_pages_move(), move_pages_and_store_status(): pages in a row for the same node move together, and the
first of these rows that has a page which cannot move ends the call.
"""

import errno
from collections.abc import Sequence
from dataclasses import dataclass

from hugepage_qa.version import KernelVersion

_ABSENT_AS_NO_MEMORY, _ABSENT_ONCE_MORE = KernelVersion(6, 6), KernelVersion(6, 12)


@dataclass(frozen=True)
class ListedPage:
    """A page that is to move to ``target``: on ``node``, or where there is none the negative errno that tells so.

    Somebody may have a hold of it, so that it cannot move.
    """

    node: int
    target: int
    held: bool = False


def status_of_absent(version: KernelVersion) -> int:
    """Return what move_pages(2) tells of a page of a pool that is not there, and is to move.

    From dd767aaa2fc8 to 46d6a9b4450b it was told as if there were no memory, as of ordinary memory without a table.
    """
    return -(errno.EFAULT if _ABSENT_AS_NO_MEMORY <= version < _ABSENT_ONCE_MORE else errno.ENOENT)


@dataclass
class Moves:
    """What comes of a list: how many pages have not moved, what is told of each, and where each is.

    Behind the page that ends the call nothing is told (None). ``moved`` and ``failed`` are what /proc/vmstat counts.
    """

    left: int
    status: list[int | None]
    nodes: list[int]
    moved: int = 0
    failed: int = 0


def moves_of(pages: Sequence[ListedPage]) -> Moves:
    """Return what comes of moving ``pages``."""
    result = Moves(0, [None] * len(pages), [page.node for page in pages])
    row: list[int] = []
    for number, page in enumerate(pages):
        if row and pages[row[0]].target != page.target and (failed := _move(result, pages, row)):
            # the pages that were not tried are left, too, this one among them (5984fabb6e82)
            result.left = failed + len(pages) - number
            return result
        if 0 <= page.node != page.target:
            row.append(number)
            continue
        result.status[number] = page.node
        if failed := _move(result, pages, row):
            result.left = failed + len(pages) - number - 1
            return result
    result.left = _move(result, pages, row)
    return result


def _move(result: Moves, pages: Sequence[ListedPage], row: list[int]) -> int:
    """Move pages in a row, and return how many of them cannot: nothing is told of any then."""
    free = [number for number in row if not pages[number].held]
    for number in free:
        result.nodes[number] = pages[number].target
    failed = len(row) - len(free)
    result.moved += len(free)
    result.failed += failed
    if not failed:
        for number in free:
            result.status[number] = pages[number].target
    row.clear()
    return failed
