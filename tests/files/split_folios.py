"""Folios of files that split_huge_pages splits: of which orders they are then, and what the files hold."""

from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.debugfs import write_debugfs
from hugepage_qa.cases.file_contents import Brought, KnownFile, bring
from hugepage_qa.cases.folio_layout import Layout, folios_of_all, layout_of, split_about, split_evenly
from hugepage_qa.cases.large_folios import block_size, file_case
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.uapi import MADV_POPULATE_READ
from hugepage_qa.plugins.avocado_test import LiveTest

SPLIT = Area("files/split-folios", sizes=Sizes.ONCE, uncleared=True)

_SPLIT_SECONDS = 10.0

case = partial(file_case, SPLIT)


@case(
    "split_huge_pages splits the folios of a file to every order that the kernel offers, all that are larger into"
    " folios of that order, and it holds what it held",
    "mm/huge_memory.c split_huge_pages_in_file(), split_huge_page_to_list_to_order() (c010d47f107f)",
    on=("xfs",),
    since="6.9",
)
def split_to_orders(live: Live, file: KnownFile) -> None:
    for order in reversed(_orders(live, file)):
        wanted = layout_of(live, [part for folio in _folios(live, file) for part in split_evenly(folio, order)])
        # what is held for a moment by who else works on it, or moves it, is not split
        split = partial(_split_folios, live, file, f"{order}")
        found = live.host.last_look(split, wanted.__eq__, _SPLIT_SECONDS)
        if found != wanted:
            # each of the other orders would be waited for as long
            live.fail(f"base pages in folios of each size in kB after a split to order {order}", wanted, found)
        file.expect(f"after a split to order {order}")
        _bring_anew(file)


@case(
    "split_huge_pages with the number of a base page of a folio halves each folio of the file that has so many again"
    " and again, and of the halves that with this page alone, down to the order: two folios of that and one of each"
    " larger one are left; what is smaller is split evenly, and the file holds what it held",
    "mm/huge_memory.c split_huge_pages_in_file() (4b94c18d1519), folio_split() (00527733d0dc)",
    on=("xfs",),
    by=(Brought.ADVISED,),
    since="6.15",
)
def split_about_a_page(live: Live, file: KnownFile) -> None:
    orders, pages = _orders(live, file), block_size(live) // live.base_page
    for order in sorted({orders[0], orders[len(orders) // 2], orders[-2], orders[-1]}):
        for place in (0, pages // 4 + 1, pages // 2, pages - 1):
            split = partial(_split_about, live, file, order, place)
            found, wanted = live.host.last_attempt(split, lambda seen: seen[0] == seen[1])
            with live.about(f"order {order}, base page {place}"):
                live.expect("base pages in folios of each size in kB", wanted, found)
                file.expect("after a split")


def _split_about(live: Live, file: KnownFile, order: int, place: int) -> tuple[Layout, Layout]:
    """Have the folios of ``file`` brought anew and split; return which there are then, and which there must be."""
    _bring_anew(file)
    wanted = list[range]()
    for folio in _folios(live, file):
        parts = split_about(folio, order, folio.start + place) if place < len(folio) else split_evenly(folio, order)
        wanted += parts
    return _split_folios(live, file, f"{order},{place}"), layout_of(live, wanted)


def _orders(live: Live, file: KnownFile) -> range:
    """Return the orders below that of a huge page that folios of ``file`` can have: none is smaller than a block."""
    orders = [(size // live.base_page).bit_length() - 1 for size in (_block_of(live, file), block_size(live))]
    return range(max(orders[0], 0), orders[1])


def _block_of(live: Live, file: KnownFile) -> int:
    return live.host.file_system(file.directory).block_size


def _bring_anew(file: KnownFile) -> None:
    """Have ``file``, which nobody maps, in folios as large as can be."""
    file.evict()
    bring(file, Brought.ADVISED)


def _split_folios(live: Live, file: KnownFile, how: str) -> Layout:
    """Have the folios of ``file`` split, and return which there are then."""
    # what was not written back is not split
    file.actor.call("fsync", file.descriptor)
    pages = file.contents.length // live.base_page
    write_debugfs(live, "split_huge_pages", f"{file.path},0x0,{pages:#x},{how}")
    return layout_of(live, _folios(live, file))


def _folios(live: Live, file: KnownFile) -> list[range]:
    """Return the folios of ``file``, all of which is brought into memory for that."""
    memory, length = file.map(), file.contents.length
    file.actor.call("madvise", memory.address, length, MADV_POPULATE_READ)
    found = folios_of_all(live, memory, length // live.base_page)
    memory.unmap()
    return found


class SplitFolios(LiveTest):
    def test_split_folios(self) -> None:
        self.run_area(SPLIT)
