"""The caches that the kernel has its own structures from (mm/slab_common.c slab_show())."""

from hugepage_qa.kernel.tree import Tree, malformed

SLABINFO = "proc/slabinfo"
#: a directory for each cache, and a link for one that was merged into another
CACHES = "sys/kernel/slab"

_VERSION = "slabinfo - version: 2."
_COLUMNS = "# name"


def read_active_objects(tree: Tree) -> dict[str, int]:
    """Return cache -> objects that are in use, or free and kept by a processor for the next one who wants one.

    Empty where the kernel has no such file (CONFIG_SLUB_DEBUG), or shows it to root alone. Raises InputError.
    """
    found: dict[str, int] = {}
    for number, line in enumerate((tree.read(SLABINFO) or "").splitlines(), start=1):
        if line.startswith((_VERSION, _COLUMNS)):
            continue
        name, active, *_more = [*line.split(), "", ""]
        if not active.isdecimal():
            malformed(SLABINFO, number, line, "anon_vma 120 156 ..., the name of a cache and its active objects")
        found[name] = int(active)
    return found
