"""A program that serves a vhost-user device and keeps the guest's memory, which it maps and reads, until it is ended.

That is what a virtiofsd or passt does to huge pages: QEMU hands them the files of the guest's memory, and as long as
one of them maps these their pages are in use, whatever becomes of QEMU. It moves no packet and answers no other
request than those that QEMU waits for (QEMU docs/interop/vhost-user.rst). It needs nothing
but Python: ``python vhost_user_peer.py SOCKET``. It can be connected once.
"""

import array
import mmap
import os
import socket
import struct
import sys
import threading
from pathlib import Path

_HEADER = struct.Struct("<III")
_GET_FEATURES, _SET_MEM_TABLE, _GET_VRING_BASE, _GET_PROTOCOL_FEATURES = 1, 5, 11, 15
# VIRTIO_F_VERSION_1, VHOST_USER_F_PROTOCOL_FEATURES without any, VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_STATUS
_FEATURES, _NONE = 1 << 32 | 1 << 30 | 1 << 17 | 1 << 16, 0
# of version 1, and an answer
_REPLY_FLAGS = 0x1 | 0x4
_MOST_DESCRIPTORS = 8
_BASE_PAGE = 4096


def main(path: str) -> None:
    """Serve the socket ``path`` until QEMU hangs up, and keep its guest's memory after that until we are killed."""
    # several regions may be of one file, and each table names all of them again
    kept: dict[tuple[int, int], mmap.mmap] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        # who waits for the socket may connect as soon as it sees it, and is refused until somebody listens
        listening.bind(f"{path}.new")
        listening.listen(1)
        Path(f"{path}.new").rename(path)
        connection, _address = listening.accept()
    with connection:
        while request := _receive(connection):
            number, payload, descriptors = request
            for descriptor in descriptors if number == _SET_MEM_TABLE else ():
                status = os.fstat(descriptor)
                file = status.st_dev, status.st_ino
                if file not in kept:
                    kept[file] = _map(descriptor, status.st_size)
            if number == _GET_FEATURES:
                _answer(connection, number, struct.pack("<Q", _FEATURES))
            elif number == _GET_PROTOCOL_FEATURES:
                _answer(connection, number, struct.pack("<Q", _NONE))
            elif number == _GET_VRING_BASE:
                _answer(connection, number, payload)
            # a mapping keeps what it is of
            for descriptor in descriptors:
                os.close(descriptor)
    threading.Event().wait()


def _receive(connection: socket.socket) -> tuple[int, bytes, list[int]] | None:
    """Return the number of a request, what belongs to it, and the open files that came with it; None at the end."""
    descriptors = array.array("i")
    room = socket.CMSG_SPACE(_MOST_DESCRIPTORS * descriptors.itemsize)
    header, control, _flags, _address = connection.recvmsg(_HEADER.size, room, socket.MSG_WAITALL)
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    if len(header) < _HEADER.size:
        return None
    number, _flags_of_it, size = _HEADER.unpack(header)
    return number, connection.recv(size, socket.MSG_WAITALL) if size else b"", list(descriptors)


def _answer(connection: socket.socket, number: int, payload: bytes) -> None:
    connection.sendall(_HEADER.pack(number, _REPLY_FLAGS, len(payload)) + payload)


def _map(descriptor: int, size: int) -> mmap.mmap:
    """Map the whole file, and read a byte of each page: only then do the page tables have it."""
    memory = mmap.mmap(descriptor, size)
    for position in range(0, len(memory), _BASE_PAGE):
        memory[position]
    return memory


if __name__ == "__main__":
    main(sys.argv[1])
