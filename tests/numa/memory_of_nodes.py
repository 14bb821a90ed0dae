"""From which node memory takes its page: bound, preferring, interleaved, with a home node, in a cpuset."""

import errno
import mmap
import signal
from collections.abc import Callable
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.hugetlb_segments import get_segment
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import (
    STRICT,
    Mode,
    bind,
    interleave,
    node_by_policy,
    policy_of,
    prefer,
    run_on_node,
    set_home_node,
    set_policy,
)
from hugepage_qa.cases.pages_of_a_node import cpuset_of, require_no_free_page, reserve_on_all
from hugepage_qa.kernel.nodes import read_nodes
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

MEMORY = Area("numa/memory-of-nodes")

_CPUS = "sys/devices/system/node/node{}/cpulist"
PER_NODE = f"{HUGETLB_DOC} Per Node Hugepages Attributes"


@MEMORY.case(
    "bound memory takes its pages from the pool of its node, and numa_maps shows them there",
    "Documentation/admin-guide/mm/numa_memory_policy.rst MPOL_BIND; mm/hugetlb.c dequeue_hugetlb_folio_vma()",
    nodes=2,
)
def bound_memory_takes_pages_of_its_node(live: Live) -> None:
    reserve_on_all(live, 1)
    for node in live.nodes:
        memory = live.map(1)
        bind(memory, [node])
        memory.touch()
        live.expect("node in numa_maps", {node: 1}, memory.numa_maps().nodes)
        live.expect("policy in numa_maps", f"bind:{node}", memory.numa_maps().policy)
        for other in live.nodes:
            live.expect_pool(node=other, nr=1, free=0 if other == node else 1)
        memory.unmap()


@MEMORY.case(
    "get_mempolicy(2) tells what memory is bound to, which mprotect(2) leaves and a child has, and which node has its"
    " page; that of memory without a policy is the default",
    "get_mempolicy(2) MPOL_F_ADDR, MPOL_F_NODE; mm/mempolicy.c do_get_mempolicy(), lookup_node()",
    nodes=2,
)
def policy_is_told(live: Live) -> None:
    reserve_on_all(live, 1)
    # shared pages first, since a child may lack private ones, where the case ends
    for shared, node in product((True, False), live.nodes):
        with live.about(f"node {node}, shared {shared}"):
            memory = live.map(1, shared=shared)
            live.expect("policy and nodes", (Mode.DEFAULT, []), policy_of(memory))
            bind(memory, [node])
            memory.touch()
            memory.protect(mmap.PROT_READ)
            child = memory.fork() if shared else forked(live, memory)
            for one in (child, memory):
                live.expect("policy and nodes", (Mode.BIND, [node]), policy_of(one))
                live.expect("node of the page", node, node_by_policy(one))
                one.actor.end()
    live.expect_pool(nr=len(live.nodes), free=len(live.nodes))


@MEMORY.case(
    "bound memory finds no page where its node has none, though others have: SIGBUS",
    "Documentation/admin-guide/mm/numa_memory_policy.rst MPOL_BIND; mm/hugetlb.c dequeue_hugetlb_folio_nodemask()",
    nodes=2,
)
def bound_memory_takes_no_page_of_another_node(live: Live) -> None:
    here, there = live.nodes[:2]
    require_no_free_page(live, here)
    live.reserve(2, there)
    memory = live.map(1)
    bind(memory, [here])
    live.expect_signal(signal.SIGBUS, memory.touch)
    live.expect_pool(nr=2, free=2, resv=1)
    live.expect_pool(node=there, nr=2, free=2)


@MEMORY.case(
    "memory that is bound to a node cannot reserve the pages of others, nor those of its own that are in use, and what"
    " is refused leaves nothing reserved and no surplus page: of private and shared memory, a file and a segment",
    "mm/hugetlb.c hugetlb_acct_memory(), allowed_mems_nr(), since 8ca39e6874f8",
    nodes=2,
    since="5.9",
)
def a_bound_process_reserves_pages_of_its_node(live: Live) -> None:
    here, there = live.nodes[:2]
    require_no_free_page(live, here)
    live.reserve(1, here)
    live.reserve(2, there)
    if not live.is_gigantic:
        # more pages than there are have the pool grow first, and then shrink again
        live.let_grow(1, here)
    actor = live.actor()
    set_policy(actor, Mode.BIND, [here])
    _expect_refused_without_a_trace(live, actor, here, there)
    for shared in (False, True):
        memory = live.map(1, actor, shared=shared)
        memory.touch()
        live.expect("node in numa_maps", {here: 1}, memory.numa_maps().nodes)
        # the page of the node is in use, and free ones are elsewhere alone
        live.expect_errno(errno.ENOMEM, live.map, 1, actor, shared=shared)
        live.expect_pool(nr=3, free=2)
        memory.unmap()


@MEMORY.case(
    "interleaved memory takes its pages from the nodes in turn",
    "Documentation/admin-guide/mm/numa_memory_policy.rst MPOL_INTERLEAVE; mm/mempolicy.c huge_node()",
    nodes=2,
)
def interleaved_memory_takes_pages_in_turn(live: Live) -> None:
    reserve_on_all(live, 2)
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


@MEMORY.case(
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


@MEMORY.case(
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
        run_on_node(memory.actor, node, nodes.each[node].cpus)
        _expect_own_page_first(live, memory, node)


@MEMORY.case(
    "a surplus page for bound memory comes from its node, and is counted there",
    f"{PER_NODE} surplus_hugepages; mm/hugetlb.c alloc_buddy_hugetlb_folio_with_mpol()",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def surplus_pages_come_from_the_bound_node(live: Live) -> None:
    for node in live.nodes:
        live.let_grow(1, node)
        memory = live.map(1, noreserve=True)
        bind(memory, [node])
        memory.touch()
        live.expect_pool(nr=1, free=0, surplus=1)
        for other in live.nodes:
            live.expect_pool(node=other, nr=int(other == node), free=0, surplus=int(other == node))
        memory.unmap()
        live.expect_pool(nr=0, free=0)


@MEMORY.case(
    "memory bound to several nodes takes its page from its home node",
    "set_mempolicy_home_node(2); mm/mempolicy.c, since c6018b4b2549",
    nodes=2,
    since="5.17",
)
def a_page_comes_from_the_home_node(live: Live) -> None:
    reserve_on_all(live, 1)
    for node in live.nodes:
        memory = live.map(1)
        bind(memory, live.nodes)
        set_home_node(memory, node)
        memory.touch()
        live.expect("node in numa_maps", {node: 1}, memory.numa_maps().nodes)
        live.expect_pool(node=node, nr=1, free=0)
        memory.unmap()


@MEMORY.case(
    "memory that prefers several nodes takes its page from its home node, and from another one when that has none",
    "set_mempolicy_home_node(2) MPOL_PREFERRED_MANY; mm/mempolicy.c, since c6018b4b2549",
    nodes=2,
    since="5.17",
)
def a_page_comes_from_the_home_node_of_many(live: Live) -> None:
    _reserve_the_only_ones(live)
    for node in live.nodes:
        memories = [live.map(1) for _ in live.nodes]
        for memory in memories:
            prefer(memory, *live.nodes)
            set_home_node(memory, node)
        memories[0].touch()
        live.expect("node in numa_maps", {node: 1}, memories[0].numa_maps().nodes)
        live.expect_pool(node=node, nr=1, free=0)
        for memory in memories[1:]:
            memory.touch()
        for each in live.nodes:
            live.expect_pool(node=each, nr=1, free=0)
        for memory in memories:
            memory.unmap()


@MEMORY.case(
    "a process in a cpuset gets huge pages of its nodes alone: it cannot reserve others, and a touch gets SIGBUS",
    "mm/hugetlb.c hugetlb_acct_memory(), allowed_mems_nr(); Documentation/admin-guide/cgroup-v2.rst cpuset.mems",
    nodes=2,
)
def a_cpuset_keeps_to_its_nodes(live: Live) -> None:
    here, there = live.nodes[:2]
    require_no_free_page(live, here)
    live.reserve(1, here)
    live.reserve(2, there)
    actor = live.actor()
    cpuset_of(live, here).add(actor)
    _expect_refused_without_a_trace(live, actor, here, there)
    for shared in (False, True):
        memory = live.map(1, actor, shared=shared)
        memory.touch()
        live.expect("node in numa_maps of reserved memory", {here: 1}, memory.numa_maps().nodes)
        memory.unmap()
    memory = live.map(2, actor, noreserve=True)
    memory.touch(0)
    live.expect("node in numa_maps", {here: 1}, memory.numa_maps().nodes)
    live.expect_signal(signal.SIGBUS, memory.touch, 1)
    live.expect_pool(nr=3, free=2)
    live.expect_pool(node=there, nr=2, free=2)


@MEMORY.case(
    "a node whose processors are switched off has its pool, and gives its pages to memory that is bound to it, or"
    " prefers it, and takes them back",
    "Documentation/core-api/cpu_hotplug.rst; Documentation/admin-guide/mm/numa_memory_policy.rst; mm/hugetlb.c",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def a_node_without_processors(live: Live) -> None:
    if not live.host.is_thrown_away():
        raise CannotRun("processors of a machine that others use are not switched off")
    # processor 0 stays
    nodes = read_nodes(live.host).each
    off = [node for node in live.nodes if nodes[node].cpus and 0 not in nodes[node].cpus]
    if not off:
        raise CannotRun("all processors are on one node")
    node = off[0]
    live.reserve(2, node)
    for cpu in nodes[node].cpus:
        live.set_knob(f"sys/devices/system/cpu/cpu{cpu}/online", "0")
    live.expect(f"processors of node {node}", "", (ObservedTree(live.host).read(_CPUS.format(node)) or "").strip())
    for is_bound in (True, False):
        memory = live.map(2)
        if is_bound:
            bind(memory, [node])
        else:
            prefer(memory, node)
        memory.fill()
        memory.expect_filled()
        live.expect("nodes in numa_maps", {node: 2}, memory.numa_maps().nodes)
        live.expect_pool(node=node, nr=2, free=0)
        memory.unmap()
        live.expect_pool(node=node, nr=2, free=2)
    for pages in (1, 3, 0):
        live.set_nr(pages, node)
        live.expect_pool(nr=pages, free=pages)
        live.expect_pool(node=node, nr=pages, free=pages)


@MEMORY.case(
    "mbind(2) with MPOL_MF_STRICT alone is EIO where a page lies on another node, moves none, and changes no policy",
    "mbind(2) MPOL_MF_STRICT; mm/mempolicy.c queue_folios_hugetlb()",
    nodes=2,
)
def strict_about_nodes(live: Live) -> None:
    here, there = live.nodes[:2]
    reserve_on_all(live, 1)
    for shared in (False, True):
        memory = live.map(1, shared=shared)
        bind(memory, [here])
        memory.touch()
        bind(memory, [here], STRICT)
        policy = policy_of(memory)
        live.expect_errno(errno.EIO, bind, memory, [there], STRICT)
        live.expect("the policy that it has", policy, policy_of(memory))
        live.expect_pool(nr=len(live.nodes), free=len(live.nodes) - 1)
        live.expect("node in numa_maps", {here: 1}, memory.numa_maps().nodes)
        memory.unmap()
        for node in (here, there):
            live.expect_pool(node=node, nr=1, free=1)


def _expect_refused_without_a_trace(live: Live, actor: Actor, here: int, there: int) -> None:
    """Expect ``actor``, which may have the one page on ``here``, to get no reservation of more, and none to be left."""

    def map_file(pages: int) -> None:
        file = new_memfd(live, actor)
        try:
            file.map(pages)
        finally:
            file.close()

    ways: dict[str, Callable[[int], object]] = {
        "private": lambda pages: live.map(pages, actor),
        "shared": lambda pages: live.map(pages, actor, shared=True),
        "file": map_file,
        "segment": lambda pages: get_segment(live, pages * live.size, actor),
    }
    # as many as the other node has, as both have, and more
    for (name, reserve), pages in product(ways.items(), (2, 3, 4)):
        with live.about(f"{name}, {pages} pages"):
            live.expect_errno(errno.ENOMEM, reserve, pages)
            live.expect_pool(nr=3, free=3)
            live.expect_pool(node=here, nr=1, free=1)
            live.expect_pool(node=there, nr=2, free=2)


def _reserve_the_only_ones(live: Live) -> None:
    """Have one free page on each node, and no other one there."""
    for node in live.nodes:
        require_no_free_page(live, node)
    reserve_on_all(live, 1)


def _expect_own_page_first(live: Live, memory: Memory, node: int) -> None:
    memory.touch(0)
    live.expect("node in numa_maps", {node: 1}, memory.numa_maps().nodes)
    memory.touch(1)
    found = memory.numa_maps().nodes
    live.expect(f"pages on node {node} and on others", (1, 1), (found.get(node), sum(found.values()) - 1))
    memory.unmap()


class MemoryOfNodes(LiveTest):
    def test_memory_of_nodes(self) -> None:
        self.run_area(MEMORY)
