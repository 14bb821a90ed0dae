"""What /proc/mounts shows of the options of a mount."""

from collections.abc import Mapping

from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.proc_tables import find_mount
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.sizes import KIB, MIB


def mounted_options(live: Live, point: str) -> Mapping[str, str]:
    """Return the options of the mount at ``point`` by name; one without a value is empty."""
    mount = find_mount(ObservedTree(live.host), point)
    return mount.by_name if mount else {}


def shown_page_size(live: Live) -> str:
    """Return the page size of a hugetlbfs as its pagesize= is shown (hugetlbfs_show_options())."""
    return f"{live.size // MIB}M" if live.size >= MIB else f"{live.size // KIB}K"
