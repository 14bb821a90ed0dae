"""Memory in swap that cannot be read any more: files can be emptied and written, and what lies beside it is there."""

import errno
import signal
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.group_memory import actor_in, leave_memory
from hugepage_qa.cases.hugetlb_files import HugeFile
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory, runs, value_or_signal
from hugepage_qa.cases.shared_in_swap import file_in_swap, swapping_group
from hugepage_qa.cases.swapped import swapped
from hugepage_qa.cases.thp_policy import advised
from hugepage_qa.kernel.uapi import FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, MADV_NOHUGEPAGE, MADV_WILLNEED
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

UNREADABLE = Area("swap/unreadable-swap", sizes=Sizes.ONCE)

#: huge pages of swap
_ROOM = 24
#: below 0 what smaps shows is so much more
_WRAP = 1 << 64

#: where pagemap tells in which base page of swap what is not in memory is, as far as there is one type of swap
_SLOT, _SLOTS = 5, (1 << 50) - 1
#: base pages that are read together (SWAP_CLUSTER_MAX)
_BATCH = 32

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
            memory, descriptor, _point = file_in_swap(live, group, huge, 1)
            file = HugeFile(live, memory.actor, descriptor)
            if is_read:
                live.expect("bytes read", 1, _read(file, 0))
            device.lose(live.base_page)
            answers = [_read(file, place) for place in range(0, memory.length, live.base_page)]
            lost = memory.length - live.base_page * is_read
            live.expect("bytes that cannot be read", lost, answers.count(-errno.EIO) * live.base_page)
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


@UNREADABLE.case(
    "base pages in swap whose blocks cannot be read any more are lost, and no others: not what lies beside them in swap"
    " and is read ahead with them, by a fault or MADV_WILLNEED",
    "madvise(2) MADV_WILLNEED; Documentation/admin-guide/sysctl/vm.rst page-cluster; mm/swap_state.c"
    " swap_cluster_readahead(); mm/page_io.c swap_read_folio()",
    since="6.0",
)
def beside_bad_blocks(live: Live) -> None:
    group, device = swapping_group(live, _ROOM)
    lost, in_batch = dict[str, list[range]](), dict[str, list[range]]()
    for cluster, advice in (("0", None), ("3", None), ("5", None), ("0", MADV_WILLNEED)):
        live.set_knob("proc/sys/vm/page-cluster", cluster)
        actor = actor_in(live, group)
        # what else it has stays out of swap
        actor.call("mlockall", live.host.uapi.mcl_current)
        memory = advised(live, 1, MADV_NOHUGEPAGE, actor=actor)
        memory.fill()
        leave_memory(live, memory, group)
        slots = [entry >> _SLOT & _SLOTS for entry in memory.whole_pagemap()]
        bad = sorted(slots)[len(slots) * 5 // 8]
        device.lose(bad * live.base_page)
        if advice is not None:
            memory.advise(advice)
        row = f"page-cluster {cluster}, {'MADV_WILLNEED' if advice else 'faults alone'}"
        with live.about(row):
            gone = {slot for number, slot in reversed([*enumerate(slots)]) if _is_lost(live, memory, number)}
            live.expect("whether what cannot be read is told", True, gone >= {slot for slot in slots if slot >= bad})
        lost[row] = runs({slot for slot in gone if slot < bad})
        in_batch[row] = runs({slot for slot in gone if bad - _BATCH < slot < bad})
        actor.end()
    right = {row: list[range]() for row in lost}
    subject = "base pages that are lost though their blocks can be read"
    live.expect(subject, right, lost, {Quirk.BAD_BLOCK_TAKES_NEIGHBOURS: in_batch})


def _is_lost(live: Live, memory: Memory, number: int) -> bool:
    """Tell whether a base page cannot be read; expect it to hold what it was filled with otherwise."""
    place = number * live.base_page
    found = value_or_signal(partial(memory.actor.read, memory.address + place))
    is_lost = found == signal.SIGBUS.name
    live.expect(f"what base page {number} holds, where it can be read", found if is_lost else 1 + place, found)
    return is_lost


class ThpUnreadableSwap(LiveTest):
    def test_unreadable_swap(self) -> None:
        self.run_area(UNREADABLE)
