"""Limits of memory and of swap that groups of version 2 are given: each is what was written to it, and no other is."""

import errno

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.live import Live
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import MIB

WRITTEN_LIMITS = Area("cgroup/written-limits", sizes=Sizes.ONCE)

#: with what a new group has; those of swap are not there without swap, nor those of zswap without zswap
_LIMITS = {
    "memory.min": "0",
    "memory.low": "0",
    "memory.high": "max",
    "memory.max": "max",
    "memory.swap.high": "max",
    "memory.swap.max": "max",
    "memory.zswap.max": "max",
}


@WRITTEN_LIMITS.case(
    "each limit of memory, swap and zswap is what was last written to it, a number of bytes or max, and what is no"
    " number is EINVAL; the other limits of the group stay as they are, and so do those of the one above it, or below",
    "Documentation/admin-guide/cgroup-v2.rst memory.min, memory.low, memory.high, memory.max, memory.swap.high,"
    " memory.swap.max, memory.zswap.max; mm/page_counter.c page_counter_memparse()",
)
def each_limit_alone(live: Live) -> None:
    above = new_group(live, "memory", Version.TWO)
    groups = {"the one above": above, "the group": above.child("below")}
    expected = {name: {limit: text for limit, text in _LIMITS.items() if above.read(limit)} for name in groups}
    _expect_limits(live, groups, expected)
    for name, group in groups.items():
        for number, limit in enumerate(expected[name], start=1):
            # whole base pages, and more than the groups use. In the end each limit has a number of its own
            for text in (str(512 * MIB), "max", str(16 * number * MIB)):
                with live.about(f"{text} written to {limit} of {name}"):
                    group.write(limit, text)
                    expected[name][limit] = text
                    _expect_limits(live, groups, expected)
            with live.about(f"{limit} of {name}"):
                live.expect_errno(errno.EINVAL, group.write, limit, "1x")
                _expect_limits(live, groups, expected)


def _expect_limits(live: Live, groups: dict[str, ControlGroup], expected: dict[str, dict[str, str]]) -> None:
    for name, limits in expected.items():
        found = {limit: (groups[name].read(limit) or "").strip() for limit in limits}
        wrong = [limit for limit, text in limits.items() if found[limit] != text]
        live.expect(f"limits of {name} that are wrong", {}, {limit: found[limit] for limit in wrong})


class WrittenLimits(LiveTest):
    def test_written_limits(self) -> None:
        self.run_area(WRITTEN_LIMITS)
