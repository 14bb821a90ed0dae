"""A process that is handed a guest's memory keeps it when QEMU has hung up, until it is ended."""

import os
import socket
import struct
import sys
from pathlib import Path

from hugepage_qa.process.child import Child
from hugepage_qa.qemu.guest import vhost_user_peer

SIZE = 1 << 20
HEADER = struct.Struct("<III")


def maps(pid: int) -> int:
    """Return how many mappings a process has of the file that is called like no other."""
    return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").count("memory-of-a-guest")


def test_memory_is_kept_until_it_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "peer"
    memory = os.memfd_create("memory-of-a-guest")
    os.ftruncate(memory, SIZE)
    with Child([sys.executable, vhost_user_peer.__file__, str(path)]) as peer:
        assert peer.wait_until(path.is_socket, 60)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as qemu:
            qemu.connect(str(path))
            qemu.sendall(HEADER.pack(1, 1, 0))
            assert HEADER.unpack(qemu.recv(HEADER.size)) == (1, 5, 8)
            assert struct.unpack("<Q", qemu.recv(8)) == (1 << 32 | 1 << 30 | 1 << 17 | 1 << 16,)
            qemu.sendall(HEADER.pack(15, 1, 0))
            assert HEADER.unpack(qemu.recv(HEADER.size)) == (15, 5, 8)
            assert struct.unpack("<Q", qemu.recv(8)) == (0,)
            # of a kick no memory is kept
            socket.send_fds(qemu, [HEADER.pack(12, 1, 8) + bytes(8)], [memory])
            region = struct.pack("<IIQQQQ", 1, 0, 0, SIZE, 0, 0)
            # the file of two regions is mapped once
            socket.send_fds(qemu, [HEADER.pack(5, 1, len(region)) + region], [memory, memory])
            qemu.sendall(HEADER.pack(11, 1, 8) + struct.pack("<II", 1, 0))
            assert HEADER.unpack(qemu.recv(HEADER.size)) == (11, 5, 8)
            assert struct.unpack("<II", qemu.recv(8)) == (1, 0)
        os.close(memory)
        assert not peer.has_ended
        assert maps(peer.pid) == 1
