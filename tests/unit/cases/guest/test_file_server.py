"""virtiofsd is given a socket to listen at, and what it is to serve."""

import socket
import sys
from pathlib import Path

import pytest

from hugepage_qa.qemu.guest import file_server
from hugepage_qa.qemu.guest.numbered_lines import md5_of_lines, numbered_lines

_SERVER = """
import os, socket, sys
with socket.socket(fileno=int(sys.argv[1].partition("=")[2])) as listening:
    connection, _address = listening.accept()
connection.sendall(f"{sys.argv[2:]} {os.environ['MARK']}".encode())
"""


def test_it_has_a_socket_that_listens(tmp_path: Path) -> None:
    program = tmp_path / "virtiofsd"
    program.write_text(f"#!{sys.executable}\n{_SERVER}")
    program.chmod(0o755)
    path = tmp_path / "guest.virtiofsd"
    with file_server.start_file_server(str(program), tmp_path, path, {"MARK": "0123"}) as server:
        with socket.socket(socket.AF_UNIX) as qemu:
            qemu.connect(str(path))
            assert qemu.recv(1000).decode() == f"['-o', 'source={tmp_path},sandbox=chroot'] 0123"
        assert server.wait(60) == 0


def test_where_it_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(file_server, "_PLACES", (str(tmp_path / "absent"), str(tmp_path / "virtiofsd")))
    assert not file_server.find_virtiofsd()
    (tmp_path / "virtiofsd").touch(mode=0o755)
    assert file_server.find_virtiofsd() == str(tmp_path / "virtiofsd")


def test_lines_are_those_of_seq() -> None:
    assert numbered_lines(12) == b"1\n2\n3\n4\n5\n6\n"
    assert len(numbered_lines(1_000_001)) == 1_000_001
    # seq 6 | md5sum
    assert md5_of_lines(12) == "f3a4562cd2134c76b4ff170ce6f28fee"
