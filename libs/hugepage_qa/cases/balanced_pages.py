"""Huge pages that NUMA balancing waits for a fault on: mapped, and for nobody to use before the kernel has looked."""

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import Mode, run_on, set_policy
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.thp_memory import allow_on_advice, map_aligned, need_blocks, pmd_size
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.nodes import read_nodes
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE
from hugepage_qa.machine.host import CannotRun

_BALANCING = "proc/sys/kernel/numa_balancing"
#: in /proc/vmstat: how many huge pages were marked for a fault
_MARKED = "numa_huge_pte_updates"
#: the address space of a process is looked through by what it has computed: from its second second on
#: (scan_delay_ms and scan_period_min_ms of /sys/kernel/debug/sched/numa_balancing are 1000)
_ROUNDS, _SECONDS, _SURE_SECONDS = 20, 0.5, 2.0


def waited_for(live: Live, pages: int) -> tuple[Memory, int]:
    """Return filled huge pages that NUMA balancing has marked for a fault, and the node that they are on.

    Their process runs on another one: what is near is passed over by later kernels. Raises CannotRun where the kernel
    does not mark them.
    """
    nodes = read_nodes(live.host)
    far = [(near, node) for near in nodes.each for node in live.nodes if node != near and nodes.each[near].cpus]
    if not far:
        raise CannotRun("no node has memory that is far from a processor")
    near, node = far[0]
    need_memory(live, (node,), pages * pmd_size(live))
    allow_on_advice(live)
    live.set_knob(_BALANCING, "0")
    actor = live.actor()
    run_on(actor, nodes.each[near].cpus)
    set_policy(actor, Mode.BIND, [node])
    memory = map_aligned(live, pages, pmd_size(live), actor=actor, advice=MADV_HUGEPAGE)
    memory.fill()
    need_blocks(live, memory, node)
    live.expect("AnonHugePages before", memory.length, memory.smaps().anon_huge_pages)
    # what a policy binds is not balanced (vma_policy_mof() in mm/mempolicy.c)
    set_policy(actor, Mode.DEFAULT, [])
    marked = read_vmstat(live.host)[_MARKED]
    live.host.write(_BALANCING, "1")
    for _round in range(_ROUNDS):
        actor.compute(_SECONDS)
        if read_vmstat(live.host)[_MARKED] - marked >= pages:
            # others may have been marked so far: the rest of this address space comes within its next periods
            actor.compute(_SURE_SECONDS)
            # and what is looked at is not marked once more while a case looks at it
            live.host.write(_BALANCING, "0")
            return memory, node
    raise CannotRun(f"NUMA balancing passes over huge pages of a process that ran for {_ROUNDS * _SECONDS:g} s")
