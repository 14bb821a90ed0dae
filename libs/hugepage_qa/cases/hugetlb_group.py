"""Control groups with the hugetlb controller, whose limits and use count in pages, and cases that are about them."""

import os
from collections.abc import Callable, Mapping
from functools import partial, wraps

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup, Version, Watch, new_group
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import move_page
from hugepage_qa.kernel.hugetlb_cgroup import (
    RESERVATIONS,
    VERSION_1,
    VERSION_2,
    file_prefix,
    read_numa_stat,
    read_refusals,
)
from hugepage_qa.kernel.tree import parse_integer
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.process.actor import Actor
from hugepage_qa.version import KernelVersion

#: where the rules of the hugetlb controller are from
V1_DOC = "Documentation/admin-guide/cgroup-v1/hugetlb.rst"
V2_DOC = "Documentation/admin-guide/cgroup-v2.rst"
HUGETLB_CGROUP = "mm/hugetlb_cgroup.c"

#: counters of 64-bit kernels that fall below 0 go on from here
_UNSIGNED_LONG = 1 << 64
#: f47761999052
_NUMA_STAT_SINCE = KernelVersion(5, 17)
#: file of version 1
_HIGHEST = "max_usage_in_bytes"


class HugetlbGroup:
    """What a group uses and may use of the pages of ``live``."""

    def __init__(self, live: Live, group: ControlGroup) -> None:
        self._live = live
        self._files = VERSION_1 if group.version is Version.ONE else VERSION_2
        self._prefix = file_prefix(live.size)
        self.group = group
        self.actor = group.actor
        self.add = group.add
        self.remove = group.remove

    def child(self, name: str) -> "HugetlbGroup":
        """Make a group below this one. Raises OSError."""
        return HugetlbGroup(self._live, self.group.child(name))

    def limit(self, pages: int | None) -> None:
        """Let the group use at most ``pages`` pages, with None as many as there are. Raises OSError."""
        self.write_limit(None if pages is None else pages * self._live.size)

    def limit_reservations(self, pages: int | None) -> None:
        """Let the group reserve at most ``pages`` pages, with None as many as there are. Raises OSError."""
        self.write_limit(None if pages is None else pages * self._live.size, RESERVATIONS)

    def write_limit(self, amount: int | str | None, kind: str = "") -> None:
        """Write a limit in bytes, or a text, of pages in use or (``RESERVATIONS``) of reserved ones. Raises OSError."""
        text = self._files.unlimited if amount is None else str(amount)
        self.group.write(f"{self._prefix}{kind}{self._files.limit}", text)

    def read_limit(self, kind: str) -> str:
        """Return what the limit reads as."""
        return self._text(f"{kind}{self._files.limit}")

    def expect(self, *, usage: int, reserved: int, refusals: int = 0, refused_reservations: int = 0) -> None:
        """Expect what the group and those below it use and reserve in pages, and how many charges were refused."""
        self.expect_charged(usage=usage, reserved=reserved)
        self._expect_refusals(refusals, refused_reservations)

    def expect_charged(self, *, usage: int, reserved: int) -> None:
        """Expect what the group and those below it use and reserve, in pages, whatever was refused."""
        self.expect_usage(usage)
        found = self._number(f"{RESERVATIONS}{self._files.usage}")
        self._live.expect(f"reservations of {self.group.path}", reserved * self._live.size, found)

    def expect_usage(self, pages: int, known: Mapping[Quirk, int] | None = None) -> None:
        """Expect what the group and those below it use, in pages; ``known`` is that with a bug. Raises KnownBug."""
        deviations = {quirk: count * self._live.size for quirk, count in (known or {}).items()}
        found = self._number(self._files.usage)
        self._live.expect(f"usage of {self.group.path}", pages * self._live.size, found, deviations)

    def expect_highest(self, *, usage: int, reserved: int) -> None:
        """Expect the most that a group of version 1 used and reserved, in pages, since that was reset."""
        for kind, pages in (("", usage), (RESERVATIONS, reserved)):
            name = f"{kind}{_HIGHEST}"
            self._live.expect(f"{name} of {self.group.path}", pages * self._live.size, self._number(name))

    def reset(self, kind: str = "") -> None:
        """Reset the highest use of a group of version 1, and its refused charges: of pages or of reservations.

        Raises OSError.
        """
        for name in (_HIGHEST, self._files.refusals):
            self.group.write(f"{self._prefix}{kind}{name}", "0")

    def watch(self, actor: Actor) -> Watch:
        """Have ``actor`` watch the refused charges of a group of version 2, and of those below it. Raises OSError."""
        return Watch(actor, self._live.open(actor, self._path(self._files.refusals), os.O_RDONLY))

    def expect_on_nodes(
        self,
        pages: int,
        known: Mapping[Quirk, int] | None = None,
        *,
        with_groups_below: bool = False,
        seconds: float = 0,
    ) -> None:
        """Expect ``pages`` of the group in numa_stat, which kernels have since 5.17, and that its nodes add up.

        They are its own in version 1, unless it is to be ``with_groups_below``, and always with those in version 2.
        ``known`` tells how many the nodes have with a known bug; what is below 0 wraps. They may take ``seconds`` to
        come there. Raises KnownBug.
        """

        def is_there(found: dict[str, int] | None) -> bool:
            return found is None or found["total"] == pages * self._live.size

        look = partial(self._numa_stat, with_groups_below=with_groups_below)
        found = self._live.host.last_look(look, is_there, seconds)
        if found is None:
            return
        total = found.pop("total")
        nodes = [count - _UNSIGNED_LONG if count >= _UNSIGNED_LONG // 2 else count for count in found.values()]
        deviations = {quirk: count * self._live.size for quirk, count in (known or {}).items()}
        self._live.expect("nodes in numa_stat", pages * self._live.size, sum(nodes), deviations)
        self._live.expect("nodes below 0 in numa_stat", [], [count for count in nodes if count < 0])
        self._live.expect("total in numa_stat", pages * self._live.size, total)

    def expect_on_node(self, node: int, pages: int, known: Mapping[Quirk, int] | None = None) -> None:
        """Expect ``pages`` of the group itself on ``node`` in numa_stat, which kernels have since 5.17.

        ``known`` tells how many there are with a known bug. Raises KnownBug.
        """
        found = self._numa_stat()
        if found is not None:
            deviations = {quirk: count * self._live.size for quirk, count in (known or {}).items()}
            self._live.expect(f"N{node} in numa_stat", pages * self._live.size, found.get(f"N{node}"), deviations)

    def _numa_stat(self, *, with_groups_below: bool = False) -> dict[str, int] | None:
        """Return what numa_stat tells, None before it came. Raises Failed where a kernel that has it shows none."""
        path = self._path("numa_stat")
        found = read_numa_stat(ObservedTree(self._live.host), path, with_groups_below=with_groups_below)
        if found is None and self._live.kernel_version >= _NUMA_STAT_SINCE:
            self._live.fail(path, "a file", "none")
        return found

    def _expect_refusals(self, pages: int, reservations: int) -> None:
        apart = self._files.refused_reservations
        expected = {self._files.refusals: pages if apart else pages + reservations}
        if apart:
            expected[apart] = reservations
        for name, count in expected.items():
            found = read_refusals(ObservedTree(self._live.host), self._path(name))
            self._live.expect(f"{name} of {self.group.path}", count, found)

    def _path(self, name: str) -> str:
        return f"{self.group.path}/{self._prefix}{name}"

    def _text(self, name: str) -> str:
        return (self.group.read(f"{self._prefix}{name}") or "").strip()

    def _number(self, name: str) -> int:
        return parse_integer(self._text(name), self._path(name))


def charged_page_that_moved(live: Live, group: HugetlbGroup) -> tuple[Memory, int]:
    """Return a page of a process of ``group`` that moved to another node, and that node. Raises CannotRun."""
    if not live.nodes[1:]:
        raise CannotRun("pages move between nodes, of which this machine has one")
    for node in live.nodes:
        live.reserve(1, node)
    memory = live.map(1, group.actor(), noreserve=True)
    memory.touch()
    here = next(iter(memory.numa_maps().nodes))
    there = next(node for node in live.nodes if node != here)
    live.expect("status of move_pages", there, move_page(memory, 0, there))
    return memory, there


GroupAct = Callable[[Live, HugetlbGroup], None]


def hugetlb_case(
    areas: Mapping[Version, Area],
    statement: str,
    source: str,
    *,
    pages: int = 0,
    sizes: Sizes = Sizes.EACH,
    since: str | None = None,
) -> Callable[[GroupAct], GroupAct]:
    """Make the decorated function a case for both versions of the hierarchy, each of which has an area of its own.

    It gets a group of its own, made as ``new_group`` does.
    """

    def register(act: GroupAct) -> GroupAct:
        for version, area in areas.items():
            area.case(statement, source, pages=pages, sizes=sizes, since=since)(_in_new_group(act, version))
        return act

    return register


def _in_new_group(act: GroupAct, version: Version) -> Callable[[Live], None]:
    @wraps(act)
    def in_group(live: Live) -> None:
        act(live, HugetlbGroup(live, new_group(live, "hugetlb", version)))

    return in_group
