"""Pages of each size where the default size is one that was chosen at boot."""

import mmap
from collections.abc import Callable, Mapping

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd, new_memfd_of_no_size, open_file
from hugepage_qa.cases.hugetlb_segments import get_segment, get_segment_of_no_size
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.uapi import AT_FDCWD, MAP_HUGETLB
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import format_size, parse_size

CHOSEN = "1G"
CHOSEN_DEFAULT = Area("pool/chosen-default", words=f"default_hugepagesz={CHOSEN}")
#: how memory of huge pages is had
Kinds = Mapping[str, Callable[[Live], Memory]]
_DOC = f"{HUGETLB_DOC} default_hugepagesz"


def _need_the_chosen_size(live: Live) -> None:
    if parse_size(CHOSEN) not in live.sizes:
        raise CannotRun(f"the machine has no pages of {CHOSEN}")


def _of_a_file_on(live: Live, point: str) -> Memory:
    """Map a file on ``point``, which goes with the actor."""
    path = f"{point}/file"
    file = open_file(live, path)
    file.actor.call("unlinkat", AT_FDCWD, path, 0)
    return file.map(1)


OF_A_SIZE: Kinds = {
    "MAP_HUGE_*": lambda live: live.map(1),
    "MFD_HUGE_*": lambda live: new_memfd(live).map(1),
    "SHM_HUGE_*": lambda live: get_segment(live, live.size).attach_for_good(),
    "a mount with pagesize=": lambda live: _of_a_file_on(live, live.mount()),
}


def _mapping(live: Live) -> Memory:
    actor = live.actor()
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB
    return Memory(live, actor, actor.mmap(live.size, READ_WRITE, flags), 1, live.size)


OF_NO_SIZE: Kinds = {
    "MAP_HUGETLB": _mapping,
    "MFD_HUGETLB": lambda live: new_memfd_of_no_size(live).map(1),
    "SHM_HUGETLB": lambda live: get_segment_of_no_size(live).attach_for_good(),
    "a mount": lambda live: _of_a_file_on(live, live.mount_other("", "hugetlbfs")),
}


@CHOSEN_DEFAULT.case(
    "pages of each size are had as a mapping, a file and a segment, and come out of their own pool, whichever size is"
    " the default",
    f"{_DOC}; mmap(2) MAP_HUGE_*; memfd_create(2); shmget(2); fs/hugetlbfs/inode.c init_hugetlbfs_fs()",
    pages=1,
)
def pages_of_each_size(live: Live) -> None:
    _need_the_chosen_size(live)
    _expect_taken(live, OF_A_SIZE)


@CHOSEN_DEFAULT.case(
    "what names no size has pages of the chosen one, and vm.nr_hugepages and /proc/meminfo are about its pool",
    f"{_DOC}, Hugepagesize; fs/hugetlbfs/inode.c hugetlb_file_setup(); mm/hugetlb.c hugetlb_sysctl_handler()",
    sizes=Sizes.DEFAULT,
    pages=1,
)
def pages_of_no_size(live: Live) -> None:
    _need_the_chosen_size(live)
    shown = read_meminfo(ObservedTree(live.host)).get("Hugepagesize")
    live.expect("Hugepagesize of /proc/meminfo, in bytes", parse_size(CHOSEN), shown)
    _expect_taken(live, OF_NO_SIZE)
    live.expect_sysctl(1)


def _expect_taken(live: Live, kinds: Kinds) -> None:
    """Expect each of ``kinds`` to take one page of the pool, to show its size, and no page of another pool."""
    others = [live.of_size(size) for size in live.sizes if size != live.size]
    for name, new in kinds.items():
        with live.about(f"{name}, pages of {format_size(live.size)}"):
            memory = new(live)
            live.expect_pool(nr=1, free=1, resv=1)
            memory.touch()
            live.expect_pool(nr=1, free=0)
            live.expect("KernelPageSize", live.size, memory.smaps().kernel_page_size)
            for other in others:
                other.expect_pool(nr=0, free=0)
            memory.actor.end()
            live.expect_pool(nr=1, free=1)


class ChosenDefault(LiveTest):
    def test_chosen_default(self) -> None:
        self.run_area(CHOSEN_DEFAULT)
