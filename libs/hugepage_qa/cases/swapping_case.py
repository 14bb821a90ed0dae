"""Cases on control groups whose huge pages may go to swap: each gets a group, and the one above it."""

from collections.abc import Callable
from functools import wraps

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.control_group import ControlGroup
from hugepage_qa.cases.fragmentation import compact_if_short
from hugepage_qa.cases.group_memory import need_exact_charges, swapping_groups
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.swapped import need_swap, swap_to_a_device, zswap_knob
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import set_policy
from hugepage_qa.kernel.proc_tables import read_mounts
from hugepage_qa.machine.host import CannotRun

#: huge pages that a group gets, for which memory is compacted, and swap has room twice
GROUP_PAGES = 6
_LOCALLY = "memory_localevents"
_SWAPPINESS = "proc/sys/vm/swappiness"

#: gets a group, and the one above it
SwappingAct = Callable[[Live, ControlGroup, ControlGroup], None]


def swapping_case(
    area: Area, statement: str, source: str, *, since: str, to_a_device: bool = False
) -> Callable[[SwappingAct], None]:
    """Make the decorated function, which gets a group and the one above it, a case with swap on this machine.

    Swap ``to_a_device`` is that of the case alone, and has huge pages as a whole.
    """

    def register(act: SwappingAct) -> None:
        @wraps(act)
        def in_group(live: Live) -> None:
            need_exact_charges(live)
            room = 2 * GROUP_PAGES * pmd_size(live)
            if to_a_device:
                swap_to_a_device(live, room)
            else:
                need_swap(live, room)
            live.set_knob_if_there(zswap_knob("enabled"), "N")
            # with 0 a group has nothing swapped out for its limits
            live.set_knob(_SWAPPINESS, "100")
            set_policy(live, "madvise")
            compact_if_short(live, pmd_size(live), GROUP_PAGES)
            group, above = swapping_groups(live)
            if any(
                mount.type == "cgroup2" and _LOCALLY in mount.options.split(",") for mount in read_mounts(live.host)
            ):
                raise CannotRun(f"the hierarchy is mounted with {_LOCALLY}: events are those of the group itself alone")
            act(live, group, above)

        area.case(statement, source, since=since)(in_group)

    return register
