"""File systems that the kernel has registered (/proc/filesystems)."""

from hugepage_qa.kernel.tree import Tree


def read_filesystems(tree: Tree) -> frozenset[str]:
    """Return the names of the registered file systems; empty without the file.

    hugetlbfs is missing when the kernel has no huge page size on this processor
    (init_hugetlbfs_fs() in fs/hugetlbfs/inode.c).
    """
    return frozenset(name for _nodev, name in _lines(tree))


def read_disk_filesystems(tree: Tree) -> frozenset[str]:
    """Return the names of those that need a block device: what is on a disk, and not in memory or elsewhere."""
    return frozenset(name for nodev, name in _lines(tree) if not nodev)


def _lines(tree: Tree) -> list[tuple[str, str]]:
    # "nodev\thugetlbfs" or "\text4"
    lines = (tree.read("proc/filesystems") or "").split("\n")
    return [(words[0].strip(), words[-1].strip()) for line in lines if line.strip() for words in [line.split("\t")]]
