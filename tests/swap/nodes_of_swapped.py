"""Memory that comes back from swap: from the nodes of its policy, wherever it was and whoever wants it."""

from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import Version, new_group
from hugepage_qa.cases.group_memory import leave_memory
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.memory_policy import Mode, bind, run_on, set_policy
from hugepage_qa.cases.swapped import need_swap
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_nodes import two_nodes_with_room
from hugepage_qa.cases.thp_policy import fill_in_huge_pages
from hugepage_qa.kernel.nodes import read_nodes
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

NODES_OF_SWAPPED = Area("swap/nodes-of-swapped", sizes=Sizes.ONCE)

#: of a policy: mbind(2), which goes before set_mempolicy(2)
_OF_MAPPING, _OF_PROCESS = "its mapping", "its process"


@NODES_OF_SWAPPED.case(
    "a huge page, private or shared, that was swapped out comes back in memory of the node that its mapping is bound"
    " to, or else its process, though it was on another one before, on which that process runs; it holds what it held",
    "mbind(2); set_mempolicy(2); mm/swap_state.c swapin_readahead(), read_swap_cache_async(); mm/shmem.c"
    " shmem_swapin_cluster()",
    since="5.4",  # MADV_PAGEOUT
    nodes=2,
)
def from_the_node_of_the_policy(live: Live) -> None:
    near, far = two_nodes_with_room(live, 2)
    processors = read_nodes(live.host).each[near].cpus
    if not processors:
        raise CannotRun(f"node {near} has memory and no processor")
    need_swap(live, 2 * pmd_size(live))
    # what the process has besides is in swap, too: no page is to be read with another one, by the policy of before
    live.set_knob("proc/sys/vm/page-cluster", "0")
    group = new_group(live, "memory", Version.TWO)
    for shared, policy in product((False, True), (_OF_MAPPING, _OF_PROCESS)):
        with live.about(f"shared {shared}, policy of {policy}"):
            actor = live.actor()
            run_on(actor, processors)
            group.add(actor)
            set_policy(actor, Mode.BIND, [near])
            memory = map_aligned(live, 1, pmd_size(live), shared=shared, actor=actor, advice=MADV_HUGEPAGE)
            fill_in_huge_pages(live, memory, near)
            live.expect("bytes in huge pages before", memory.length, mapped_huge(memory))
            pages = memory.length // live.base_page
            live.expect("base pages of each node before", {near: pages}, memory.numa_maps().nodes)
            leave_memory(live, memory, group)
            if policy == _OF_MAPPING:
                bind(memory, [far])
            else:
                set_policy(actor, Mode.BIND, [far])
            memory.expect_filled()
            live.expect("base pages of each node", {far: pages}, memory.numa_maps().nodes)
            actor.end()


class NodesOfSwapped(LiveTest):
    def test_nodes_of_swapped(self) -> None:
        self.run_area(NODES_OF_SWAPPED)
