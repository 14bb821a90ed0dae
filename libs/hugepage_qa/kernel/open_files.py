"""How many inodes and open files the whole machine has: files of /proc/sys/fs."""

from hugepage_qa.kernel.tree import Tree, malformed

#: how many there are, and how many of these nobody uses
_INODES = "proc/sys/fs/inode-nr"
_FILES = "proc/sys/fs/file-nr"


def read_used_inodes(tree: Tree) -> int:
    """Return how many inodes are in use. Raises InputError."""
    count, unused = _first_two(tree, _INODES)
    return count - unused


def read_open_files(tree: Tree) -> int:
    """Return how many files are open. Raises InputError."""
    count, unused = _first_two(tree, _FILES)
    return count - unused


def _first_two(tree: Tree, path: str) -> tuple[int, int]:
    text = (tree.read(path) or "").rstrip("\n")
    count, unused, *_more = [*text.split("\t"), "", ""]
    if not (count.isdecimal() and unused.isdecimal()):
        malformed(path, 1, text, "two numbers, the first of all and the second of unused ones")
    return int(count), int(unused)
