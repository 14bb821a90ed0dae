"""Where segments of huge pages are attached, and what may be done with the memory there."""

import errno
import mmap
import signal

from hugepage_qa.cases.capabilities import become_nobody
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_segments import SHM_EXEC, SHM_RDONLY, SHM_REMAP, SHM_RND, get_segment
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.places import free_place
from hugepage_qa.cases.race import LINE, RACERS, race_to_attach
from hugepage_qa.kernel.uapi import NOBODY
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

ATTACHED = Area("memory/attached-segments")
GET = f"{HUGETLB_DOC} SHM_HUGETLB; shmget(2); ipc/shm.c newseg()"
FAULT = "mm/hugetlb.c hugetlb_fault(), hugetlb_fault_mutex_table"
_ADDRESSES = 1 << 64


@ATTACHED.case(
    "processes that attach a segment at the same moment, fill it, look at it and detach it, with pages that are there"
    " and others, find what they stored; at last nobody has it attached, and each page is given back",
    f"{GET}, shm_open(), shm_close(); shmctl(2) IPC_STAT shm_nattch; {FAULT}",
    sizes=Sizes.BUDDY,
    pages=2,
)
def attached_at_the_same_moment(live: Live) -> None:
    segment = get_segment(live, 2 * live.size)
    live.expect("processes that found what all stored", {RACERS}, race_to_attach(live, segment))
    live.expect("shm_nattch", 0, segment.status().attachments)
    live.expect_pool(nr=2, free=0)
    memory = segment.attach()
    live.expect("words that are there still", memory.length // LINE, memory.nonzero(0, memory.length, LINE))
    live.expect("shm_nattch", 1, segment.status().attachments)
    segment.detach(memory)
    segment.remove()
    live.expect_pool(nr=2, free=2)


@ATTACHED.case(
    "no part of a page of a segment is unmapped or protected alone; whole pages are, and the others stay",
    "shmat(2); munmap(2), mprotect(2) EINVAL; ipc/shm.c shm_may_split()",
    sizes=Sizes.BUDDY,
    pages=3,
)
def parts_of_a_segment(live: Live) -> None:
    segment = get_segment(live, 3 * live.size)
    memory = segment.attach()
    memory.fill()
    call, part = memory.actor.call, live.base_page
    for address, length in ((memory.address, part), (memory.address + part, live.size), (memory.at(2), part)):
        live.expect_errno(errno.EINVAL, call, "munmap", address, length)
        live.expect_errno(errno.EINVAL, call, "mprotect", address, length, mmap.PROT_READ)
    live.expect_pool(nr=3, free=0)
    memory.expect_filled()
    memory.protect(mmap.PROT_READ, 1, 1)
    live.expect_signal(signal.SIGSEGV, memory.touch, 1)
    memory.unmap(1, 1)
    live.expect_signal(signal.SIGSEGV, memory.read, 1)
    for page in (0, 2):
        memory.expect_filled(first=page, pages=1)
        memory.touch(page, 9)
    # the segment keeps what is unmapped
    live.expect_pool(nr=3, free=0)
    again = segment.attach(live.actor())
    again.expect_filled(first=1, pages=1)
    live.expect("what was written", (9, 9), (again.read(0), again.read(2)))
    segment.detach(memory)
    for page in (0, 2):
        live.expect_signal(signal.SIGSEGV, memory.read, page)
    live.expect_pool(nr=3, free=0)


@ATTACHED.case("SHM_RDONLY is to read, and a wrong address is refused", "shmat(2)", pages=1)
def attachments(live: Live) -> None:
    segment = get_segment(live, live.size)
    writer = segment.attach()
    writer.touch(value=5)
    reader = segment.attach(flags=SHM_RDONLY)
    live.expect("what the reader sees", 5, reader.read())
    live.expect_signal(signal.SIGSEGV, reader.touch)
    segment.detach(reader)
    live.expect_errno(errno.EINVAL, segment.attach, None, 0, reader.address + live.base_page)
    live.expect_errno(errno.EINVAL, segment.attach, None, 0, writer.address)
    live.expect_errno(errno.EINVAL, writer.actor.call, "shmdt", writer.address + live.base_page)
    live.expect_pool(nr=1, free=0)


@ATTACHED.case(
    "what is attached to be read is never made writable: EACCES; what is attached to be written is, again and again",
    "shmat(2) SHM_RDONLY; mprotect(2) EACCES; ipc/shm.c do_shmat(); Documentation/filesystems/proc.rst VmFlags mw",
    pages=1,
)
def what_attachments_may_become(live: Live) -> None:
    segment = get_segment(live, live.size)
    for flags in (SHM_RDONLY, 0, SHM_RDONLY | SHM_EXEC, SHM_EXEC):
        memory, reads = segment.attach(flags=flags), bool(flags & SHM_RDONLY)
        for prot in (mmap.PROT_WRITE, READ_WRITE, 0, READ_WRITE, mmap.PROT_READ, READ_WRITE | mmap.PROT_EXEC):
            with live.about(f"attached with flags {flags:#o}, protection {prot}"):
                if reads and prot & mmap.PROT_WRITE:
                    live.expect_errno(errno.EACCES, memory.protect, prot)
                else:
                    live.expect_success(memory.protect, prot)
                live.expect("mw in VmFlags", not reads, "mw" in memory.smaps().flags)
        if reads:
            live.expect_signal(signal.SIGSEGV, memory.touch)
        segment.detach(memory)
    live.expect_pool(nr=1, free=1, resv=1)


@ATTACHED.case("a segment is attached where it is to be; SHM_RND rounds down to base pages alone", "shmat(2)", pages=1)
def chosen_addresses(live: Live) -> None:
    segment = get_segment(live, live.size)
    place = free_place(live, segment.actor, 1)
    for offset, flags in ((0, 0), (0, SHM_RND), (1, SHM_RND), (live.base_page - 1, SHM_RND)):
        memory = segment.attach(flags=flags, address=place + offset)
        live.expect("the address", f"{place:#x}", f"{memory.address:#x}")
        memory.touch(value=offset)
        live.expect("what the page holds", offset, memory.read())
        segment.detach(memory)
    for offset, flags in ((1, 0), (live.base_page, SHM_RND), (live.size - 1, SHM_RND)):
        live.expect_errno(errno.EINVAL, segment.attach, None, flags, place + offset)
    # it would end at address 0, behind the last one
    live.expect_errno(errno.EINVAL, segment.attach, None, 0, _ADDRESSES - live.size)
    live.expect_errno(errno.EINVAL, segment.actor.call, "shmat", -1, 0, 0)
    live.expect_pool(nr=1, free=0)


@ATTACHED.case(
    "SHM_REMAP takes the place of what is mapped there, whose page goes back to the pool, and what is beside it stays;"
    " without it a place that is taken is refused, and it without a place",
    "shmat(2) SHM_REMAP; ipc/shm.c do_shmat()",
    pages=4,
)
def attached_over_memory(live: Live) -> None:
    segment = get_segment(live, live.size)
    memory = live.map(3, segment.actor)
    memory.fill(3)
    live.expect_pool(nr=4, free=1, resv=1)
    live.expect_errno(errno.EINVAL, segment.attach, None, 0, memory.at(1))
    for address in (0, 1):
        live.expect_errno(errno.EINVAL, segment.attach, None, SHM_REMAP | SHM_RND, address)
    live.expect_errno(errno.EINVAL, segment.attach, None, SHM_REMAP, memory.at(1) + live.base_page)
    memory.expect_filled(3)
    live.expect_pool(nr=4, free=1, resv=1)
    attached = segment.attach(flags=SHM_REMAP, address=memory.at(1))
    live.expect("the address", f"{memory.at(1):#x}", f"{attached.address:#x}")
    live.expect_pool(nr=4, free=2, resv=1)
    attached.expect_zero()
    attached.fill(5)
    segment.attach(live.actor()).expect_filled(5)
    segment.detach(attached)
    live.expect_signal(signal.SIGSEGV, memory.read, 1)
    for page in (0, 2):
        memory.expect_filled(3, first=page, pages=1)
    live.expect_pool(nr=4, free=1)


@ATTACHED.case(
    "SHM_EXEC is for who may execute the segment by its mode, and maps it executable; without it nobody may",
    "shmat(2) SHM_EXEC, EACCES; ipc/shm.c do_shmat()",
    pages=1,
)
def executable(live: Live) -> None:
    segment, user = get_segment(live, live.size), live.actor()
    become_nobody(user)
    for flags, needed, permissions in ((SHM_EXEC, 0o700, "rwxs"), (SHM_EXEC | SHM_RDONLY, 0o500, "r-xs")):
        for missing in (0o100, 0o400):
            segment.change(NOBODY, needed & ~missing)
            live.expect_errno(errno.EACCES, segment.attach, user, flags)
        segment.change(NOBODY, needed)
        memory = segment.attach(user, flags)
        live.expect("permissions in smaps", permissions, memory.smaps().permissions)
        segment.detach(memory)
        memory = segment.attach(user, flags & ~SHM_EXEC)
        live.expect("permissions in smaps", permissions.replace("x", "-"), memory.smaps().permissions)
        segment.detach(memory)
    live.expect_pool(nr=1, free=1, resv=1)


@ATTACHED.case("who may only read takes the reserved pages, too, and leaves those that it has not read", GET, pages=3)
def reservations_and_readers(live: Live) -> None:
    segment = get_segment(live, 3 * live.size)
    writer = segment.attach()
    writer.touch(0, 5)
    segment.detach(segment.attach(live.actor(), SHM_RDONLY))
    live.expect_pool(nr=3, free=2, resv=2)
    for page, free in ((0, 2), (1, 1), (1, 1)):
        reader = segment.attach(live.actor(), SHM_RDONLY)
        live.expect("what the reader sees", 5 if page == 0 else 0, reader.read(page))
        live.expect_signal(signal.SIGSEGV, reader.touch, page)
        live.expect_pool(nr=3, free=free, resv=free)
        reader.actor.end()
        live.expect_pool(nr=3, free=free, resv=free)
    writer.touch(2)
    live.expect_pool(nr=3, free=0)


class AttachedSegments(LiveTest):
    def test_attached_segments(self) -> None:
        self.run_area(ATTACHED)
