"""Surplus pages of nodes: they stay on their node, and are its alone, while pools of other nodes grow and shrink."""

from contextlib import suppress
from itertools import permutations, product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import Mode, bind, run_on_node, set_policy
from hugepage_qa.cases.pages_of_a_node import filled_page_on, require_room
from hugepage_qa.cases.pool_writer import POLICY, nr_with_policy, write_number
from hugepage_qa.kernel.nodes import read_nodes
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

SURPLUS = Area("numa/surplus-of-nodes")

PER_NODE = f"{HUGETLB_DOC} Per Node Hugepages Attributes"
#: persistent pages of a node beside a surplus page of another one: of two that are freed each node gives one
_BESIDE_SURPLUS = 3


@SURPLUS.case(
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


@SURPLUS.case(
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


@SURPLUS.case(
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
    policy = nr_with_policy(live)
    require_room(live, 3)
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
                write_number(writer, policy, pages)
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


@SURPLUS.case(
    "a page that comes back stays in the pool of its node, however many surplus pages other nodes have, and goes where"
    " its own node has one",
    f"{PER_NODE} surplus_hugepages; mm/hugetlb.c free_huge_folio()",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def a_page_that_comes_back(live: Live) -> None:
    _require_no_page(live)
    require_room(live, 2)
    for (node, other), shared in product(permutations(live.nodes[:2]), (False, True)):
        live.reserve(1, node)
        own = filled_page_on(live, node, shared=shared)
        live.overcommit(1)
        surplus = live.map(1, shared=shared, noreserve=True)
        bind(surplus, [other])
        surplus.fill()
        with live.about(f"persistent on node {node}, surplus on node {other}, shared {shared}"):
            _expect_each(live, {node: (1, 0, 0), other: (1, 0, 1)})
            own.actor.end()
            _expect_each(live, {node: (1, 1, 0), other: (1, 0, 1)})
            live.expect_pool(nr=2, free=1, surplus=1)
            if live.differences:
                # nr_hugepages of a node with more surplus pages than pages would take all its memory
                break
            surplus.expect_filled()
            surplus.actor.end()
            _expect_each(live, {node: (1, 1, 0)})
            live.expect_pool(nr=1, free=1)
        live.set_nr(0)


@SURPLUS.case(
    "who has a reserved page and is bound to a node without one gets a surplus page of that node, and nothing stays"
    " reserved for it: the page that was is anybody's",
    f"{HUGETLB_DOC} resv_hugepages; {PER_NODE}; mm/hugetlb.c hugetlb_alloc_folio(), alloc_hugetlb_folio()",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def reserved_on_another_node(live: Live) -> None:
    _require_no_page(live)
    require_room(live, 2)
    for (node, other), shared in product(permutations(live.nodes[:2]), (False, True)):
        live.reserve(1, node)
        live.overcommit(1)
        memory = live.map(1, shared=shared)
        bind(memory, [other])
        with live.about(f"reserved on node {node}, bound to node {other}, shared {shared}"):
            live.expect_pool(nr=1, free=1, resv=1)
            memory.fill()
            live.expect("node in numa_maps", {other: 1}, memory.numa_maps().nodes)
            live.expect_pool(nr=2, free=1, surplus=1)
            _expect_each(live, {node: (1, 1, 0), other: (1, 0, 1)})
            taken = live.map(1)
            taken.fill()
            live.expect_pool(nr=2, free=0, surplus=1)
            memory.expect_filled()
            for one in (memory, taken):
                one.actor.end()
            live.expect_pool(nr=1, free=1)
        live.set_nr(0)


def _expect_each(live: Live, there: dict[int, tuple[int, int, int]]) -> None:
    """Expect what each node has: pages, free ones, and surplus ones; no other one has any."""
    for node in live.nodes:
        pages, free, surplus = there.get(node, (0, 0, 0))
        live.expect_pool(node=node, nr=pages, free=free, surplus=surplus)


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
        # where it may not run there the page may be one of another node
        with suppress(CannotRun):
            run_on_node(actor, node, processors)
    set_policy(actor, Mode.BIND, [node])
    return live.map(1, actor)


def _expect_surplus_alone(live: Live, home: int) -> None:
    """Expect free pages of every node to be surplus, one of ``home`` too, and one to be reserved."""
    pages = live.pool().nr
    # one that is persistent for what is reserved (set_max_huge_pages()) becomes surplus, too
    live.expect("whether one or two pages are there for what is reserved", True, 1 <= pages <= 2)
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


def _require_no_page(live: Live) -> None:
    """Which of the pages in use become surplus is the kernel's choice."""
    if live.before.pools[live.size].nr:
        raise CannotRun("the pool has pages that are not ours")


class SurplusOfNodes(LiveTest):
    def test_surplus_of_nodes(self) -> None:
        self.run_area(SURPLUS)
