"""Statistics of memory that a control group shows in its files, line by line; the kernel adds them up later."""

from collections.abc import Mapping
from functools import partial
from operator import eq

from hugepage_qa.cases.control_group import ControlGroup
from hugepage_qa.cases.live import Live

#: statistics of a group are added up every two seconds (mm/memcontrol.c FLUSH_TIME)
ADDED_UP_SECONDS = 6.0
_STAT = "memory.stat"
_COLLAPSES = "thp_collapse_alloc"


def expect_statistics(live: Live, group: ControlGroup, expected: Mapping[str, int], file: str = _STAT) -> None:
    """Expect ``file`` of ``group`` to show these numbers, by names as ``read_statistics`` has them."""

    def found() -> dict[str, int | None]:
        shown = read_statistics(group, file)
        return {name: shown.get(name) for name in expected}

    statistics = live.host.last_look(found, partial(eq, expected), ADDED_UP_SECONDS)
    live.expect(f"{file} of {group.path}", dict(expected), statistics)


def collapses(group: ControlGroup) -> int:
    """Return how many huge pages were made of what ``group`` is charged for, 0 where the kernel does not tell."""
    return read_statistics(group).get(_COLLAPSES, 0)


def expect_collapses(live: Live, group: ControlGroup, least: int) -> None:
    """Expect ``group`` to show that ``least`` huge pages, or more, were made of what it is charged for."""
    live.host.wait_until(lambda: collapses(group) >= least, ADDED_UP_SECONDS)
    live.expect(f"{_COLLAPSES} of {group.path}, {least} at least", least, min(least, collapses(group)))


def read_statistics(group: ControlGroup, file: str = _STAT) -> dict[str, int]:
    """Return the number of each line by its name, and that of a node by both names: ``anon N0``."""
    shown = dict[str, int]()
    for line in (group.read(file) or "").splitlines():
        name, *words = line.replace("=", " ").split()
        if len(words) % 2:
            shown[name] = int(words.pop(0))
        for node, number in zip(words[::2], words[1::2], strict=True):
            shown[f"{name} {node}"] = int(number)
    return shown
