"""Rings of io_uring(7) in huge pages of their user: they work, and have the pages until they are closed."""

from dataclasses import dataclass

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.pinned_pages import new_ring
from hugepage_qa.plugins.avocado_test import LiveTest

RINGS = Area("memory/rings")

# include/uapi/linux/io_uring.h: IORING_SETUP_NO_MMAP, IORING_ENTER_GETEVENTS; of struct io_uring_params where it has
# sq_off.tail, sq_off.array and cq_off.cqes; sizes of a request and of a result; where a request has user_data
_NO_MMAP, _GET_EVENTS = 1 << 14, 1
_TAIL_AT, _ARRAY_AT, _RESULTS_AT = 44, 64, 100
_REQUEST, _RESULT, _DATA_AT = 64, 16, 32
#: as many as make rings of several base pages of 4K and 64K
_MOST_ENTRIES = 4096
_FIRST, _LAST = 7, 9


@RINGS.case(
    "a ring of io_uring in a huge page of its user works from its first entry to its last, and has the page until it is"
    " closed or its user has ended, though the file of the page has it no more",
    "io_uring_setup(2) IORING_SETUP_NO_MMAP; io_uring/memmap.c io_pin_pages()",
    pages=1,
    since="6.5",
)
def in_a_huge_page(live: Live) -> None:
    for is_closed in (True, False):
        with live.about("a ring that is closed" if is_closed else "a ring whose user ends"):
            file = new_memfd(live, pages=1)
            memory = file.map(1)
            ring = Ring.in_page(live, memory)
            ring.expect_working()
            file.truncate(0)
            live.expect_pool(nr=1, free=0)
            if is_closed:
                memory.actor.call("close", ring.descriptor)
            else:
                memory.actor.end()
            # a worker lets go of what it has
            live.host.wait_until(lambda: live.pool().free == 1)
            live.expect_pool(nr=1, free=1)


@dataclass(frozen=True)
class Ring:
    """An open ring of ``entries`` requests, and twice as many results; addresses of its parts in its user."""

    live: Live
    memory: Memory
    descriptor: int
    entries: int
    requests: int
    tail: int
    array: int
    results: int

    @classmethod
    def in_page(cls, live: Live, memory: Memory) -> "Ring":
        """Open one in a page of ``memory``, which holds zeroes: rings in its first half, requests in the second.

        Raises CannotRun where the kernel has no io_uring or the machine forbids it.
        """
        half, uapi = memory.size // 2, live.host.uapi
        entries = min(_MOST_ENTRIES, half // _REQUEST)
        rings, requests = memory.address, memory.address + half
        # struct io_uring_params: flags, and the last words of sq_off and cq_off
        asked = uapi.pack("10I", 0, 0, _NO_MMAP, *[0] * 7)
        asked += b"".join(uapi.pack("8IQ", *[0] * 8, address) for address in (requests, rings))
        descriptor, params = new_ring(memory.actor, entries, asked)
        tail, array, results = (
            rings + uapi.unpack("I", params[at : at + 4])[0] for at in (_TAIL_AT, _ARRAY_AT, _RESULTS_AT)
        )
        return cls(live, memory, descriptor, entries, requests, tail, array, results)

    def expect_working(self) -> None:
        """Have it carry out as many requests as it has entries: the first one again and again, and at last the last."""
        actor, last, pack = self.memory.actor, self.entries - 1, self.live.host.uapi.pack
        # zeroes are IORING_OP_NOP, and an array of them names the first request
        for number, data in ((0, _FIRST), (last, _LAST)):
            actor.write(self.requests + number * _REQUEST + _DATA_AT, data)
        self._write(self.array + (last - 1) * len(pack("I", 0)), pack("2I", 0, last))
        # behind the tail is nothing
        self._write(self.tail, pack("2I", self.entries, 0))
        taken = actor.call("io_uring_enter", self.descriptor, self.entries, self.entries, _GET_EVENTS, 0, 0)
        self.live.expect("requests that were taken", self.entries, taken)
        for number, data in ((0, _FIRST), (last // 2, _FIRST), (last - 1, _FIRST), (last, _LAST)):
            found = [actor.read(self.results + number * _RESULT + at) for at in (0, WORD)]
            self.live.expect(f"result {number}: what the request was called by, and zero", [data, 0], found)

    def _write(self, address: int, word: bytes) -> None:
        self.memory.actor.write(address, self.live.host.uapi.unpack("Q", word)[0])


class Rings(LiveTest):
    def test_rings(self) -> None:
        self.run_area(RINGS)
