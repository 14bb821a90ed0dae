"""Buffers that io_uring(7) chooses itself, from a ring that its user has provided (IORING_REGISTER_PBUF_RING)."""

import mmap

from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.pinned_pages import new_ring
from hugepage_qa.process.actor import Actor

# include/uapi/linux/io_uring.h: struct io_uring_params, and where it has sq_off.tail, sq_off.ring_mask,
# cq_off.head and cq_off.cqes; a request, and of a result the size
_PARAMS, _TAIL_AT, _HEAD_AT, _RESULTS_AT = 120, 44, 80, 100
_OFF_SQES, _OFF_RING_OF_BUFFERS, _OFF_GROUP_SHIFT = 0x10000000, 0x80000000, 16
_REGISTER, _UNREGISTER = 22, 23
_OF_THE_KERNEL = 1
_READ, _CHOOSES_BUFFER, _GET_EVENTS = 22, 1 << 5, 1
_RESULT, _HAS_BUFFER, _BUFFER_SHIFT = 16, 1, 16
#: struct io_uring_buf: address, length, number; the one that is first has the tail of the ring behind that
ENTRY = 16
_TAIL_OF_BUFFERS_AT = 8
#: requests that are made at once
MOST_REQUESTS = 512
#: bytes of requests, and of results, of which there is room for twice as many
_REQUESTS = 64 * MOST_REQUESTS
_RESULTS = 2 * MOST_REQUESTS * _RESULT
#: bytes that are carried at once
_CHUNK = 16384


class ProvidedBuffers:
    """An io_uring of ``actor``, and a ring of ``entries`` buffers that lies at ``address``, or where the kernel has it.

    Numbers of buffers are those of the entries in which they are.
    """

    def __init__(self, live: Live, actor: Actor, entries: int, group: int = 1) -> None:
        """Open the io_uring. Raises CannotRun where the kernel has none or the machine forbids it."""
        self._actor, self._uapi, self._group = actor, live.host.uapi, group
        self.entries = entries
        self.address = 0
        self._ring, params = new_ring(actor, MOST_REQUESTS, bytes(_PARAMS))
        self._tail_at, self._head_at, results_at = (
            self._uapi.unpack("I", params[at : at + 4])[0] for at in (_TAIL_AT, _HEAD_AT, _RESULTS_AT)
        )
        self._rings = actor.mmap(results_at + _RESULTS, READ_WRITE, mmap.MAP_SHARED, self._ring)
        self._requests = actor.mmap(_REQUESTS, READ_WRITE, mmap.MAP_SHARED, self._ring, _OFF_SQES)
        self._results = self._rings + results_at
        self._carried = actor.call("memfd_create", "carried", 0)
        self._made = self._provided = 0
        self._first = bytes(ENTRY)

    def register(self, address: int) -> None:
        """Have it take its buffers from a ring at ``address``, which is empty yet. Raises Refused."""
        self._register(address, 0)
        self.address = address

    def register_of_kernel(self) -> None:
        """Have it take them from a ring in memory of the kernel, and map that (since Linux 6.4). Raises Refused."""
        self._register(0, _OF_THE_KERNEL)
        offset = _OFF_RING_OF_BUFFERS | self._group << _OFF_GROUP_SHIFT
        self.address = self._actor.mmap(self.entries * ENTRY, READ_WRITE, mmap.MAP_SHARED, self._ring, offset)

    def _register(self, address: int, flags: int) -> None:
        # struct io_uring_buf_reg
        asked = self._uapi.pack("QIHH3Q", address, self.entries, self._group, flags, 0, 0, 0)
        self._actor.call("io_uring_register", self._ring, _REGISTER, asked, 1)
        self._provided = 0

    def unregister(self) -> None:
        """Take the ring of buffers away. Raises Refused."""
        asked = self._uapi.pack("QIHH3Q", 0, 0, self._group, 0, 0, 0, 0)
        self._actor.call("io_uring_register", self._ring, _UNREGISTER, asked, 1)

    def close(self) -> None:
        """Close the io_uring: a worker lets go of what it has, some time later. Raises Refused."""
        self._actor.call("munmap", self._rings, self._results - self._rings + _RESULTS)
        self._actor.call("munmap", self._requests, _REQUESTS)
        self._actor.call("close", self._ring)

    def provide(self, *buffers: tuple[int, int]) -> None:
        """Provide ``buffers``, address and length of each, in the next entries."""
        left = list(buffers)
        while left:
            place = self._provided % self.entries
            now, left = left[: self.entries - place], left[self.entries - place :]
            packed = [self._uapi.pack("QIHH", *one, place + number, 0) for number, one in enumerate(now)]
            self._provided += len(now)
            if place == 0:
                self._first = packed[0]
            self._store(self.address + place * ENTRY, b"".join(packed))
        # what is behind the number in the first entry
        _length, number = self._uapi.unpack("IH", self._first[_TAIL_OF_BUFFERS_AT:-2])
        word = self._uapi.pack("IHH", _length, number, self._provided % (1 << 16))
        self._actor.write(self.address + _TAIL_OF_BUFFERS_AT, self._uapi.unpack("Q", word)[0])

    def read(self, file: int, length: int = 0, requests: int = 1) -> list[tuple[int, int | None]]:
        """Make ``requests`` to read the start of ``file``, all that fits into a buffer or ``length`` bytes of that.

        Returned is of each, in any order, how many bytes were read, or an error with a minus sign, and into which
        buffer. Raises Refused.
        """
        words = (_READ, _CHOOSES_BUFFER, 0, file, 0, 0, length, 0, 0, self._group, 0, 0, 0, 0)
        self._store(self._requests, self._uapi.pack("BBHiQQIIQHHIQQ", *words))
        first, self._made = self._made, self._made + requests
        # every request is the first one: the array that says so is zero
        self._put(self._tail_at, self._made)
        self._actor.call("io_uring_enter", self._ring, requests, requests, _GET_EVENTS, 0, 0)
        places = [number % (2 * MOST_REQUESTS) for number in range(first, self._made)]
        table = self._load(self._results, _RESULTS)
        self._put(self._head_at, self._made)
        return [self._result(table[place * _RESULT : (place + 1) * _RESULT]) for place in places]

    def _result(self, packed: bytes) -> tuple[int, int | None]:
        _data, done, flags = self._uapi.unpack("QiI", packed)
        return done, flags >> _BUFFER_SHIFT if flags & _HAS_BUFFER else None

    def _put(self, at: int, number: int) -> None:
        """Store 4 bytes of a ring."""
        self._store(self._rings + at, self._uapi.pack("I", number))

    def _store(self, address: int, stored: bytes) -> None:
        for at in range(0, len(stored), _CHUNK):
            chunk = stored[at : at + _CHUNK]
            self._actor.call("pwrite64", self._carried, chunk, len(chunk), 0)
            self._actor.call("pread64", self._carried, address + at, len(chunk), 0)

    def _load(self, address: int, length: int) -> bytes:
        found = b""
        for at in range(0, length, _CHUNK):
            size = min(_CHUNK, length - at)
            self._actor.call("pwrite64", self._carried, address + at, size, 0)
            found += self._actor.call_with_buffers("pread64", self._carried, bytes(size), size, 0)[1][0]
        return found
