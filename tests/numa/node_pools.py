"""Where nr_hugepages of a machine and of a node adds and takes away pages: evenly, on one node, past a full one."""

import errno

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.memory_policy import Mode, set_policy
from hugepage_qa.cases.pages_of_a_node import expect_free_pages_on, require_room
from hugepage_qa.cases.pool_writer import POLICY, nr_with_policy, persistent_pages, write_number
from hugepage_qa.kernel.nodes import node_directories
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

POOLS = Area("numa/node-pools")

PER_NODE = f"{HUGETLB_DOC} Per Node Hugepages Attributes"
#: pages for which other nodes have room when two of them are to be there for sure: others may take one
_ROOM = 3
_OF_A_NODE, _OF_DEMOTION = {"nr_hugepages", "free_hugepages", "surplus_hugepages"}, {"demote", "demote_size"}


@POOLS.case(
    "nr_hugepages spreads pages over the nodes evenly, and takes them away as evenly",
    f"{HUGETLB_DOC} nr_hugepages; mm/hugetlb.c alloc_pool_huge_folio(), remove_pool_hugetlb_folio()",
    nodes=2,
)
def pages_are_spread_evenly(live: Live) -> None:
    require_room(live, 2)
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
    require_room(live, 2)
    for pages in range(1, 2 * len(live.nodes) + 1):
        live.set_nr(pages)
        live.expect_pool(nr=pages, free=pages)
        found = [live.pool(node).nr for node in live.nodes]
        live.expect(f"pages more than on another node, of {found}", True, max(found) - min(found) <= 1)


@POOLS.case(
    "a node has nr_hugepages, free_hugepages and surplus_hugepages of each page size, of which the first is written"
    " alone, and what pages are demoted by, and nothing that all nodes have together",
    f"{PER_NODE}; mm/hugetlb_sysfs.c per_node_hstate_attrs, hugetlb_register_node()",
)
def files_of_a_node(live: Live) -> None:
    of_demotion = _OF_DEMOTION & {*live.host.names(live.pool_file("").rstrip("/"))}
    for node in live.nodes:
        directory = live.pool_file("", node=node).rstrip("/")
        with live.about(f"node {node}"):
            live.expect("files", sorted(_OF_A_NODE | of_demotion), sorted(live.host.names(directory)))
            for name in sorted(_OF_A_NODE - {"nr_hugepages"}):
                text = live.host.read(f"{directory}/{name}") or ""
                live.expect_errno(errno.EACCES, live.host.write, f"{directory}/{name}", text)


@POOLS.case(
    "nr_hugepages of a node changes the pages of this node alone, in both directions",
    f"{PER_NODE}; mm/hugetlb.c set_max_huge_pages()",
    nodes=2,
)
def a_node_is_changed_alone(live: Live) -> None:
    for node in live.nodes:
        for pages in (2, 1, 0):
            live.reserve(pages, node)
            expect_free_pages_on(live, node, pages)


@POOLS.case(
    "where a node has no room, nr_hugepages takes all pages from the others, and nr_hugepages_mempolicy takes none",
    f"{POLICY} 1.; mm/hugetlb.c alloc_pool_huge_folio()",
    nodes=2,
)
def a_short_node_is_made_up_for_unless_the_policy_forbids(live: Live) -> None:
    short, *others = live.nodes
    policy = nr_with_policy(live)
    actor = live.actor()
    # what it writes with has to be there before: once it is bound to a node without room it would be killed for a page
    write_number(actor, policy, persistent_pages(live))
    live.set_nr(live.node_meminfo(short)["MemTotal"] // live.size, short)
    full = live.pool(short).nr
    set_policy(actor, Mode.BIND, [short])
    write_number(actor, policy, persistent_pages(live) + 2)
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


class NodePools(LiveTest):
    def test_node_pools(self) -> None:
        self.run_area(POOLS)
