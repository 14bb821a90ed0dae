"""Huge pages, private and shared, through all that may become of them: every file counts each of them as what it is."""

from collections.abc import Callable, Iterator, Mapping

from hugepage_qa.cases.added_up import add_up_counters
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.counted_states import (
    ANONYMOUS,
    IN_SWAP,
    MAPPED,
    MAPPED_WHOLE,
    ON_FILE_LISTS,
    ON_LISTS,
    PAGES,
    SHARED,
    SHARED_WHOLE,
    UNEVICTABLE,
    WHOLE,
    State,
    private_states,
    shared_states,
)
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.group_statistics import ADDED_UP_SECONDS, read_statistics
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.memory_policy import Mode, keep_to_one_cpu, set_policy
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.swapped import need_swap, zswap_knob
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import give_on_advice
from hugepage_qa.kernel.counters import read_meminfo, read_vmstat
from hugepage_qa.kernel.nodes import node_directories
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

EVERYWHERE = Area("accounting/everywhere", sizes=Sizes.ONCE)

PROC_DOC = "Documentation/filesystems/proc.rst meminfo"
GROUP_DOC = "Documentation/admin-guide/cgroup-v2.rst memory.stat"

#: what is counted, by quantity: names whose sum it is, in each file
_OF_GROUP = {
    ANONYMOUS: ("anon",),
    WHOLE: ("anon_thp",),
    SHARED: ("shmem",),
    SHARED_WHOLE: ("shmem_thp",),
    MAPPED: ("file_mapped",),
    ON_LISTS: ("active_anon", "inactive_anon"),
    ON_FILE_LISTS: ("active_file", "inactive_file"),
    UNEVICTABLE: ("unevictable",),
}
_OF_MEMINFO = {
    ANONYMOUS: ("AnonPages",),
    WHOLE: ("AnonHugePages",),
    SHARED: ("Shmem",),
    SHARED_WHOLE: ("ShmemHugePages",),
    MAPPED: ("Mapped",),
    MAPPED_WHOLE: ("ShmemPmdMapped",),
    ON_LISTS: ("Active(anon)", "Inactive(anon)"),
    ON_FILE_LISTS: ("Active(file)", "Inactive(file)"),
    UNEVICTABLE: ("Unevictable",),
}
#: of the node's vmstat, and of the zones of the machine, in base pages
_OF_NODE = {
    ANONYMOUS: ("nr_anon_pages",),
    SHARED: ("nr_shmem",),
    MAPPED: ("nr_mapped",),
    ON_LISTS: ("nr_active_anon", "nr_inactive_anon"),
    ON_FILE_LISTS: ("nr_active_file", "nr_inactive_file"),
    UNEVICTABLE: ("nr_unevictable",),
}
_OF_ZONES = {
    ON_LISTS: ("nr_zone_active_anon", "nr_zone_inactive_anon"),
    ON_FILE_LISTS: ("nr_zone_active_file", "nr_zone_inactive_file"),
    UNEVICTABLE: ("nr_zone_unevictable",),
}
#: of a group in swap
_SWAP_OF_GROUP = "memory.swap.current"

#: what shows huge pages, by the name of the file: bytes by quantity
Shown = dict[str, dict[str, int]]
Walk = Callable[[Live, Actor, int | None], Iterator[State]]
_WALKS: dict[str, Walk] = {"private": private_states, "shared": shared_states}


@EVERYWHERE.case(
    "memory.stat and memory.numa_stat of a group count huge pages, private and shared, as anonymous, shared, huge,"
    " mapped, reclaimable and unevictable, and its swap those that are there, all of their bytes, whatever becomes of"
    " them: mapped in parts, locked, inherited, given back, freed lazily, removed, swapped out, unmapped",
    f"{GROUP_DOC}, memory.numa_stat, memory.swap.current; mm/memcontrol.c memory_stat_format()",
    since="5.11",  # shmem_thp
)
def of_a_group(live: Live) -> None:
    node = _prepare(live)
    for name, walk in _WALKS.items():
        group = new_group(live, "memory", Version.TWO)
        # from who wants memory meanwhile, and not from who asks for it to be swapped out
        group.write("memory.min", str(4 * PAGES * pmd_size(live)))
        actor = _actor(live, node)
        group.add(actor)

        def shown(group: ControlGroup = group) -> Shown:
            found = {"memory.stat": _sums(read_statistics(group), _OF_GROUP)}
            numbers = read_statistics(group, "memory.numa_stat")
            for each in live.nodes:
                of_node = {
                    line.removesuffix(f" N{each}"): numbers[line] for line in numbers if line.endswith(f" N{each}")
                }
                found[f"memory.numa_stat of node {each}"] = _sums(of_node, _OF_GROUP)
            if (swap := group.read(_SWAP_OF_GROUP)) is not None:
                found[_SWAP_OF_GROUP] = {IN_SWAP: int(swap)}
            return found

        empty = {f"memory.numa_stat of node {each}" for each in live.nodes} - {f"memory.numa_stat of node {node}"}
        _expect_counted(live, f"{name} memory", walk(live, actor, node), shown, empty)
        actor.end()
        group.remove()


@EVERYWHERE.case(
    "meminfo and vmstat, of the machine, of its zones together and of a node, count huge pages, private and shared, as"
    " anonymous, shared, huge, mapped, reclaimable, unevictable and in swap, all of their bytes, whatever becomes of"
    " them: mapped in parts, locked, inherited, given back, freed lazily, removed, swapped out, unmapped",
    f"{PROC_DOC}; fs/proc/meminfo.c meminfo_proc_show(); drivers/base/node.c node_read_meminfo(); mm/vmstat.c",
    since="5.4",  # MADV_PAGEOUT
)
def of_the_machine(live: Live) -> None:
    if live.host.has_others:
        raise CannotRun("others have memory of this machine, which is counted, too")
    node = _prepare(live)
    directories = node_directories(live.host)

    def shown() -> Shown:
        add_up_counters(live)
        tree = ObservedTree(live.host)
        meminfo, zones = read_meminfo(tree), read_vmstat(tree)
        found = {
            "/proc/meminfo": _sums(meminfo, _OF_MEMINFO) | {IN_SWAP: meminfo["SwapTotal"] - meminfo["SwapFree"]},
            "/proc/vmstat": _sums(_in_bytes(live, zones), _OF_NODE),
            "zones in /proc/vmstat": _sums(_in_bytes(live, zones), _OF_ZONES),
        }
        for each in live.nodes:
            found[f"meminfo of node {each}"] = _sums(read_meminfo(tree, f"{directories[each]}/meminfo"), _OF_MEMINFO)
            vmstat = read_vmstat(tree, f"{directories[each]}/vmstat")
            found[f"vmstat of node {each}"] = _sums(_in_bytes(live, vmstat), _OF_NODE)
        return found

    empty = {f"{file} of node {each}" for file in ("meminfo", "vmstat") for each in live.nodes if each != node}
    for name, walk in _WALKS.items():
        actor = _actor(live, node)
        _expect_counted(live, f"{name} memory", walk(live, actor, node), shown, empty)
        actor.end()


def _prepare(live: Live) -> int | None:
    """Have memory get huge pages on advice, and swap; return the node that it is to come from, None without nodes."""
    let_rest(live)
    size = pmd_size(live)
    node = live.nodes[-1] if live.nodes else None
    need_swap(live, PAGES * size)
    live.set_knob_if_there(zswap_knob("enabled"), "N")
    give_on_advice(live)
    with_blocks(live, size, PAGES, node)
    if node is not None:
        need_memory(live, [node], PAGES * size)
    return node


def _actor(live: Live, node: int | None) -> Actor:
    """Return a process whose memory comes from ``node``, and that keeps to one CPU."""
    actor = live.actor()
    keep_to_one_cpu(live, actor)
    if live.has_several_nodes and node is not None:
        set_policy(actor, Mode.BIND, [node])
    return actor


def _expect_counted(
    live: Live, memory: str, states: Iterator[State], shown: Callable[[], Shown], empty: set[str]
) -> None:
    """Expect what is ``shown`` to have risen as each of ``states`` says, in files that are ``empty`` by nothing.

    In whole huge pages, with less than half of one that the process, and the kernel for it, has besides.
    """
    before, size = shown(), pmd_size(live)
    for state, pages in states:

        def wrong(pages: Mapping[str, int] = pages) -> dict[str, tuple[int, int]]:
            found: dict[str, tuple[int, int]] = {}
            for file, quantities in shown().items():
                for name, length in quantities.items():
                    wanted = 0 if file in empty else pages.get(name)
                    risen = (length - before[file][name] + size // 2) // size
                    if wanted is not None and name in pages and risen != wanted:
                        found[f"{name}, {file}"] = wanted, risen
            return found

        with live.about(f"{memory}: {state}"):
            seen = live.host.last_look(wrong, lambda found: not found, ADDED_UP_SECONDS)
            live.expect("huge pages that are counted otherwise: how many there are, and how many it says", {}, seen)


def _sums(shown: Mapping[str, int], names: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """Return the sums of what is shown, by quantity, without those that this kernel does not show."""
    return {
        quantity: sum(shown[name] for name in of_it)
        for quantity, of_it in names.items()
        if all(name in shown for name in of_it)
    }


def _in_bytes(live: Live, vmstat: Mapping[str, int]) -> dict[str, int]:
    return {name: count * live.base_page for name, count in vmstat.items()}


class Everywhere(LiveTest):
    def test_everywhere(self) -> None:
        self.run_area(EVERYWHERE)
