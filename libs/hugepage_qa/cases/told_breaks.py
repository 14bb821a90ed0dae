"""What the kernel says and counts of a page frame that breaks: an error, a line of the log, counters."""

from collections.abc import Collection
from typing import Final

from hugepage_qa.cases.broken_memory import ACTION, ALREADY, hard_offline, told_of
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.nodes import node_directories
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.machine.host import ObservedTree

# mm/memory-failure.c memory_failure(): an action that is told like others since 6.11 (b8b9488d50b7), for pages of a
# pool since a148a2040191, which older series have, too, and which tells whether the same base page broke before
#: what the log has of a base page that broke before
THE_SAME: Final = frozenset({ALREADY, f"{ACTION}already poisoned page: Failed"})
_STATS = "memory_failure"


def expect_break(live: Live, frame: int, words: Collection[str], error: int = 0) -> None:
    """Break a frame and expect ``error``, 0 for none, and one of ``words`` in the log, once, and no other of it."""
    live.host.skip_kernel_log()
    if error:
        live.expect_errno(error, hard_offline, live, frame)
    else:
        hard_offline(live, frame)
    expect_told(live, frame, words)


def expect_told(live: Live, frame: int, words: Collection[str]) -> None:
    """Expect the log to tell one of ``words`` of a frame, once, and nothing else."""
    told = told_of(live, frame)
    is_right = len(told) == 1 and told[0] in words
    live.expect("what the log tells", told if is_right else sorted(words), told)


def failure_stats(live: Live) -> dict[str, int]:
    """Return what all nodes together have counted; before Linux 6.4, and without nodes, nothing."""
    directories = [f"{path}/{_STATS}" for path in node_directories(live.host).values()]
    names = {name for directory in directories for name in live.host.names(directory)}
    tree = ObservedTree(live.host)
    return {name: sum(read_integer(tree, f"{directory}/{name}") or 0 for directory in directories) for name in names}


def expect_stats(live: Live, before: dict[str, int], outcome: str | None) -> None:
    """Expect one base page more to have been counted, among those with ``outcome``, and no other; none without it."""
    found = {name: count - before[name] for name, count in failure_stats(live).items()}
    counted = () if outcome is None else ("total", outcome)
    live.expect("memory_failure of the nodes", {name: int(name in counted) for name in before}, found)
