"""File systems that the kernel has registered (/proc/filesystems)."""

from hugepage_qa.kernel.tree import Tree


def read_filesystems(tree: Tree) -> frozenset[str]:
    """Return the names of the registered file systems; empty without the file.

    hugetlbfs is missing when the kernel has no huge page size on this processor
    (init_hugetlbfs_fs() in fs/hugetlbfs/inode.c).
    """
    lines = (tree.read("proc/filesystems") or "").split("\n")
    # "nodev\thugetlbfs" or "\text4"
    return frozenset(line.split("\t")[-1].strip() for line in lines if line.strip())
