"""Nodes in turn, policies that follow a cpuset, and policies of ranges."""

import pytest

from hugepage_qa.oracle.node_policies import (
    RELATIVE,
    STATIC,
    FollowingPolicy,
    PoliciesOfRanges,
    node_after,
    node_by_weight,
    node_in_turn,
    node_in_turn_of_inode,
    nodes_of_next_page,
)
from hugepage_qa.version import KernelVersion


def test_pages_come_from_the_nodes_in_turn() -> None:
    assert [node_in_turn({4, 0}, index) for index in range(3)] == [0, 4, 0]


def test_a_node_has_as_many_pages_in_a_row_as_its_weight_says() -> None:
    assert [node_by_weight({4: 1, 0: 2}, index) for index in range(7)] == [0, 0, 4, 0, 0, 4, 0]


@pytest.mark.parametrize(
    ("chosen", "free", "preferred", "bound"),
    [
        ({0}, {0, 1}, {0}, {0}),
        ({0, 1}, {1}, {1}, {1}),
        ({0, 1}, {0, 1, 2}, {0, 1}, {0, 1}),
        ({0}, {1, 2}, {1, 2}, set()),
        (set(), {1}, {1}, set()),
        ({0}, set(), set(), set()),
    ],
)
def test_only_bound_memory_gets_no_page_of_others(
    chosen: set[int], free: set[int], preferred: set[int], bound: set[int]
) -> None:
    assert nodes_of_next_page(chosen, free, is_bound=False) == preferred
    assert nodes_of_next_page(chosen, free, is_bound=True) == bound


@pytest.mark.parametrize(
    ("version", "inode", "order", "node"),
    [
        (KernelVersion(6, 7), 3, 9, 1),
        (KernelVersion(6, 7), 512, 9, 0),
        (KernelVersion(6, 6), 511, 9, 0),
        (KernelVersion(6, 6), 512, 9, 1),
        (KernelVersion(6, 6), 3, 0, 1),
    ],
)
def test_the_inode_says_where_shared_memory_begins(version: KernelVersion, inode: int, order: int, node: int) -> None:
    assert node_in_turn_of_inode({0, 1}, 0, inode, order, version) == node
    assert node_in_turn_of_inode({0, 1}, 1, inode, order, version) == 1 - node


@pytest.mark.parametrize(("flag", "nodes", "told"), [(0, {1}, {1}), (STATIC, {1}, {0, 1}), (RELATIVE, {1, 3}, {0, 1})])
def test_a_policy_follows_as_its_flag_says(flag: int, nodes: set[int], told: set[int]) -> None:
    policy = FollowingPolicy(flag, frozenset({0, 1}), frozenset({1, 2}))
    allowed = frozenset({1, 3})
    # without a flag only node 1, the first that was allowed, is in it, and becomes the first that is
    assert policy.nodes_with(allowed) == nodes
    assert policy.told_with(allowed) == told


def test_all_nodes_are_left_where_none_of_the_users_is() -> None:
    assert FollowingPolicy(STATIC, frozenset({0}), frozenset({0})).nodes_with(frozenset({1, 2})) == {1, 2}


@pytest.mark.parametrize(
    ("node", "old", "new", "after"),
    [
        (0, {0}, {1}, 1),
        (0, {0, 1}, {1}, 1),
        (1, {0, 1}, {1}, 1),
        (0, {0, 2}, {1, 3, 4}, 1),
        (2, {0, 2}, {1, 3, 4}, 3),
        # it may stay where there are more nodes than before, or less, and is renumbered where there are as many
        (1, {0, 1}, {1, 2, 3}, 1),
        (1, {0, 1}, {1, 2}, 2),
        (2, {0, 1}, {3}, 2),
    ],
)
def test_pages_keep_their_place_among_the_nodes_of_a_cpuset(
    node: int, old: set[int], new: set[int], after: int
) -> None:
    assert node_after(node, old, new) == after


def test_the_latest_policy_of_a_range_is_told() -> None:
    policies = PoliciesOfRanges(4)
    policies.bind(0, 4, 0)
    policies.bind(1, 3, 1)
    policies.bind(2, 3, None)
    assert [policies.node_of(page) for page in range(4)] == [0, 1, None, 0]
    assert policies.telling_pages() == [0, 1, 2, 3]
