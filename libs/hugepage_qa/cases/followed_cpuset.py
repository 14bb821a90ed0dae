"""Policies and pages of processes whose cpuset gets other nodes, or that move to another cpuset."""

from collections.abc import Callable, Collection
from itertools import product

from hugepage_qa.cases.control_group import ControlGroup, Version
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
from hugepage_qa.oracle.node_policies import RELATIVE, STATIC, FollowingPolicy, node_after, node_in_turn
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


def expect_pages_to_follow(
    live: Live,
    version: Version,
    map_one: Callable[[Actor, bool], Memory],
    expect_one: Callable[[Memory], None] = lambda _memory: None,
    fork: Callable[[Memory, bool], Memory] = lambda memory, _shared: memory.fork(),
) -> None:
    """Expect pages of a process to move when the nodes of its cpuset change, and when it moves to another cpuset.

    They move also where a child has them that stays in the first cpuset (MPOL_MF_MOVE_ALL). In a cpuset of version 1
    they do where memory_migrate of the cpuset that the process is in then is set. ``map_one`` maps memory of one page,
    shared or not, ``expect_one`` looks at it before and afterwards, and ``fork`` returns what a child has of it.
    """
    first, second = _cpusets(live, version)
    flags = (True, False) if version is Version.ONE else (True,)
    cells = product(enumerate(_changes_around_a_page(live)), (False, True), flags, (False, True))
    for (number, (old, new, node)), moves, follows, shared in cells:
        has_child = not number % 2
        with live.about(
            f"cpuset of {_list(old)}, then {_list(new)}; page on {node}, shared {shared}, of a child, too {has_child};"
            f" process moves {moves}; set {follows}"
        ):
            for group, nodes in ((first, old), (second, new)):
                group.write("cpuset.mems", _list(nodes))
                if version is Version.ONE:
                    decides = group is (second if moves else first)
                    group.write("cpuset.memory_migrate", str(int(follows is decides)))
            actor = live.actor()
            first.add(actor)
            memory = map_one(actor, shared)
            _fill_on(live, memory, node, expect_one)
            everyone = [memory, *([fork(memory, shared)] if has_child else [])]
            # a child has shared memory in its page tables when it has touched it
            everyone[-1].expect_filled()
            if moves:
                second.add(actor)
            else:
                first.write("cpuset.mems", _list(new))
            for one in reversed(everyone):
                expect_one(one)
                live.expect("node since", node_after(node, old, new) if follows else node, node_of(one))
                one.expect_filled()
                one.actor.end()


def _changes_around_a_page(live: Live) -> list[tuple[set[int], set[int], int]]:
    """Return the nodes that a cpuset has, those that it gets, and the node of the page, each of the old ones."""
    here, there = live.nodes[:2]
    both = {here, there}
    changes = [({here}, {there}), ({there}, {here}), (both, {there}), (both, {here}), ({there}, both), (both, both)]
    if live.is_gigantic:
        # each takes ten seconds of an emulated processor to be filled, moved and looked at
        changes = changes[:1]
    return [(old, new, node) for old, new in changes for node in sorted(old)]


def _fill_on(live: Live, memory: Memory, node: int, expect_one: Callable[[Memory], None]) -> None:
    """Fill memory of one page on ``node``, to which no policy binds it afterwards."""
    give_policy(memory, Mode.BIND, [node])
    memory.fill()
    expect_one(memory)
    give_policy(memory, Mode.DEFAULT, [])
    live.expect("node before", node, node_of(memory))


def _list(nodes: Collection[int]) -> str:
    return ",".join(map(str, sorted(nodes)))


def _cpusets(live: Live, version: Version | None = None) -> tuple[ControlGroup, ControlGroup]:
    """Return two cpusets of one hierarchy. Raises CannotRun without cpusets."""
    outer = new_cpuset(live, version)
    outer.write("cpuset.mems", _list(live.nodes))
    first, second = outer.child("first"), outer.child("second")
    for group in (first, second):
        keep_processors(live, group)
    return first, second
