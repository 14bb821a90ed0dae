"""Hugetlb pages that count as memory of their group: the hierarchy mounted so, and groups of both controllers."""

from hugepage_qa.cases.control_group import CHARGED_AHEAD, Version, new_group
from hugepage_qa.cases.hugetlb_group import HugetlbGroup
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.proc_tables import read_mounts
from hugepage_qa.machine.host import CannotRun

ACCOUNTING = "memory_hugetlb_accounting"
#: what else a hierarchy of version 2 is mounted with (Documentation/admin-guide/cgroup-v2.rst Mounting)
_OPTIONS = ("nsdelegate", "favordynmods", "memory_localevents", "memory_recursiveprot", "pids_localevents", ACCOUNTING)


def mount_with_accounting(live: Live) -> None:
    """Mount the hierarchy of version 2 with memory_hugetlb_accounting until the case ends.

    It is one hierarchy with one set of options, wherever it is mounted. Raises CannotRun where others have groups in
    it, whom that would concern, too.
    """
    mounts = [mount for mount in read_mounts(live.host) if mount.type == "cgroup2"]
    if not mounts:
        raise CannotRun("no hierarchy of version 2 is mounted")
    if "nr_descendants 0" not in (live.host.read(f"{mounts[0].point}/cgroup.stat") or "").splitlines():
        raise CannotRun("others have control groups, which the option would concern, too")
    before = [word for word in mounts[0].options.split(",") if word in _OPTIONS]

    def mount_as_before() -> None:
        live.host.unmount(live.host.mount(",".join(before), "cgroup2"))

    live.when_actors_have_ended(mount_as_before)
    live.mount_other(",".join([*before, ACCOUNTING]), "cgroup2")


def mount_options(live: Live) -> list[list[str]]:
    """Return the options of each mount of the hierarchy of version 2."""
    return [mount.options.split(",") for mount in read_mounts(live.host) if mount.type == "cgroup2"]


def need_small_charges(live: Live) -> None:
    """Raise CannotRun where two CPUs may be charged for as much as half a page that nobody has."""
    if 4 * CHARGED_AHEAD * live.base_page > live.size:
        raise CannotRun(f"each CPU may be charged for {CHARGED_AHEAD} base pages that nobody has, as much as a page")


def accounted_group(live: Live) -> HugetlbGroup:
    """Return a group that has both controllers, and whose hugetlb pages count as its memory.

    Raises CannotRun where the machine cannot have that.
    """
    need_small_charges(live)
    mount_with_accounting(live)
    # the other controller is handed down for the whole case, too
    new_group(live, "hugetlb", Version.TWO).remove()
    return HugetlbGroup(live, new_group(live, "memory", Version.TWO))
