"""A control group with the hugetlb controller, as a case on one page size sees it: everything counts in pages."""

from collections.abc import Callable, Mapping
from functools import wraps

from hugepage_qa.kernel.hugetlb_cgroup import (
    RESERVATIONS,
    VERSION_1,
    VERSION_2,
    file_prefix,
    read_numa_stat,
    read_refusals,
)
from hugepage_qa.kernel.values import parse_integer
from hugepage_qa.live.control_group import ControlGroup, Version, new_group
from hugepage_qa.live.host import ObservedTree
from hugepage_qa.live.live import Live
from hugepage_qa.model.known import Quirk

#: counters of 64-bit kernels that fall below 0 go on from here
_UNSIGNED_LONG = 1 << 64


class HugetlbGroup:
    """What a group uses and may use of the pages of ``live``."""

    def __init__(self, live: Live, group: ControlGroup) -> None:
        self._live = live
        self._files = VERSION_1 if group.version is Version.ONE else VERSION_2
        self._prefix = file_prefix(live.size)
        self.group = group
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

    def write_limit(self, amount: int | None, kind: str = "") -> None:
        """Write a limit in bytes, of pages in use or (``RESERVATIONS``) of reserved ones. Raises OSError."""
        text = self._files.unlimited if amount is None else str(amount)
        self.group.write(f"{self._prefix}{kind}{self._files.limit}", text)

    def read_limit(self, kind: str = "") -> str:
        """Return what the limit reads as."""
        return self._text(f"{kind}{self._files.limit}")

    def expect(self, *, usage: int, reserved: int, refusals: int = 0, refused_reservations: int = 0) -> None:
        """Expect what the group and those below it use and reserve in pages, and how many charges were refused."""
        expect = self._live.expect
        expect(f"usage of {self.group.path}", usage * self._live.size, self._number(self._files.usage))
        found = self._number(f"{RESERVATIONS}{self._files.usage}")
        expect(f"reservations of {self.group.path}", reserved * self._live.size, found)
        self._expect_refusals(refusals, refused_reservations)

    def expect_on_nodes(self, pages: int, known: Mapping[Quirk, int] | None = None) -> None:
        """Expect ``pages`` of the group itself in numa_stat, where the kernel has it, and that its nodes add up.

        ``known`` tells how many the nodes have with a known bug; what is below 0 wraps. Raises KnownBug.
        """
        found = read_numa_stat(ObservedTree(self._live.host), self._path("numa_stat"))
        if found is None:
            return
        total = found.pop("total")
        nodes = [count - _UNSIGNED_LONG if count >= _UNSIGNED_LONG // 2 else count for count in found.values()]
        deviations = {quirk: count * self._live.size for quirk, count in (known or {}).items()}
        self._live.expect("nodes in numa_stat", pages * self._live.size, sum(nodes), deviations)
        self._live.expect("nodes below 0 in numa_stat", [], [count for count in nodes if count < 0])
        self._live.expect("total in numa_stat", pages * self._live.size, total)

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


GroupAct = Callable[[Live, HugetlbGroup], None]


def in_new_hugetlb_group(act: GroupAct, version: Version) -> Callable[[Live], None]:
    """Return ``act`` as what a case does: with a group of its own, made as ``control_group.new_group`` does."""

    @wraps(act)
    def in_group(live: Live) -> None:
        act(live, HugetlbGroup(live, new_group(live, "hugetlb", version)))

    return in_group
