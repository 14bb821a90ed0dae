"""The pools of the NUMA nodes: where pages are put, from where they are taken, and how they move."""

import errno
import os
import signal

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.hugetlb_files import open_file
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import (
    MOVE_STRICTLY,
    Mode,
    bind,
    interleave,
    migrate,
    move_page,
    prefer,
    run_on,
    set_home_node,
    set_policy,
)
from hugepage_qa.kernel.nodes import node_directories, read_nodes
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

NUMA = Area("numa")

_WORDS_OF_A_FILE = 0x5EED

PER_NODE = f"{HUGETLB_DOC} Per Node Hugepages Attributes"
POLICY = f"{HUGETLB_DOC} Interaction of Task Memory Policy with Huge Page Allocation/Freeing"


# --- where a pool grows and shrinks ----------------------------------------------------------------------------------
@NUMA.case(
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


@NUMA.case(
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


@NUMA.case(
    "nr_hugepages of a node changes the pages of this node alone, in both directions",
    f"{PER_NODE}; mm/hugetlb.c set_max_huge_pages()",
    nodes=2,
)
def a_node_is_changed_alone(live: Live) -> None:
    for node in live.nodes:
        for pages in (2, 1, 0):
            live.reserve(pages, node)
            _expect_pages_on(live, node, pages)


@NUMA.case(
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
    for node in others:
        live.expect_pool(node=node, nr=0, free=0)
    asked = live.pool().nr + 2
    if sum(live.node_meminfo(node)["MemFree"] for node in others) < 4 * live.size:
        raise CannotRun(f"the other nodes have no room for 2 pages beside the {full} of node {short}")
    live.set_nr(asked)
    live.expect("pages of all nodes", asked, live.pool().nr)
    live.expect("pages on the other nodes", asked - live.pool(short).nr, sum(live.pool(node).nr for node in others))


@NUMA.case(
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


@NUMA.case(
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


@NUMA.case(
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


@NUMA.case(
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


# --- from where a page is taken --------------------------------------------------------------------------------------
@NUMA.case(
    "bound memory takes its pages from the pool of its node, and numa_maps shows them there",
    "Documentation/admin-guide/mm/numa_memory_policy.rst MPOL_BIND; mm/hugetlb.c dequeue_hugetlb_folio_vma()",
    nodes=2,
)
def bound_memory_takes_pages_of_its_node(live: Live) -> None:
    _reserve_on_all(live, 1)
    for node in live.nodes:
        memory = live.map(1)
        bind(memory, [node])
        memory.touch()
        live.expect("node in numa_maps", {node: 1}, memory.numa_maps().nodes)
        live.expect("policy in numa_maps", f"bind:{node}", memory.numa_maps().policy)
        for other in live.nodes:
            live.expect_pool(node=other, nr=1, free=0 if other == node else 1)
        memory.unmap()


@NUMA.case(
    "bound memory finds no page where its node has none, though others have: SIGBUS",
    "Documentation/admin-guide/mm/numa_memory_policy.rst MPOL_BIND; mm/hugetlb.c dequeue_hugetlb_folio_nodemask()",
    nodes=2,
)
def bound_memory_takes_no_page_of_another_node(live: Live) -> None:
    here, there = live.nodes[:2]
    _require_no_free_page(live, here)
    live.reserve(2, there)
    memory = live.map(1)
    bind(memory, [here])
    live.expect_signal(signal.SIGBUS, memory.touch)
    live.expect_pool(nr=2, free=2, resv=1)
    live.expect_pool(node=there, nr=2, free=2)


@NUMA.case(
    "memory that is bound to a node cannot reserve the pages of others",
    "mm/hugetlb.c hugetlb_acct_memory(), allowed_mems_nr(), since 8ca39e6874f8",
    nodes=2,
    since="5.9",
)
def a_bound_process_reserves_pages_of_its_node(live: Live) -> None:
    here, there = live.nodes[:2]
    _require_no_free_page(live, here)
    live.reserve(1, here)
    live.reserve(2, there)
    for shared in (False, True):
        actor = live.actor()
        set_policy(actor, Mode.BIND, [here])
        live.expect_errno(errno.ENOMEM, live.map, 2, actor, shared=shared)
        live.expect_pool(nr=3, free=3)
    memory = live.map(1, actor)
    memory.touch()
    live.expect("node in numa_maps", {here: 1}, memory.numa_maps().nodes)


@NUMA.case(
    "interleaved memory takes its pages from the nodes in turn",
    "Documentation/admin-guide/mm/numa_memory_policy.rst MPOL_INTERLEAVE; mm/mempolicy.c huge_node()",
    nodes=2,
)
def interleaved_memory_takes_pages_in_turn(live: Live) -> None:
    _reserve_on_all(live, 2)
    memory = live.map(2 * len(live.nodes))
    interleave(memory, live.nodes)
    for page in range(memory.pages):
        memory.touch(page)
        if page + 1 == len(live.nodes):
            live.expect("pages on nodes in numa_maps", dict.fromkeys(live.nodes, 1), memory.numa_maps().nodes)
    live.expect("pages on nodes in numa_maps", dict.fromkeys(live.nodes, 2), memory.numa_maps().nodes)
    for node in live.nodes:
        live.expect_pool(node=node, nr=2, free=0)
    live.expect_pool(nr=memory.pages, free=0)


@NUMA.case(
    "memory that prefers a node takes its page, and where it has none, that of another",
    "Documentation/admin-guide/mm/numa_memory_policy.rst MPOL_PREFERRED; mm/mempolicy.c huge_node()",
    nodes=2,
)
def preferred_memory_takes_the_page_of_its_node_first(live: Live) -> None:
    _reserve_the_only_ones(live)
    for node in live.nodes:
        memory = live.map(2)
        prefer(memory, node)
        _expect_own_page_first(live, memory, node)


@NUMA.case(
    "memory without a policy takes the page of the node that the processor is on, and where it has none, another",
    "Documentation/admin-guide/mm/numa_memory_policy.rst System Default Policy; mm/mempolicy.c huge_node()",
    nodes=2,
)
def a_page_comes_from_the_node_of_the_processor(live: Live) -> None:
    _reserve_the_only_ones(live)
    nodes = read_nodes(live.host)
    for node in (node for node in live.nodes if nodes.each[node].cpus):
        memory = live.map(2)
        set_policy(memory.actor, Mode.DEFAULT, [])
        run_on(memory.actor, nodes.each[node].cpus)
        _expect_own_page_first(live, memory, node)


@NUMA.case(
    "a surplus page for bound memory comes from its node, and is counted there",
    f"{PER_NODE} surplus_hugepages; mm/hugetlb.c alloc_buddy_hugetlb_folio_with_mpol()",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def surplus_pages_come_from_the_bound_node(live: Live) -> None:
    for node in live.nodes:
        live.overcommit(1)
        memory = live.map(1, noreserve=True)
        bind(memory, [node])
        memory.touch()
        live.expect_pool(nr=1, free=0, surplus=1)
        for other in live.nodes:
            live.expect_pool(node=other, nr=int(other == node), free=0, surplus=int(other == node))
        memory.unmap()
        live.expect_pool(nr=0, free=0)


@NUMA.case(
    "a page in use that the pool gives up is surplus on its node, and persistent there when the pool grows again",
    f"{PER_NODE} surplus_hugepages; mm/hugetlb.c adjust_pool_surplus()",
    nodes=2,
)
def a_page_that_is_given_up_is_surplus_on_its_node(live: Live) -> None:
    _require_no_page(live)
    for node in live.nodes:
        live.reserve(1, node)
        memory = _page_on(live, node)
        for kept, surplus in ((0, 1), (1, 0)):
            live.set_nr(kept)
            live.expect_pool(nr=1, free=0, surplus=surplus)
            for other in live.nodes:
                here = int(other == node)
                live.expect_pool(node=other, nr=here, free=0, surplus=here * surplus)
        memory.unmap()
        live.set_nr(0)


@NUMA.case(
    "memory bound to several nodes takes its page from its home node",
    "set_mempolicy_home_node(2); mm/mempolicy.c, since c6018b4b2549",
    nodes=2,
    since="5.17",
)
def a_page_comes_from_the_home_node(live: Live) -> None:
    _reserve_on_all(live, 1)
    for node in live.nodes:
        memory = live.map(1)
        bind(memory, live.nodes)
        set_home_node(memory, node)
        memory.touch()
        live.expect("node in numa_maps", {node: 1}, memory.numa_maps().nodes)
        live.expect_pool(node=node, nr=1, free=0)
        memory.unmap()


# --- moving pages ----------------------------------------------------------------------------------------------------
@NUMA.case(
    "move_pages, mbind and migrate_pages move a page to a free one of another node, with its content",
    f"{PER_NODE}; move_pages(2); mm/hugetlb.c alloc_hugetlb_folio_nodemask(), move_hugetlb_state()",
    nodes=2,
)
def a_page_moves_to_a_free_page(live: Live) -> None:
    here, there = live.nodes[:2]
    live.reserve(1, here)
    live.reserve(1, there)
    memory = _page_on(live, here)
    live.expect("status of move_pages", there, move_page(memory, 0, there))
    _expect_moved(live, memory, here, there)
    bind(memory, [here], MOVE_STRICTLY)
    _expect_moved(live, memory, there, here)
    migrate(memory.actor, here, there)
    _expect_moved(live, memory, here, there)
    memory.unmap()
    for node in (here, there):
        live.expect_pool(node=node, nr=1, free=1)


@NUMA.case(
    "a page that moves to a node without a free page takes its place in the pool along",
    f"{PER_NODE}; mm/hugetlb.c alloc_migrate_hugetlb_folio(), move_hugetlb_state()",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def a_page_moves_with_its_place_in_the_pool(live: Live) -> None:
    here, there = live.nodes[:2]
    _require_no_free_page(live, there)
    live.reserve(1, here)
    memory = _page_on(live, here)
    live.expect("status of move_pages", there, move_page(memory, 0, there))
    live.expect("node in numa_maps", {there: 1}, memory.numa_maps().nodes)
    memory.expect_filled()
    live.expect_pool(nr=1, free=0)
    live.expect_pool(node=here, nr=0, free=0)
    live.expect_pool(node=there, nr=1, free=0)
    memory.unmap()
    live.expect_pool(nr=1, free=1)
    live.expect_pool(node=there, nr=1, free=1)


@NUMA.case(
    "a page of a file moves with its content, and with its place in the limit of the mount",
    "mm/migrate.c migrate_huge_page_move_mapping(); fs/hugetlbfs/inode.c hugetlbfs_migrate_folio()",
    nodes=2,
)
def a_page_of_a_file_moves(live: Live) -> None:
    here, there = live.nodes[:2]
    live.reserve(1, here)
    live.reserve(1, there)
    point = live.mount(size=2 * live.size)
    file = open_file(live, f"{point}/file")
    memory = file.map(1)
    bind(memory, [here])
    # no other case stores these words: a page that is moved without them may hold what another one left
    memory.fill(_WORDS_OF_A_FILE)
    live.expect("node in numa_maps", {here: 1}, memory.numa_maps().nodes)
    live.expect("status of move_pages", there, move_page(memory, 0, there))
    live.expect("node in numa_maps", {there: 1}, memory.numa_maps().nodes)
    memory.expect_filled(_WORDS_OF_A_FILE)
    live.expect_pool(nr=2, free=1)
    live.expect("blocks that are left", 1, live.host.file_system(point).free_blocks)
    memory.unmap()
    file.truncate(0)
    live.expect("blocks that are left", 2, live.host.file_system(point).free_blocks)
    live.expect_pool(nr=2, free=2)


@NUMA.case(
    "a surplus page that moves to another node is surplus there",
    f"{PER_NODE} surplus_hugepages; mm/hugetlb.c move_hugetlb_state()",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def a_surplus_page_moves(live: Live) -> None:
    here, there = live.nodes[:2]
    for node in (here, there):
        _require_no_free_page(live, node)
    live.overcommit(1)
    memory = live.map(1, noreserve=True)
    bind(memory, [here])
    memory.fill()
    live.expect_pool(node=here, nr=1, free=0, surplus=1)
    live.expect("status of move_pages", there, move_page(memory, 0, there))
    memory.expect_filled()
    live.expect_pool(nr=1, free=0, surplus=1)
    live.expect_pool(node=here, nr=0, free=0)
    live.expect_pool(node=there, nr=1, free=0, surplus=1)
    memory.unmap()
    for node in (here, there):
        live.expect_pool(node=node, nr=0, free=0)


# --- cpusets ---------------------------------------------------------------------------------------------------------
@NUMA.case(
    "a process in a cpuset gets huge pages of its nodes alone: it cannot reserve others, and touching them is SIGBUS",
    "mm/hugetlb.c hugetlb_acct_memory(), allowed_mems_nr(); Documentation/admin-guide/cgroup-v2.rst cpuset.mems",
    nodes=2,
)
def a_cpuset_keeps_to_its_nodes(live: Live) -> None:
    here, there = live.nodes[:2]
    _require_no_free_page(live, here)
    live.reserve(1, here)
    live.reserve(2, there)
    actor = live.actor()
    _cpuset(live, here).add(actor)
    live.expect_errno(errno.ENOMEM, live.map, 2, actor)
    live.expect_pool(nr=3, free=3)
    memory = live.map(2, actor, noreserve=True)
    memory.touch(0)
    live.expect("node in numa_maps", {here: 1}, memory.numa_maps().nodes)
    live.expect_signal(signal.SIGBUS, memory.touch, 1)
    live.expect_pool(nr=3, free=2)
    live.expect_pool(node=there, nr=2, free=2)


@NUMA.case(
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
    _cpuset(live, here).add(actor)
    _write(actor, policy, _persistent(live) + 2)
    _expect_pages_on(live, here, 2)


def _expect_pages_on(live: Live, node: int, pages: int) -> None:
    """Expect ``pages`` free pages on a node and none on the others."""
    live.expect_pool(nr=pages, free=pages)
    for other in live.nodes:
        live.expect_pool(node=other, nr=pages if other == node else 0, free=pages if other == node else 0)


def _expect_moved(live: Live, memory: Memory, source: int, target: int) -> None:
    live.expect("node in numa_maps", {target: 1}, memory.numa_maps().nodes)
    memory.expect_filled()
    live.expect_pool(nr=2, free=1)
    live.expect_pool(node=source, nr=1, free=1)
    live.expect_pool(node=target, nr=1, free=0)


def _page_on(live: Live, node: int) -> Memory:
    memory = live.map(1)
    bind(memory, [node])
    memory.fill()
    live.expect("node in numa_maps", {node: 1}, memory.numa_maps().nodes)
    return memory


def _reserve_on_all(live: Live, pages: int) -> None:
    for node in live.nodes:
        live.reserve(pages, node)


def _reserve_the_only_ones(live: Live) -> None:
    """Have one free page on each node, and no other one there."""
    for node in live.nodes:
        _require_no_free_page(live, node)
    _reserve_on_all(live, 1)


def _expect_own_page_first(live: Live, memory: Memory, node: int) -> None:
    memory.touch(0)
    live.expect("node in numa_maps", {node: 1}, memory.numa_maps().nodes)
    memory.touch(1)
    found = memory.numa_maps().nodes
    live.expect(f"pages on node {node} and on others", (1, 1), (found.get(node), sum(found.values()) - 1))
    memory.unmap()


def _require_room(live: Live, pages: int) -> None:
    """Make sure that each node has room for ``pages`` pages. Raises CannotRun or Failed as ``Live.reserve`` does."""
    _reserve_on_all(live, pages)
    live.set_nr(0)


def _require_no_free_page(live: Live, node: int) -> None:
    """Free pages that were there before are put aside by number and not by node: they could be taken."""
    if read_integer(live.host, live.pool_file("free_hugepages", node=node)):
        raise CannotRun(f"node {node} has free pages that are not ours")


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
    fd = actor.call("openat", -100, f"/{path}", os.O_WRONLY)
    actor.call("write", fd, text, len(text))
    actor.call("close", fd)


def _cpuset(live: Live, node: int) -> ControlGroup:
    version_1 = live.host.read("sys/fs/cgroup/cpuset/cpuset.mems") is not None
    group = new_group(live, "cpuset", Version.ONE if version_1 else Version.TWO)
    if version_1:  # where a new group has no CPUs
        group.write("cpuset.cpus", live.host.read("sys/fs/cgroup/cpuset/cpuset.cpus") or "0")
    group.write("cpuset.mems", str(node))
    return group


class Nodes(LiveTest):
    """The pools of the NUMA nodes, for every page size of the machine.

    :avocado: enable
    """

    def test_nodes(self) -> None:
        """Every case for every page size."""
        self.run_area(NUMA)
