"""hugetlb_cma= in per cent of memory: what is known of it before the boot, and what is left open."""

from dataclasses import replace

import pytest
from tests.unit.oracle.conftest import MakeMachine

from hugepage_qa.oracle.architecture import Machine
from hugepage_qa.oracle.boot.cma import CmaPlan, plan_cma
from hugepage_qa.parameters import parse_parameters
from hugepage_qa.sizes import GIB


@pytest.fixture
def machine(make_machine: MakeMachine) -> Machine:
    made = make_machine("x86_64", "6G,6G", "7.3")
    return replace(made, nodes=tuple(replace(node, present=6 * GIB - 128 * 1024) for node in made.nodes))


def plan(words: str, machine: Machine) -> CmaPlan:
    return plan_cma(parse_parameters(words), machine, frozenset())


@pytest.mark.parametrize(
    ("value", "nodes", "messages"),
    [
        ("20%", {0: 1, 1: 1}, ["reserve 2048 MiB (20%), up to 1024 MiB per node"]),
        ("0:20%,1:40%", {0: 1, 1: 2}, ["reserved 1024 MiB (20%) on node 0", "reserved 2048 MiB (40%) on node 1"]),
        ("0:20%,1:1G", {0: 1, 1: 1}, ["reserved 1024 MiB (20%) on node 0", "reserved 1024 MiB on node 1"]),
        ("0:20%,0:2G,1:20%", {0: 2, 1: 1}, ["reserved 2048 MiB on node 0", "reserved 1024 MiB (20%) on node 1"]),
        ("0:20%,7:20%", {0: 1}, ["reserved 1024 MiB (20%) on node 0"]),
        ("0:20%,7:1G", {0: 1}, ["invalid node 7 specified"]),
        ("0:20%,1:101%", {0: 1}, ["invalid percentage 101 for node 1", "reserved 1024 MiB (20%) on node 0"]),
        ("0:20% 1:20%", {0: 1}, ["reserved 1024 MiB (20%) on node 0"]),
        ("101%", {}, ["invalid percentage 101"]),
        ("0%", {}, []),
        ("0:20%,1:1G hugetlb_cma=20%", {0: 1, 1: 1}, ["reserve 2048 MiB (20%), up to 1024 MiB per node"]),
        ("0:1G,1:20% hugetlb_cma=1G", {0: 1}, ["reserve 1024 MiB, up to 1024 MiB per node"]),
        ("20% hugetlb_cma=1:20%", {1: 1}, ["reserved 1024 MiB (20%) on node 1"]),
        ("2G hugetlb_cma=0:1G", {0: 1}, ["reserved 1024 MiB on node 0"]),
        ("1:20% hugetlb_cma=0:1G", {0: 1, 1: 1}, ["reserved 1024 MiB on node 0", "reserved 1024 MiB (20%) on node 1"]),
        ("0:40%,1:2G hugetlb_cma=1:20%", {0: 2, 1: 1}, ["reserved 2048 MiB (40%) on node 0"]),
        ("1:1G hugetlb_cma=1:0", {}, []),
        ("1:1G hugetlb_cma=101%", {1: 1}, ["invalid percentage 101", "reserved 1024 MiB on node 1"]),
        ("2G hugetlb_cma=1:101%", {}, ["invalid percentage 101 for node 1"]),
        ("1G hugetlb_cma=much", {0: 1}, ["reserve 1024 MiB, up to 1024 MiB per node"]),
    ],
)
def test_a_percentage_is_rounded_down_to_gigantic_pages(
    machine: Machine, value: str, nodes: dict[int, int], messages: list[str]
) -> None:
    planned = plan(f"hugetlb_cma={value}", machine)
    assert planned.open_because == ""
    assert planned.nodes == {node: pages * GIB for node, pages in nodes.items()}
    told = [line.removeprefix("hugetlb_cma: ") for line in planned.messages]
    assert told[: len(messages)] == messages


@pytest.mark.parametrize(
    "words",
    [
        "hugetlb_cma=50%",  # firmware may have a little more than 6 GiB of each node, or not
        "hugetlb_cma=0:50%,1:1G",
        "hugetlb_cma=1%",  # the log tells how much it was before it was rounded down to nothing
        "hugetlb_cma=1:1%",
        "hugetlb_cma=1:1G hugetlb_cma=1%",
    ],
)
def test_what_is_not_known_for_sure_is_left_open(machine: Machine, words: str) -> None:
    assert plan(words, machine).open_because


def test_kernels_before_did_not_say_what_nodes_in_more_than_one_mean(make_machine: MakeMachine) -> None:
    machine = make_machine("x86_64", "6G,6G", "6.12")
    assert plan("hugetlb_cma=1:1G hugetlb_cma=2G", machine).open_because
    assert plan("hugetlb_cma=2G hugetlb_cma=much", machine).nodes == {0: GIB, 1: GIB}


def test_kernels_before_take_it_for_a_number_of_bytes(make_machine: MakeMachine) -> None:
    planned = plan("hugetlb_cma=0:20%,1:20%", make_machine("x86_64", "6G,6G", "6.1"))
    assert (planned.nodes, planned.open_because) == ({}, "")
