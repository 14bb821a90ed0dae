"""A CMA area is one range: where memory has no such range for sure, it is left open whether the area comes about."""

from dataclasses import replace

import pytest
from tests.unit.oracle.conftest import MakeMachine

from hugepage_qa.oracle.boot.boot_reservation import contiguous_room, gigantic_room
from hugepage_qa.oracle.boot.predict import predict
from hugepage_qa.sizes import GIB

CONFIG = {"CONFIG_HUGETLB_PAGE": "y", "CONFIG_NUMA": "y", "CONFIG_CMA": "y", "CONFIG_CMA_SIZE_PERNUMA": "y"}
CMA = "meminfo/CmaTotal"


@pytest.mark.parametrize(
    ("architecture", "config", "pages", "range_pages"),
    [
        # node 0 from 0 on: behind the hole below 4 GiB three pages under what is allocated early
        ("x86_64", {}, 3, 3),
        # from 1 GiB on: one page below what devices have under 4 GiB, two above, of which they have the first
        ("aarch64", {}, 3, 2),
        ("aarch64", CONFIG, 2, 1),
    ],
)
def test_one_range_has_less_room_than_all_of_a_node(
    make_machine: MakeMachine, architecture: str, config: dict[str, str], pages: int, range_pages: int
) -> None:
    machine = replace(make_machine(architecture, "6G,6G", "7.3"), config=config)
    node = machine.nodes[0]
    assert gigantic_room(node, GIB, machine).low == pages
    assert contiguous_room(node, GIB, machine) == range_pages * GIB


@pytest.mark.parametrize(("area", "is_certain"), [("1G", True), ("2G", False)])
def test_an_area_that_no_range_is_sure_for_is_left_open(make_machine: MakeMachine, area: str, is_certain: bool) -> None:
    machine = replace(make_machine("aarch64", "6G,6G", "7.3"), config=CONFIG, unknown_words=())
    prediction = predict(f"hugetlb_cma=0:{area},1:1G", machine)
    assert (CMA in {one.subject for one in prediction.expectations}) == is_certain
