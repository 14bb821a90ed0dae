"""Where a pool grows and shrinks: nr_hugepages of a machine and of a node, the policies of writers, surplus pages."""

import os
from collections.abc import Collection, Iterator, Sequence
from itertools import permutations, product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import Mode, bind, run_on, set_policy
from hugepage_qa.cases.pages_of_a_node import cpuset_of, filled_page_on, need_memory, reserve_on_all
from hugepage_qa.kernel.nodes import node_directories, read_nodes
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import AT_FDCWD
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.version import KernelVersion

POOLS = Area("numa/node-pools")

PER_NODE = f"{HUGETLB_DOC} Per Node Hugepages Attributes"
POLICY = f"{HUGETLB_DOC} Interaction of Task Memory Policy with Huge Page Allocation/Freeing"
_SYSCTL, _SYSCTL_WITH_POLICY = "proc/sys/vm/nr_hugepages", "proc/sys/vm/nr_hugepages_mempolicy"
#: pages for which other nodes have room when two of them are to be there for sure: others may take one
_ROOM = 3
#: persistent pages of a node beside a surplus page of another one: of two that are freed each node gives one
_BESIDE_SURPLUS = 3
#: modes that choose among several nodes, and the first kernel that has each (set_mempolicy(2), fa3bea4e1f82)
_OF_SEVERAL = {
    Mode.BIND: KernelVersion(2, 6),
    Mode.INTERLEAVE: KernelVersion(2, 6),
    Mode.PREFERRED_MANY: KernelVersion(5, 15),
    Mode.WEIGHTED_INTERLEAVE: KernelVersion(6, 9),
}


@POOLS.case(
    "nr_hugepages spreads pages over the nodes evenly, and takes them away as evenly",
    f"{HUGETLB_DOC} nr_hugepages; mm/hugetlb.c alloc_pool_huge_folio(), remove_pool_hugetlb_folio()",
    nodes=2,
)
def pages_are_spread_evenly(live: Live) -> None:
    _require_room(live, 2)
    pages = len(live.nodes)
    for each in (1, 2, 1, 0):
        live.set_nr(each * pages)
        live.expect_pool(nr=each * pages, free=each * pages)
        for node in live.nodes:
            live.expect_pool(node=node, nr=each, free=each)


@POOLS.case(
    "pages that are added one by one, odd numbers too, differ by at most one between nodes, and all are there",
    "mm/hugetlb.c get_valid_node_allowed(), next_nid_to_alloc",
    nodes=2,
)
def odd_numbers_are_spread_evenly(live: Live) -> None:
    _require_room(live, 2)
    for pages in range(1, 2 * len(live.nodes) + 1):
        live.set_nr(pages)
        live.expect_pool(nr=pages, free=pages)
        found = [live.pool(node).nr for node in live.nodes]
        live.expect(f"pages more than on another node, of {found}", True, max(found) - min(found) <= 1)


@POOLS.case(
    "nr_hugepages of a node changes the pages of this node alone, in both directions",
    f"{PER_NODE}; mm/hugetlb.c set_max_huge_pages()",
    nodes=2,
)
def a_node_is_changed_alone(live: Live) -> None:
    for node in live.nodes:
        for pages in (2, 1, 0):
            live.reserve(pages, node)
            _expect_pages_on(live, node, pages)


@POOLS.case(
    "where a node has no room, nr_hugepages takes all pages from the others, and nr_hugepages_mempolicy takes none",
    f"{POLICY} 1.; mm/hugetlb.c alloc_pool_huge_folio()",
    nodes=2,
)
def a_short_node_is_made_up_for_unless_the_policy_forbids(live: Live) -> None:
    short, *others = live.nodes
    policy = _nr_with_policy(live)
    actor = live.actor()
    # what it writes with has to be there before: once it is bound to a node without room it would be killed for a page
    _write(actor, policy, _persistent(live))
    live.set_nr(live.node_meminfo(short)["MemTotal"] // live.size, short)
    full = live.pool(short).nr
    set_policy(actor, Mode.BIND, [short])
    _write(actor, policy, _persistent(live) + 2)
    room = 0
    for node in others:
        live.expect_pool(node=node, nr=0, free=0)
        # what lay on the full node has moved there, and may lie within each range that is long enough
        before = live.pool(node).nr
        live.set_nr(_ROOM, node)
        room += live.pool(node).nr - before
        live.set_nr(0, node)
    if room < _ROOM:
        raise CannotRun(
            f"the other nodes have room for {room} pages beside the {full} of node {short}, not for {_ROOM}"
        )
    asked = live.pool().nr + 2
    live.set_nr(asked)
    live.expect("pages of all nodes", asked, live.pool().nr)
    live.expect("pages on the other nodes", asked - live.pool(short).nr, sum(live.pool(node).nr for node in others))


@POOLS.case(
    "nr_hugepages_mempolicy adds and takes away pages on the nodes of a bind policy alone",
    f"{POLICY}; mm/hugetlb_sysfs.c __nr_hugepages_store_common(), init_nodemask_of_mempolicy()",
    nodes=2,
)
def a_bound_writer_changes_its_node_alone(live: Live) -> None:
    policy = _nr_with_policy(live)
    _require_room(live, 2)
    base = _persistent(live)
    for node in live.nodes:
        actor = live.actor()
        set_policy(actor, Mode.BIND, [node])
        for pages in (2, 1, 0):
            _write(actor, policy, base + pages)
            _expect_pages_on(live, node, pages)


@POOLS.case(
    "vm.nr_hugepages_mempolicy changes the nodes of the writer's policy alone, and vm.nr_hugepages knows no policy",
    f"{POLICY}; mm/hugetlb_sysctl.c hugetlb_mempolicy_sysctl_handler()",
    sizes=Sizes.DEFAULT,
    nodes=2,
)
def a_bound_writer_of_the_sysctl(live: Live) -> None:
    _require_room(live, 2)
    base, nodes = _persistent(live), live.nodes
    for node in nodes:
        actor = live.actor()
        set_policy(actor, Mode.BIND, [node])
        for pages in (2, 1, 0):
            _write(actor, _SYSCTL_WITH_POLICY, base + pages)
            _expect_pages_on(live, node, pages)
        _write(actor, _SYSCTL, base + len(nodes))
        for each in nodes:
            live.expect_pool(node=each, nr=1, free=1)
        live.set_nr(0)


@POOLS.case(
    "nr_hugepages_mempolicy spreads pages over the nodes of an interleave policy, nr_hugepages knows no policy",
    f"{POLICY}; mm/hugetlb_sysfs.c __nr_hugepages_store_common()",
    nodes=2,
)
def an_interleaving_writer_spreads_pages(live: Live) -> None:
    policy = _nr_with_policy(live)
    _require_room(live, 2)
    base, nodes = _persistent(live), live.nodes
    actor = live.actor()
    set_policy(actor, Mode.INTERLEAVE, nodes)
    _write(actor, policy, base + 2 * len(nodes))
    for node in nodes:
        live.expect_pool(node=node, nr=2, free=2)
    live.set_nr(0)
    set_policy(actor, Mode.BIND, nodes[:1])
    _write(actor, live.pool_file("nr_hugepages"), base + len(nodes))
    for node in nodes:
        live.expect_pool(node=node, nr=1, free=1)


@POOLS.case(
    "nr_hugepages_mempolicy adds pages on the node of a writer whose policy is local",
    f"{POLICY} 1.; mm/mempolicy.c init_nodemask_of_mempolicy()",
    nodes=2,
)
def a_local_writer_changes_its_own_node(live: Live) -> None:
    policy = _nr_with_policy(live)
    _require_room(live, 2)
    base, nodes = _persistent(live), read_nodes(live.host)
    for node in live.nodes:
        if not nodes.each[node].cpus:
            continue
        actor = live.actor()
        run_on(actor, nodes.each[node].cpus)
        set_policy(actor, Mode.LOCAL, [])
        for pages in (2, 0):
            _write(actor, policy, base + pages)
            _expect_pages_on(live, node, pages)


@POOLS.case(
    "whatever the mode of the writer's policy, nr_hugepages_mempolicy adds as many pages to each of its nodes, one or"
    " several, and takes them from there, and leaves what all other nodes have; a preferred node is the lowest one that"
    " is named, or that of the writer, and with the default policy all nodes are meant",
    f"{POLICY} 1., 2., 3.; set_mempolicy(2); mm/mempolicy.c init_nodemask_of_mempolicy()",
    nodes=2,
    sizes=Sizes.BUDDY,  # each page that is added again may find memory too fragmented for a gigantic one
)
def policies_of_every_mode(live: Live) -> None:
    policy = _nr_with_policy(live)
    _require_room(live, 3)
    base, nodes = _persistent(live), live.nodes
    for mode, given, processors, wanted in _policies(live):
        reserve_on_all(live, 1)
        actor = live.actor()
        if processors:
            run_on(actor, processors)
        set_policy(actor, mode, given)
        with live.about(f"{mode.name} of {given}, on the processors {processors or 'of all nodes'}"):
            # from one page on each node: two pages more for one node are no mere chance, nodes take turns
            for each in (3, 1, 0):
                count = len(nodes) + (each - 1) * len(wanted)
                _write(actor, policy, base + count)
                live.expect_pool(nr=count, free=count)
                for node in nodes:
                    pages = each if node in wanted else 1
                    live.expect_pool(node=node, nr=pages, free=pages)
        actor.end()


def _policies(live: Live) -> Iterator[tuple[Mode, Sequence[int], Collection[int], Sequence[int]]]:
    """Yield modes, the nodes that each is given, the processors of who writes, none for all, and the nodes it means."""
    nodes, each = live.nodes, read_nodes(live.host).each
    for given in dict.fromkeys((*((node,) for node in nodes), nodes[1:], nodes)):
        for mode, since in _OF_SEVERAL.items():
            if live.kernel_version >= since:
                yield mode, given, (), given
        yield Mode.PREFERRED, given, (), given[:1]
    for node, mode in product(nodes, (Mode.LOCAL, Mode.PREFERRED)):
        if each[node].cpus:
            yield mode, (), each[node].cpus, (node,)
    yield Mode.DEFAULT, (), (), nodes


@POOLS.case(
    "a node without memory gets no pages, asked for by name or not, and takes none from the others",
    f"{PER_NODE}; mm/hugetlb.c N_MEMORY",
)
def nodes_without_memory_are_left_out(live: Live) -> None:
    empty = sorted(set(node_directories(live.host)) - set(live.nodes))
    if not empty:
        raise CannotRun("every node has memory")
    live.reserve(len(live.nodes))
    live.expect_pool(nr=len(live.nodes), free=len(live.nodes))
    for node in empty:
        path = live.pool_file("nr_hugepages", node=node)
        if live.host.read(path) is not None:
            live.host.write(path, "1")
            live.expect_pool(node=node, nr=0, free=0)
    live.expect_pool(nr=len(live.nodes), free=len(live.nodes))


@POOLS.case(
    "a page in use that the pool, or that of its node, gives up is surplus on its node, and persistent there when the"
    " pool grows again",
    f"{PER_NODE} surplus_hugepages; mm/hugetlb.c adjust_pool_surplus()",
    nodes=2,
)
def a_page_that_is_given_up_is_surplus_on_its_node(live: Live) -> None:
    _require_no_page(live)
    for node, by_node in product(live.nodes, (False, True)):
        live.reserve(1, node)
        memory = filled_page_on(live, node)
        for kept, surplus in ((0, 1), (1, 0)):
            live.set_nr(kept, node if by_node else None)
            live.expect_pool(nr=1, free=0, surplus=surplus)
            for other in live.nodes:
                here = int(other == node)
                live.expect_pool(node=other, nr=here, free=0, surplus=here * surplus)
        memory.expect_filled()
        memory.unmap()
        live.set_nr(0)


@POOLS.case(
    "an emptied pool has none but surplus pages on each node, at once or page by page, when one is a surplus page that"
    " is reserved and that nobody has touched; all are persistent, and each node has what is asked for there, when it"
    " grows again",
    f"{PER_NODE} surplus_hugepages; {HUGETLB_DOC} Caveat: shrinking; mm/hugetlb.c remove_pool_hugetlb_folio(),"
    " adjust_pool_surplus()",
    sizes=Sizes.BUDDY,
    nodes=2,
)
def a_reserved_surplus_page_of_a_shrinking_pool(live: Live) -> None:
    _require_no_page(live)
    _need_nodes_that_stay_whole(live)
    for node, counts in product(live.nodes, ((0,), range(_BESIDE_SURPLUS - 1, -1, -1))):
        memory = _reserved_surplus(live, node)
        live.expect_pool(nr=1, free=1, resv=1, surplus=1)
        home = next((each for each in live.nodes if live.pool(each).surplus), node)
        other = next(each for each in live.nodes if each != home)
        # Linux 6.1 gives a node as many more as there are surplus pages
        live.set_nr(_BESIDE_SURPLUS, other)
        if live.pool(other).nr < _BESIDE_SURPLUS:
            raise CannotRun(f"node {other} has no room for {_BESIDE_SURPLUS} pages")
        for count in counts:
            live.set_nr(count)
        try:
            with live.about(f"surplus on node {home}, nr_hugepages is {', '.join(map(str, counts))}"):
                _expect_surplus_alone(live, home)
        finally:
            # where a node has more surplus pages than pages, all its memory would be taken when it is put back
            live.set_nr(live.pool().nr)
        for each in live.nodes:
            pages = live.pool(each).nr
            live.expect_pool(node=each, nr=pages, free=pages)
        for each in live.nodes:
            live.set_nr(2, each)
            live.expect_pool(node=each, nr=2, free=2)
        live.expect_pool(nr=2 * len(live.nodes), free=2 * len(live.nodes), resv=1)
        memory.actor.end()
        live.set_nr(0)
        live.expect_pool(nr=0, free=0)


@POOLS.case(
    "surplus pages of a node stay surplus there, and its alone, whatever number another node is given, by its own"
    " nr_hugepages or by a writer who is bound to it, fewer pages than are surplus, as many or more: the other one gets"
    " that many of its own; nr_hugepages of their node, and that of all, makes them persistent, one by one",
    f"{PER_NODE} nr_hugepages, surplus_hugepages; {POLICY}; mm/hugetlb.c set_max_huge_pages(), adjust_pool_surplus()",
    nodes=2,
    # b72b3c9c34c8: before, another node got as many pages more as were surplus
    since="6.7",
    sizes=Sizes.BUDDY,
)
def surplus_pages_stay_on_their_node(live: Live) -> None:
    _require_no_page(live)
    policy = _nr_with_policy(live)
    _require_room(live, 3)
    for (node, other), by_policy in product(permutations(live.nodes, 2), (False, True)):
        live.reserve(2, node)
        memory = live.map(2)
        bind(memory, [node])
        memory.fill()
        live.set_nr(0, node)
        writer = live.actor()
        set_policy(writer, Mode.BIND, [other])
        # with fewer persistent pages than are in use anywhere, free ones would become surplus
        for pages in (1, 2, 3, 2):
            if by_policy:
                _write(writer, policy, pages)
            else:
                live.set_nr(pages, other)
            with live.about(f"surplus of node {node}, {pages} for node {other}, by policy: {by_policy}"):
                _expect_surplus(live, node, other, surplus=2, pages=pages)
        for persistent in (1, 2, 0):
            live.set_nr(persistent, node)
            with live.about(f"{persistent} of 2 pages of node {node} persistent"):
                _expect_surplus(live, node, other, surplus=2 - persistent, pages=2)
        for count in (3, 4):
            live.set_nr(count)
            with live.about(f"{count} pages of all nodes persistent"):
                _expect_surplus(live, node, other, surplus=4 - count, pages=2)
        memory.expect_filled()
        memory.actor.end()
        writer.end()
        live.set_nr(0)
        live.expect_pool(nr=0, free=0)


def _need_nodes_that_stay_whole(live: Live) -> None:
    """Raise CannotRun where others have the machine and this kernel may count more surplus pages than pages."""
    quirk = Quirk.SURPLUS_FREED_AS_PERSISTENT
    if live.has_bug(quirk) and not live.host.is_thrown_away():
        raise CannotRun(
            f"{quirk.value}, a known bug of this kernel, could take all memory of a node: a throwaway machine can"
            " judge it"
        )


def _reserved_surplus(live: Live, node: int) -> Memory:
    """Return memory of one page that nobody has touched; the kernel may take the page from another node."""
    live.let_grow(1, node)
    actor = live.actor()
    if processors := read_nodes(live.host).each[node].cpus:
        run_on(actor, processors)
    set_policy(actor, Mode.BIND, [node])
    return live.map(1, actor)


def _expect_surplus_alone(live: Live, home: int) -> None:
    """Expect free pages of every node to be surplus, one of ``home`` too, and one to be reserved."""
    pages = live.pool().nr
    live.expect("pages that are there for what is reserved", True, pages >= 1)
    live.expect_pool(nr=pages, free=pages, resv=1, surplus=pages)
    for node in sorted(live.nodes, key=lambda each: each != home):
        pages = live.pool(node).nr
        gone = {Quirk.SURPLUS_FREED_AS_PERSISTENT: {"surplus": 1}} if node == home and not pages else None
        live.expect_pool(node=node, nr=pages, free=pages, surplus=pages, known=gone)


def _expect_surplus(live: Live, node: int, other: int, *, surplus: int, pages: int) -> None:
    """Expect two pages in use on ``node``, of which ``surplus`` are surplus, and ``pages`` free ones on ``other``."""
    live.expect_pool(nr=2 + pages, free=pages, surplus=surplus)
    live.expect_sysctl(2 - surplus + pages)
    for each in live.nodes:
        if each == node:
            live.expect_pool(node=each, nr=2, free=0, surplus=surplus)
        else:
            free = pages if each == other else 0
            live.expect_pool(node=each, nr=free, free=free)


@POOLS.case(
    "a writer in a cpuset adds pages to its nodes alone with nr_hugepages_mempolicy, whatever policy it asks for",
    f"{POLICY} 4.",
    nodes=2,
)
def a_cpuset_limits_the_policy_of_a_writer(live: Live) -> None:
    policy = _nr_with_policy(live)
    _require_room(live, 2)
    here = live.nodes[-1]
    actor = live.actor()
    set_policy(actor, Mode.INTERLEAVE, live.nodes)
    cpuset_of(live, here).add(actor)
    _write(actor, policy, _persistent(live) + 2)
    _expect_pages_on(live, here, 2)


@POOLS.case(
    "a writer in a cpuset, whose policy says nothing, adds pages to its nodes alone, whichever file it writes: all that"
    " are missing by nr_hugepages and nr_hugepages_mempolicy, and none by nr_hugepages of another node; who is in no"
    " cpuset adds them to every node as before",
    "Documentation/admin-guide/cgroup-v2.rst cpuset.mems; mm/page_alloc.c prepare_alloc_pages(),"
    " get_page_from_freelist()",
    sizes=Sizes.BUDDY,  # gigantic pages are taken from ranges of memory, past the cpuset (alloc_contig_pages())
    nodes=2,
)
def a_cpuset_limits_a_writer_without_a_policy(live: Live) -> None:
    policy = _nr_with_policy(live)
    pages = len(live.nodes)
    _require_room(live, pages)
    of_all = live.pool_file("nr_hugepages")
    for here in live.nodes:
        actor = live.actor()
        group = cpuset_of(live, here)
        group.add(actor)
        for path in (of_all, policy):
            with live.about(f"{path}, in a cpuset of node {here}"):
                _write(actor, path, _persistent(live) + pages)
                _expect_pages_on(live, here, pages)
                live.set_nr(0)
        for node in live.nodes:
            path = live.pool_file("nr_hugepages", node=node)
            with live.about(f"{path}, in a cpuset of node {here}"):
                _write(actor, path, (read_integer(live.host, path) or 0) + pages)
                _expect_pages_on(live, here, pages if node == here else 0)
                live.set_nr(0)
        actor.end()
        group.remove()
        live.set_nr(pages)
        for node in live.nodes:
            live.expect_pool(node=node, nr=1, free=1)
        live.set_nr(0)


def _expect_pages_on(live: Live, node: int, pages: int) -> None:
    """Expect ``pages`` free pages on a node and none on the others."""
    live.expect_pool(nr=pages, free=pages)
    for other in live.nodes:
        live.expect_pool(node=other, nr=pages if other == node else 0, free=pages if other == node else 0)


def _require_room(live: Live, pages: int) -> None:
    """Make sure that each node has room for ``pages`` pages. Raises CannotRun or Failed as ``Live.reserve`` does."""
    reserve_on_all(live, pages)
    live.set_nr(0)
    # what a full node has just given it may not give again
    if not live.is_gigantic:
        need_memory(live, live.nodes, pages * live.size)


def _require_no_page(live: Live) -> None:
    """Which of the pages in use become surplus is the kernel's choice."""
    if live.before.pools[live.size].nr:
        raise CannotRun("the pool has pages that are not ours")


def _persistent(live: Live) -> int:
    """Return what nr_hugepages is now, without surplus."""
    nr, surplus = (read_integer(live.host, live.pool_file(name)) or 0 for name in ("nr_hugepages", "surplus_hugepages"))
    return nr - surplus


def _nr_with_policy(live: Live) -> str:
    path = live.pool_file("nr_hugepages_mempolicy")
    if live.host.read(path) is None:
        raise CannotRun(f"this kernel has no /{path}")
    return path


def _write(actor: Actor, path: str, number: int) -> None:
    """Have ``actor`` write ``number``: the kernel goes by the policy of the process that writes."""
    text = str(number).encode()
    fd = actor.call("openat", AT_FDCWD, f"/{path}", os.O_WRONLY)
    actor.call("write", fd, text, len(text))
    actor.call("close", fd)


class NodePools(LiveTest):
    def test_node_pools(self) -> None:
        self.run_area(POOLS)
