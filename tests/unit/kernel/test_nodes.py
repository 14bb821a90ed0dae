"""NUMA nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.nodes import Node, Nodes, node_directories, parse_list, read_nodes
from hugepage_qa.kernel.tree import CapturedTree

DIRECTORY = "sys/devices/system/node"


@pytest.mark.parametrize(("text", "numbers"), [("\n", ()), ("0\n", (0,)), ("0-3,5\n", (0, 1, 2, 3, 5)), ("7-7", (7,))])
def test_list(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_list(text, "x") == numbers


@pytest.mark.parametrize("text", ["a", "1-", "3-1", "0,,1", "0-9999999999", "-1"])
def test_malformed_list_is_named(text: str) -> None:
    with pytest.raises(InputError, match=r"^/sys/x, line 1: .*expected a list such as 0-3,5"):
        parse_list(text, "sys/x")


def test_machine_with_a_node_of_processors_only() -> None:
    tree = CapturedTree(
        {
            f"{DIRECTORY}/online": "0-1\n",
            f"{DIRECTORY}/possible": "0-3\n",
            f"{DIRECTORY}/has_memory": "0\n",
            f"{DIRECTORY}/node0/cpulist": "0-1\n",
            f"{DIRECTORY}/node0/meminfo": "Node 0 MemTotal: 4 kB\nNode 0 HugePages_Total: 2\n",
            f"{DIRECTORY}/node1/cpulist": "\n",
        }
    )
    assert read_nodes(tree) == Nodes(
        online=(0, 1),
        possible=(0, 1, 2, 3),
        has_memory=(0,),
        each={0: Node((0, 1), {"MemTotal": 4096, "HugePages_Total": 2}), 1: Node((), {})},
    )


def test_kernel_without_numa() -> None:
    assert read_nodes(CapturedTree({})) == Nodes((), (), (), {})


def test_nodes_are_sorted_as_numbers() -> None:
    tree = CapturedTree({f"{DIRECTORY}/node{number}/cpulist": "" for number in (10, 2)} | {f"{DIRECTORY}/power/x": ""})
    assert node_directories(tree) == {2: f"{DIRECTORY}/node2", 10: f"{DIRECTORY}/node10"}


def test_directories_are_the_online_nodes(any_capture: CapturedTree) -> None:
    nodes = read_nodes(any_capture)
    assert tuple(nodes.each) == nodes.online
    assert set(nodes.has_memory) <= set(nodes.online) <= set(nodes.possible)
    assert all(nodes.each[number].meminfo["MemTotal"] > 0 for number in nodes.has_memory)


@given(st.sets(st.integers(min_value=0, max_value=2000), max_size=20))
def test_numbers_survive(numbers: set[int]) -> None:
    assert parse_list(",".join(map(str, sorted(numbers))), "x") == tuple(sorted(numbers))


@given(st.text() | st.text(alphabet="0123456789-,", max_size=12))
def test_nothing_but_input_error(text: str) -> None:
    try:
        assert all(number >= 0 for number in parse_list(text, "x"))
    except InputError as error:
        assert "\n" not in str(error)
