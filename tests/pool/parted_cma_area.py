"""An area of hugetlb_cma= for which no range of memory is large enough: it is made of several."""

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.contiguous_area import ContiguousArea
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.memory_layout import read_memory_map
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import GIB

_NODE, _PAGES = 1, 2
#: the node begins at 8 GiB, and has 5: behind each hole a range for one gigantic page alone is left
_HOLES = ("64M$9G", "64M$11G")
PARTED = Area(
    "pool/parted-cma-area",
    sizes=Sizes.GIGANTIC,
    words=" ".join((*(f"memmap={hole}" for hole in _HOLES), f"hugetlb_cma={_NODE}:{_PAGES}G")),
)
_ROUNDS = 3


@PARTED.case(
    "an area that no range of the node's memory is large enough for is made of several: all its pages can be taken out"
    " of it, used and given back, and it has no more than it was asked for",
    "Documentation/admin-guide/kernel-parameters.txt hugetlb_cma; mm/cma.c cma_declare_contiguous_multi(), since"
    " c009da4258f9",
    nodes=2,
    since="6.15",
)
def pages_of_all_ranges(live: Live) -> None:
    _need_parts(live)
    area = ContiguousArea(live, _NODE, _PAGES)
    live.expect("gigantic pages in the area", _PAGES, area.size // live.size)
    for _round in range(_ROUNDS):
        for pages in range(1, _PAGES + 1):
            area.take(pages)
        memory = live.map(_PAGES)
        memory.fill()
        memory.expect_filled()
        ranges = {frame * live.base_page // live.size for frame in memory.present_frames(_PAGES)}
        live.expect("whether the pages lie side by side", False, max(ranges) - min(ranges) < _PAGES)
        memory.actor.end()
        area.take(0)
    area.expect_whole()


def _need_parts(live: Live) -> None:
    """Raise CannotRun where the node has room for all pages in one range, or cannot have it in several."""
    memory = read_memory_map(live.host)
    if memory is None:
        raise CannotRun("/proc/iomem shows no addresses")
    pages = [
        (span.end // live.size) - -(-span.start // live.size) for span in memory.system_ram if span.start >= 8 * GIB
    ]
    if max(pages, default=0) >= _PAGES or sum(max(0, each) for each in pages) < _PAGES:
        raise CannotRun(f"ranges behind 8 GiB have room for {pages} pages: no {_PAGES} in parts")


class PartedCmaArea(LiveTest):
    def test_parted_cma_area(self) -> None:
        self.run_area(PARTED)
