"""Mounts (/proc/mounts) as far as huge pages are concerned: tmpfs and its huge= option."""

from hugepage_qa.kernel.tree import Tree

#: where a probe machine mounts a tmpfs without options, to see what huge= it gets
TMPFS = "/tmp"  # noqa: S108 - a mount point, no file is made there

_FIELDS = 4


def read_tmpfs_huge(tree: Tree) -> str | None:
    """Return the huge= policy of the tmpfs on /tmp; ``never`` without the option, None without such a mount.

    shmem_show_options() in mm/shmem.c prints the option unless it is ``never``.
    """
    policy = None
    for line in (tree.read("proc/mounts") or "").splitlines():
        fields = line.split(" ")
        if len(fields) >= _FIELDS and fields[1:3] == [TMPFS, "tmpfs"]:
            options = dict(option.partition("=")[::2] for option in fields[3].split(","))
            policy = options.get("huge", "never")
    return policy
