"""Inodes and open files of the whole machine."""

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.open_files import read_open_files, read_used_inodes
from hugepage_qa.kernel.tree import CapturedTree


def test_those_that_nobody_uses_are_left_out() -> None:
    tree = CapturedTree({"proc/sys/fs/inode-nr": "50123\t123\n", "proc/sys/fs/file-nr": "1504\t4\t922337\n"})
    assert (read_used_inodes(tree), read_open_files(tree)) == (50000, 1500)


@pytest.mark.parametrize("text", ["", "7\n", "7\tmany\n", "-1\t0\n"])
def test_what_is_no_number_is_named(text: str) -> None:
    with pytest.raises(InputError, match=r"^/proc/sys/fs/inode-nr, line 1"):
        read_used_inodes(CapturedTree({"proc/sys/fs/inode-nr": text}))
