"""By how much counters of the whole machine change with what a case does, while others change them, too."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from hugepage_qa.cases.added_up import add_up_counters
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.counters import read_meminfo, read_vmstat
from hugepage_qa.kernel.nodes import node_directories
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk

#: before the name of a line of meminfo that is the sum of those of all nodes
OF_NODES = "nodes together: "

#: how often a change is measured until nobody else has changed the same counters
_ATTEMPTS = 10
#: how often the counters are looked at for changes by others, with a pause of so many seconds before each
_LOOKS, _PAUSE_SECONDS = 20, 0.1

Prepared = TypeVar("Prepared")


def read_counters(live: Live) -> dict[str, int]:
    """Return the lines of /proc/meminfo (bytes) and the counters of /proc/vmstat."""
    add_up_counters(live)
    return {**read_vmstat(ObservedTree(live.host)), **read_meminfo(ObservedTree(live.host))}


def read_counters_with_nodes(live: Live) -> dict[str, int]:
    """Return what ``read_counters`` does, and what the meminfo of each node has, added up, by ``OF_NODES`` names."""
    counters, tree = read_counters(live), ObservedTree(live.host)
    of_nodes = [read_meminfo(tree, f"{directory}/meminfo") for directory in node_directories(live.host).values()]
    # some lines of a node are younger than those of the machine: Linux 5.4
    names = set.intersection(*map(set, of_nodes)) if of_nodes else set()
    return counters | {f"{OF_NODES}{name}": sum(each[name] for each in of_nodes) for name in names}


def expect_change(
    live: Live,
    expected: Mapping[str, int],
    prepare: Callable[[], Prepared],
    act: Callable[[Prepared], None],
    read: Callable[[Live], Mapping[str, int]] = read_counters,
    on_others: Callable[[Live], None] = lambda _live: None,
    known: Mapping[Quirk, Mapping[str, int]] | None = None,
) -> Prepared:
    """Expect ``act`` on what ``prepare`` returns to change counters of the whole machine as ``expected``.

    Other processes change them, too: what disagrees once is done again, and told. What disagrees twice is a difference
    unless the counters are seen to change with nothing done but ``on_others``, what ``act`` does to others as well:
    then it is done until it agrees. Counters that the kernel does not have are left out. ``known`` tells which counters
    change how else with a known bug: there the case ends, if all change so. Returns what ``prepare`` returned last.
    Raises KnownBug, and CannotRun where it never agrees, each time otherwise, and others are seen each time.
    """
    wrong: list[dict[str, int]] = []
    for _attempt in range(_ATTEMPTS):
        prepared = prepare()
        before, began = read(live), live.host.clock()
        act(prepared)
        after, took = read(live), live.host.clock() - began
        wanted = {name: change for name, change in expected.items() if name in before}
        found = {name: after[name] - before[name] for name in wanted}
        if found == wanted:
            break
        wrong.append({name: change for name, change in found.items() if change != wanted[name]})
        if len(wrong) > 1 and not _changes_by_itself(live, read, on_others, wrong, took):
            break
    else:
        if any(each != wrong[0] for each in wrong):
            raise CannotRun("others change the same counters all the time")
    often = f", {len(wrong)} of {len(wrong) + (found == wanted)} attempts disagree" if wrong else ""
    if wrong:
        live.notes.append(f"counters{often}: {', '.join(map(str, wrong))}")
    if known:
        quirks = {quirk: {**wanted, **changes} for quirk, changes in known.items()}
        live.expect(f"changes of counters{often}", wanted, found, quirks)
        return prepared
    for name, change in wanted.items():
        live.expect(f"change of {name}{often}", change, found[name])
    return prepared


def _changes_by_itself(
    live: Live,
    read: Callable[[Live], Mapping[str, int]],
    on_others: Callable[[Live], None],
    wrong: Sequence[Mapping[str, int]],
    took: float,
) -> bool:
    """Tell whether any of the counters that were ``wrong`` changes while nothing is done but ``on_others``.

    Each attempt had the ``took`` seconds of the act for others to change them: it is looked for as long as all had.
    """
    names = {name for each in wrong for name in each}
    before, began, looks = read(live), live.host.clock(), 0
    while looks < _LOOKS or live.host.clock() - began < len(wrong) * took:
        live.host.pause(_PAUSE_SECONDS)
        on_others(live)
        now = read(live)
        if any(now[name] != before[name] for name in names):
            return True
        looks += 1
    return False
