"""A pool that is set by sysctl.vm.nr_hugepages=: what it takes out of areas is predicted, the rest is left open."""

from dataclasses import replace

import pytest
from tests.unit.oracle.conftest import MakeMachine

from hugepage_qa.oracle.boot.predict import predict
from hugepage_qa.oracle.prediction import Exactly, Prediction, pool_subject
from hugepage_qa.sizes import GIB

CONFIG = {"CONFIG_HUGETLB_PAGE": "y", "CONFIG_NUMA": "y", "CONFIG_CMA": "y"}
POOL = pool_subject(GIB, "nr_hugepages")


def predicted(make_machine: MakeMachine, words: str, version: str = "6.1") -> Prediction:
    """Return what a machine of two nodes must show."""
    machine = make_machine(memory="6G,6G", version=version)
    return predict(f"default_hugepagesz=1G {words}", replace(machine, config=CONFIG, unknown_words=()))


@pytest.mark.parametrize(
    ("areas", "pages", "nodes"), [("0:1G,1:1G", 2, (1, 1)), ("0:2G,1:1G", 3, (2, 1)), ("0:1G", 1, (1, 0))]
)
def test_pages_come_out_of_the_areas_of_all_nodes_in_turn(
    make_machine: MakeMachine, areas: str, pages: int, nodes: tuple[int, int]
) -> None:
    prediction = predicted(make_machine, f"hugetlb_cma={areas} sysctl.vm.nr_hugepages=9 sysctl.vm.nr_hugepages={pages}")
    found = {one.subject: one.expected for one in prediction.expectations if isinstance(one.expected, Exactly)}
    assert found[POOL] == Exactly(pages)
    assert tuple(found[pool_subject(GIB, "nr_hugepages", node)] for node in (0, 1)) == tuple(map(Exactly, nodes))


@pytest.mark.parametrize(
    "words",
    [
        "sysctl.vm.nr_hugepages=1",
        "hugetlb_cma=0:2G sysctl.vm.nr_hugepages=2",
        "hugetlb_cma=2G sysctl.vm.nr_hugepages=many",
        "hugetlb_cma=2G sysctl.vm.nr_hugepages",
    ],
)
def test_what_areas_may_lack_room_for_is_left_open(make_machine: MakeMachine, words: str) -> None:
    prediction = predicted(make_machine, words)
    assert POOL in [one.subject for one in prediction.unjudged]
    assert POOL not in [one.subject for one in prediction.expectations if isinstance(one.expected, Exactly)]


def test_a_kernel_before_it_leaves_the_pool_as_it_is(make_machine: MakeMachine) -> None:
    prediction = predicted(make_machine, "hugetlb_cma=2G sysctl.vm.nr_hugepages=2", version="5.7")
    assert Exactly(0) in [one.expected for one in prediction.expectations if one.subject == POOL]
