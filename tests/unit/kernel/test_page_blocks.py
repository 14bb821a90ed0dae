"""What blocks of pages are for, by /proc/pagetypeinfo."""

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.page_blocks import ZoneBlocks, read_page_blocks
from hugepage_qa.kernel.tree import CapturedTree

TEXT = """\
Page block order: 1
Pages per block:  2

Free pages count per migrate type at order       0      1      2
Node    0, zone    DMA32, type    Unmovable      3      0      1
Node    0, zone    DMA32, type      Movable      1      4 >100000
Node    1, zone   Normal, type    Unmovable      0      0      0

Number of blocks type     Unmovable      Movable
Node 0, zone    DMA32            7         1521
Node 1, zone   Normal          132        10539

Number of mixed blocks    Unmovable      Movable
Node 0, zone    DMA32            1            2
"""


def test_blocks_of_each_zone() -> None:
    first, second = read_page_blocks(CapturedTree({"proc/pagetypeinfo": TEXT}))
    free = {"Unmovable": (3, 0, 1), "Movable": (1, 4, 100000)}
    assert first == ZoneBlocks(0, "DMA32", 2, {"Unmovable": 7, "Movable": 1521}, free)
    assert (first.free_pages("Unmovable"), first.free_pages("Movable"), first.free_pages("CMA")) == (7, 400009, 0)
    assert (first.free_blocks("Unmovable"), first.free_blocks("Movable")) == (2, 200004)
    assert second == ZoneBlocks(1, "Normal", 2, {"Unmovable": 132, "Movable": 10539}, {"Unmovable": (0, 0, 0)})


def test_who_may_not_read_it_is_told_of_no_zone() -> None:
    assert read_page_blocks(CapturedTree({})) == ()


def test_a_zone_without_a_number_for_each_type_is_refused() -> None:
    with pytest.raises(InputError, match="line 10"):
        read_page_blocks(CapturedTree({"proc/pagetypeinfo": TEXT.replace("7         1521", "7")}))
