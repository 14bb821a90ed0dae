"""What the kernel reads from huge pages and writes into them: O_DIRECT, pipes, other processes."""

import errno

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.hugetlb_files import HugeFile, get_segment
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory, read_of_another
from hugepage_qa.cases.pinned_pages import open_for_direct_io
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

TRANSFER = Area("transfer")
DIRECT = "open(2) O_DIRECT; mm/gup.c, mm/hugetlb.c: what was pinned is unpinned"
BLOCK = 65536


@TRANSFER.case("O_DIRECT carries huge pages to a file and back, and holds no page afterwards", DIRECT, pages=2)
def direct_io(live: Live) -> None:
    memory = live.map(2)
    carry(live, memory)
    live.expect_pool(nr=2, free=0)
    memory.unmap()
    live.expect_pool(nr=2, free=2)


@TRANSFER.case("O_DIRECT carries the pages of a segment to a file and back", f"{DIRECT}; shmat(2)", pages=2)
def direct_io_of_a_segment(live: Live) -> None:
    segment = get_segment(live, 2 * live.size)
    memory, other = segment.attach(), segment.attach(live.actor())
    carry(live, memory)
    live.expect_pool(nr=2, free=0)
    live.expect("words that another process does not see", 0, other.actor.check(other.at(2) - BLOCK, BLOCK, 8, 5))
    for attached in (memory, other):
        segment.detach(attached)
    segment.remove()
    live.expect_pool(nr=2, free=2)


def carry(live: Live, memory: Memory) -> None:
    """Have O_DIRECT carry parts of two pages to a file and back."""
    call = memory.actor.call
    file = HugeFile(live, memory.actor, open_for_direct_io(live, memory.actor))
    half = live.base_page // 2
    # the middle one lies across both pages
    parts = [(place, BLOCK) for place in (memory.address, memory.at(1) - BLOCK // 2, memory.at(2) - BLOCK)]
    if half % file.direct_alignment:
        live.notes.append(f"the disk carries multiples of {file.direct_alignment} bytes, no half base pages")
    else:
        # that begin, or end, within a base page
        parts += [(memory.address + half, BLOCK), (memory.address, BLOCK - half), (memory.address + half, BLOCK - half)]
    for place, length in parts:
        memory.actor.fill(place, length, 8, 5)
        live.expect("bytes written", length, call("pwrite64", file.descriptor, place, length, 0))
        memory.actor.fill(place, length, 8, 0)
        live.expect("bytes read", length, call("pread64", file.descriptor, place, length, 0))
        live.expect("words that changed on the way", 0, memory.actor.check(place, length, 8, 5))


@TRANSFER.case("a page in a pipe stays until it is read, though its mapping has gone", "vmsplice(2)", pages=1)
def page_in_a_pipe(live: Live) -> None:
    memory = live.map(1)
    memory.touch(value=7)
    _value, (ends,) = memory.actor.call_with_buffers("pipe2", bytes(8), 0)
    reader, writer = live.host.uapi.unpack("2i", ends)
    vector = live.host.uapi.pack("2Q", memory.address, 8)
    live.expect("bytes in the pipe", 8, memory.actor.call("vmsplice", writer, vector, 1, 0))
    memory.unmap()
    live.expect_pool(nr=1, free=0, known={Quirk.PINNED_PAGE_UNRESERVED: {"resv": -1}})
    _count, buffers = memory.actor.call_with_buffers("read", reader, bytes(8), 8)
    live.expect("what came out", 7, live.host.uapi.unpack("Q", buffers[0])[0])
    live.expect_pool(nr=1, free=1)


@TRANSFER.case("one process reads and writes the huge pages of another", "process_vm_readv(2)", pages=2)
def pages_of_another_process(live: Live) -> None:
    ours, theirs = live.map(1), live.map(1)
    call = ours.actor.call
    for offset in (0, live.base_page, live.size // 2 + WORD, live.size - WORD):
        local, remote = (
            live.host.uapi.pack("2Q", address, WORD) for address in (ours.address, theirs.address + offset)
        )
        theirs.actor.write(theirs.address + offset, 7 + offset)
        read = read_of_another(live, ours.actor, theirs.actor.pid, local, remote)
        live.expect(f"bytes read at {offset}", WORD, read)
        live.expect(f"what was read at {offset}", 7 + offset, ours.read())
        ours.touch(value=8)
        written = call("process_vm_writev", theirs.actor.pid, local, 1, remote, 1, 0)
        live.expect(f"bytes written at {offset}", WORD, written)
        live.expect(f"what was written at {offset}", 8, theirs.actor.read(theirs.address + offset))
    live.expect_pool(nr=2, free=0)


@TRANSFER.case("a transfer into a page that cannot be had is EFAULT, and no signal", "read(2) EFAULT", pages=1)
def transfer_without_a_page(live: Live) -> None:
    memory = live.map(2, noreserve=True)
    memory.touch(0)
    _value, (ends,) = memory.actor.call_with_buffers("pipe2", bytes(8), 0)
    reader, writer = live.host.uapi.unpack("2i", ends)
    live.expect("bytes written", 8, memory.actor.call("write", writer, bytes(8), 8))
    live.expect_errno(errno.EFAULT, memory.actor.call, "read", reader, memory.at(1), 8)
    live.expect_pool(nr=1, free=0)


class Transfer(LiveTest):
    """Cases on data that moves between huge pages and elsewhere, for every page size of the machine.

    :avocado: enable
    """

    def test_transfer(self) -> None:
        """Every case for every page size."""
        self.run_area(TRANSFER)
