"""Files of a tmpfs in swap that cannot be read any more: they can be emptied, and hold what is written then."""

import errno
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import HugeFile
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.shared_in_swap import file_in_swap, swapping_group
from hugepage_qa.cases.swapped import swapped
from hugepage_qa.kernel.uapi import FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

UNREADABLE = Area("thp/unreadable-swap", sizes=Sizes.ONCE)

#: huge pages of swap
_ROOM = 24
#: below 0 what smaps shows is so much more
_WRAP = 1 << 64

#: what a read of its first byte and a write of it return, its blocks and its swap, in bytes
Emptied = tuple[int, int, int, int]


def _truncate(file: HugeFile, length: int) -> None:
    for size in (0, length):
        file.actor.call("ftruncate", file.descriptor, size)


def _punch(file: HugeFile, length: int) -> None:
    file.actor.call("fallocate", file.descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, length)


@UNREADABLE.case(
    "a file of a tmpfs that was swapped out, huge pages or base pages, and cannot be read from swap any more, all of it"
    " or all but what was read before, is empty when it was emptied: it has no blocks, nothing of it is in swap, and it"
    " reads as zeroes and can be written",
    "ftruncate(2); fallocate(2) FALLOC_FL_PUNCH_HOLE; mm/shmem.c shmem_recalc_inode(), shmem_set_folio_swapin_error()",
    since="6.0",
)
def emptied(live: Live) -> None:
    group, device = swapping_group(live, _ROOM)
    live.set_knob("proc/sys/vm/page-cluster", "0")
    found, known = dict[str, Emptied](), dict[str, Emptied]()
    for huge, is_read, empty in product(("never", "always"), (False, True), (_truncate, _punch)):
        row = f"huge={huge}, {'one base page' if is_read else 'nothing'} read before, {empty.__name__.strip('_')}"
        with live.about(row):
            memory, descriptor = file_in_swap(live, group, huge, 1)
            file = HugeFile(live, memory.actor, descriptor)
            if is_read:
                live.expect("bytes read", 1, _read(file, 0))
            device.lose(live.base_page)
            answers = [_read(file, place) for place in range(0, memory.length, live.base_page)]
            lost = answers.count(-errno.EIO) * live.base_page
            live.expect("bytes that cannot be read", memory.length - live.base_page * is_read, lost)
        empty(file, memory.length)
        found[row] = _as_it_is(file, memory)
        stays = empty is _truncate and not is_read
        known[row] = (-errno.EIO, -errno.EIO, memory.length, 0) if stays else (0, 1, 0, _WRAP - lost)
        memory.actor.end()
    right = dict.fromkeys(found, (0, 1, 0, 0))
    live.expect("what is read and written, blocks and swap", right, found, {Quirk.UNREADABLE_SWAP_COUNTED_TWICE: known})


def _read(file: HugeFile, place: int) -> int:
    """Return what pread64(2) of a byte returns, or the error with a minus sign."""
    return file.actor.result("pread64", file.descriptor, bytes(1), 1, place)


def _as_it_is(file: HugeFile, memory: Memory) -> Emptied:
    blocks, swap = file.blocks, swapped(memory)
    answer, (*_buffers, content) = file.actor.result_with_buffers("pread64", file.descriptor, bytes(1), 1, 0)
    return (
        content[0] if answer == 1 else answer,
        file.actor.result("pwrite64", file.descriptor, b"x", 1, 0),
        blocks,
        swap,
    )


class ThpUnreadableSwap(LiveTest):
    def test_unreadable_swap(self) -> None:
        self.run_area(UNREADABLE)
