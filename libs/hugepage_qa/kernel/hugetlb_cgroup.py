"""Controllers of control groups, the files of the one for hugetlb, and what they hold.

Documentation/admin-guide/cgroup-v1/hugetlb.rst and cgroup-v2.rst, HugeTLB; mm/hugetlb_cgroup.c.
"""

import re
from dataclasses import dataclass

from hugepage_qa.kernel.tree import Tree, malformed, parse_integer
from hugepage_qa.sizes import GIB, KIB, MIB

_EVENT = re.compile(r"max (?P<number>[0-9]{1,20})")
_HIERARCHICAL = "hierarchical_"
_NUMA_STAT = re.compile(r"(?P<name>total|N[0-9]{1,5})=(?P<number>[0-9]{1,20})")


@dataclass(frozen=True)
class HugetlbFiles:
    """How one version of the controller names its files; ``unlimited`` is what is written to take a limit away.

    Version 1 counts refused charges of pages and of reservations apart, version 2 in one file.
    """

    limit: str
    usage: str
    unlimited: str
    refusals: str
    refused_reservations: str | None


VERSION_1 = HugetlbFiles("limit_in_bytes", "usage_in_bytes", "-1", "failcnt", "rsvd.failcnt")
VERSION_2 = HugetlbFiles("max", "current", "max", "events", None)

#: before the names of the files that count reservations, since Linux 5.7
RESERVATIONS = "rsvd."


@dataclass(frozen=True)
class Controller:
    """The number of the hierarchy of version 1 that a controller has, 0 without one, and the groups in it.

    Dying groups are included, as is the root. (/proc/cgroups, cgroups(7))
    """

    hierarchy: int
    groups: int
    enabled: bool


def read_controllers(tree: Tree) -> dict[str, Controller]:
    """Return the controllers that the kernel has, by name; none without control groups."""
    lines = [line.split() for line in (tree.read("proc/cgroups") or "").splitlines() if not line.startswith("#")]
    return {name: Controller(int(hierarchy), int(groups), on == "1") for name, hierarchy, groups, on, *_ in lines}


def file_prefix(size: int) -> str:
    """Return what the names of the files for pages of ``size`` bytes start with (mem_fmt()): ``hugetlb.2MB.``."""
    for unit, suffix in ((GIB, "GB"), (MIB, "MB")):
        if size >= unit:
            return f"hugetlb.{size // unit}{suffix}."
    return f"hugetlb.{size // KIB}KB."


def read_refusals(tree: Tree, path: str) -> int:
    """Return how many charges were refused, from ``failcnt`` or ``events``. Raises InputError for another form."""
    text = (tree.read(path) or "").strip()
    event = _EVENT.fullmatch(text)
    return int(event["number"]) if event else parse_integer(text, path)


def read_numa_stat(tree: Tree, path: str, *, with_groups_below: bool = False) -> dict[str, int] | None:
    """Return ``total`` and ``N<node>`` -> bytes in use, of a group without those below it in version 1.

    Version 1 has them in a second line, which is the one ``with_groups_below``; in version 2 there is no other.
    None before Linux 5.17, which has no such file. Raises InputError for another form.
    """
    text = tree.read(path)
    if text is None:
        return None
    first, _newline, second = text.partition("\n")
    line = second.removeprefix(_HIERARCHICAL).rstrip("\n") if with_groups_below and second else first
    words = [_NUMA_STAT.fullmatch(word) or malformed(path, 1, line, "words such as N0=0") for word in line.split()]
    return {word["name"]: int(word["number"]) for word in words}
