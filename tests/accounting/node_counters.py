"""What the vmstat of each node counts of huge pages: added up, it is what /proc/vmstat counts."""

import re
from collections.abc import Callable
from functools import partial

from hugepage_qa.cases.added_up import add_up_counters
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import mapped_huge
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, shared_huge_pages
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.nodes import node_directories
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

NODE_COUNTERS = Area("accounting/node-counters", sizes=Sizes.ONCE)

#: but nr_file_hugepages, which folio_migrate_mapping() leaves on the node that a page of a file has moved from
_OF_HUGE_PAGES = re.compile(r"nr_(anon_transparent_hugepages|shmem_(hugepages|pmdmapped)|file_pmdmapped)")
#: of the machine, and of all nodes, by counter
Counted = tuple[dict[str, int], dict[str, int]]
#: others have and give back huge pages while all nodes are read
_SECONDS = 10.0


@NODE_COUNTERS.case(
    "what vmstat counts of huge pages, anonymous ones and shared, is the same for the machine and for all of its nodes"
    " together, in the same unit",
    "Documentation/ABI/stable/sysfs-devices-node vmstat; drivers/base/node.c node_read_vmstat(); mm/vmstat.c"
    " vmstat_start()",
)
def added_up(live: Live) -> None:
    let_only_pmd_inherit(live)
    if not node_directories(live.host):
        raise CannotRun("this kernel has no NUMA nodes")
    kinds: list[Callable[[Live], Memory]] = [huge_pages, shared_huge_pages]
    for make in kinds:
        memory = make(live)
        live.expect("memory that is mapped in huge pages", memory.length, mapped_huge(memory))
        with live.about(make.__name__.replace("_", " ")):
            counted = live.host.last_look(partial(_counted, live), _adds_up, _SECONDS)
            live.expect("counters of all nodes together", *counted)
        memory.actor.end()


def _adds_up(counted: Counted) -> bool:
    of_machine, of_nodes = counted
    return of_machine == of_nodes


def _counted(live: Live) -> Counted:
    """Return what is counted of huge pages for the machine, and for all of its nodes, by counter."""
    add_up_counters(live)
    tree = ObservedTree(live.host)
    of_machine = read_vmstat(tree)
    nodes = [read_vmstat(tree, f"{at}/vmstat") for at in node_directories(tree).values()]
    names = {name for name in of_machine if _OF_HUGE_PAGES.fullmatch(name)}
    moved = of_machine.get("thp_migration_success")
    if moved and live.has_bug(Quirk.MOVED_SHARED_PAGE_OFF_NODES):
        # it may be below 0 on a node, which shows 0 then, since such a page has moved
        live.notes.append("nr_shmem_hugepages is not judged: huge pages have moved")
        names.discard("nr_shmem_hugepages")
    return {name: of_machine[name] for name in names}, {name: sum(node[name] for node in nodes) for name in names}


class NodeCounters(LiveTest):
    def test_node_counters(self) -> None:
        self.run_area(NODE_COUNTERS)
