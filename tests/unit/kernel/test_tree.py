"""Where kernel files are read from."""

from pathlib import Path

from hugepage_qa.kernel.process_status import read_process_status
from hugepage_qa.kernel.tree import DirectoryTree


def test_a_carriage_return_is_no_end_of_a_line(tmp_path: Path) -> None:
    """A process that calls itself a kernel thread is none: the kernel escapes newlines in names, and only these."""
    path = tmp_path / "proc" / "7" / "status"
    path.parent.mkdir(parents=True)
    text = "Name:\tx\rKthread:\t1\nState:\tS\nTgid:\t7\nPid:\t7\nPPid:\t1\nUid:\t0\t0\t0\t0\nKthread:\t0\nThreads:\t1\n"
    path.write_bytes(text.encode())
    status = read_process_status(DirectoryTree(tmp_path), 7)
    assert status is not None
    assert status.name == "x\rKthread:\t1"


def test_bytes_that_are_no_text_and_files_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "comm").write_bytes(b"a\xff\r\n")
    tree = DirectoryTree(tmp_path)
    assert tree.read("comm") == "a\ufffd\r\n"
    assert tree.read("other") is None
    assert tree.names("other") == []
