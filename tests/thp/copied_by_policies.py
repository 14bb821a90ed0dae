"""Base pages of a huge page that fork() shares, and that are copied at a write: the node that each copy comes from."""

from collections.abc import Iterator, Sequence
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.memory_policy import (
    Mode,
    give_policy,
    modes_of_several_nodes,
    nodes_of,
    processors_near,
    run_on_node,
    set_policy,
)
from hugepage_qa.cases.thp_memory import let_nothing_be_balanced, mapped_huge
from hugepage_qa.cases.thp_nodes import filled_on, two_nodes_with_room
from hugepage_qa.oracle.node_policies import node_in_turn
from hugepage_qa.plugins.avocado_test import LiveTest

COPIED = Area("thp/copied-by-policies", sizes=Sizes.ONCE)

#: the huge page, and as much for the copies
_PAGES = 2
_NEW_VALUE = 5


@COPIED.case(
    "a base page of a shared huge page that its parent or a child writes is copied to a node of the policy of their"
    " memory, or of the process where that has none, whatever its mode is, and whichever node the huge page lies on:"
    " to the own node if it is one of several, and by its place where these take turns; what is not written stays",
    "Documentation/admin-guide/mm/numa_memory_policy.rst; fork(2); mbind(2); set_mempolicy(2); mm/memory.c"
    " wp_page_copy(); mm/mempolicy.c vma_dup_policy()",
    since="5.15",  # MPOL_PREFERRED_MANY, and MPOL_LOCAL as it is told
    nodes=2,
)
def copied_parts(live: Live) -> None:
    let_nothing_be_balanced(live)
    here, there = two_nodes_with_room(live, _PAGES)
    nears = processors_near(live, (here, there))
    for near, of_process, by_child in product(nears, (False, True), (False, True)):
        for mode, nodes, chosen in _policies(live, here, there, near):
            about = f"{mode.name} of {nodes}, of the process {of_process}, by the child {by_child}, on node {near}"
            actor = live.actor()
            memory = filled_on(live, actor, here, 1)
            live.expect("bytes in huge pages", memory.length, mapped_huge(memory))
            set_policy(actor, mode if of_process else Mode.DEFAULT, nodes if of_process else [])
            if not of_process:
                give_policy(memory, mode, nodes)
            run_on_node(actor, near, nears[near])
            child = memory.fork()
            writer, other = (child, memory) if by_child else (memory, child)
            every = memory.size // live.base_page
            written = [memory.address + page * live.base_page for page in (0, 1, 2, 5, every // 2, every - 1)]
            for address in written:
                writer.actor.write(address, _NEW_VALUE)
            with live.about(about):
                wanted = [node_in_turn(chosen, address // live.base_page) for address in written]
                live.expect("nodes of what was written", wanted, nodes_of(writer.actor, written))
                stays = [address + 2 * live.base_page for address in written[2:-1]]
                live.expect("nodes of what was not", len(stays) * [here], nodes_of(writer.actor, stays))
                live.expect("nodes that the other has", {here}, {*nodes_of(other.actor, written)})
                other.expect_filled()
            child.actor.end()
            actor.end()


def _policies(live: Live, here: int, there: int, near: int) -> Iterator[tuple[Mode, Sequence[int], Sequence[int]]]:
    """Yield modes, the nodes of each, and those that memory of a process on ``near`` comes from in turn."""
    for mode in (*modes_of_several_nodes(live.kernel_version), Mode.PREFERRED):
        yield mode, (there,), (there,)
    for mode in (Mode.LOCAL, Mode.PREFERRED):
        yield mode, (), (near,)
    for mode in (Mode.BIND, Mode.PREFERRED_MANY):
        yield mode, (here, there), (near,)
    yield Mode.INTERLEAVE, (here, there), (here, there)


class ThpCopiedByPolicies(LiveTest):
    def test_copied_by_policies(self) -> None:
        self.run_area(COPIED)
