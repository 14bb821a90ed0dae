"""Policies of memory and of processes whose cpuset gets other nodes, or that move to another cpuset."""

from collections.abc import Callable, Collection
from itertools import product

from hugepage_qa.cases.control_group import ControlGroup
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import (
    F_MEMS_ALLOWED,
    Mode,
    give_policy,
    node_of,
    policy_of,
    set_policy,
    told_policy,
)
from hugepage_qa.cases.pages_of_a_node import keep_processors, new_cpuset
from hugepage_qa.oracle.node_policies import RELATIVE, STATIC, FollowingPolicy, node_in_turn
from hugepage_qa.process.actor import Actor


def expect_policies_to_follow(
    live: Live,
    map_two: Callable[[Actor], Memory],
    number_of_first: Callable[[Memory], int],
    expect_one: Callable[[Memory], None] = lambda _memory: None,
) -> None:
    """Expect policies to follow the cpuset, for memory of two pages that ``map_two`` maps and nobody has reserved.

    ``number_of_first`` is what interleaving counts its first page as, and ``expect_one`` looks at memory of which one
    page was touched. No more than one page is in use at a time.
    """
    first, second = _cpusets(live)
    here, there = live.nodes[:2]
    both = {here, there}
    changes = (({here}, {there}), (both, {there}), ({there}, both), ({here}, both))
    rows = product(changes, (0, STATIC, RELATIVE), ({here}, {there}, both))
    for number, ((old, new), flag, wanted) in enumerate(rows):
        policy = FollowingPolicy(flag, frozenset(wanted), frozenset(old))
        if not policy.nodes:
            continue
        moves = bool(number % 2)
        with live.about(
            f"cpuset of {_list(old)}, then {_list(new)}; nodes {_list(wanted)}, flag {flag}; moves {moves}"
        ):
            first.write("cpuset.mems", _list(old))
            actor = live.actor()
            first.add(actor)
            in_turn, bound = map_two(actor), map_two(actor)
            set_policy(actor, Mode.INTERLEAVE | flag, wanted)
            give_policy(bound, Mode.BIND | flag, wanted)
            if moves:
                second.write("cpuset.mems", _list(new))
                second.add(actor)
            else:
                first.write("cpuset.mems", _list(new))
            allowed = frozenset(new)
            told = sorted(policy.told_with(allowed))
            live.expect("policy of the memory", (Mode.BIND | flag, told), policy_of(bound))
            live.expect("policy of the process", (Mode.INTERLEAVE | flag, told), told_policy(actor))
            live.expect("nodes that it may use", sorted(allowed), told_policy(actor, 0, F_MEMS_ALLOWED)[1])
            nodes = policy.nodes_with(allowed)
            bound.touch()
            expect_one(bound)
            live.expect("whether bound memory is on its nodes", True, node_of(bound) in nodes)
            bound.unmap()
            in_turn.touch(1)
            expect_one(in_turn)
            expected = node_in_turn(nodes, number_of_first(in_turn) + 1)
            live.expect("node of interleaved memory", expected, node_of(in_turn, 1))
            actor.end()


def _list(nodes: Collection[int]) -> str:
    return ",".join(map(str, sorted(nodes)))


def _cpusets(live: Live) -> tuple[ControlGroup, ControlGroup]:
    """Return two cpusets of one hierarchy. Raises CannotRun without cpusets."""
    outer = new_cpuset(live)
    outer.write("cpuset.mems", _list(live.nodes))
    first, second = outer.child("first"), outer.child("second")
    for group in (first, second):
        keep_processors(live, group)
    return first, second
