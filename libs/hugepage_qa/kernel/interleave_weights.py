"""Weights by which MPOL_WEIGHTED_INTERLEAVE spreads pages over nodes.

Documentation/ABI/testing/sysfs-kernel-mm-mempolicy-weighted-interleave; since Linux 6.9.
"""

from collections.abc import Mapping
from typing import Final

from hugepage_qa.kernel.tree import Tree

DIRECTORY: Final = "sys/kernel/mm/mempolicy/weighted_interleave"
#: whether the kernel chooses the weights, by bandwidth; since Linux 6.16
AUTOMATIC: Final = f"{DIRECTORY}/auto"
_NODE = "node"


def weight_files(tree: Tree) -> Mapping[int, str]:
    """Return the number of each node that has a weight, and its file; none on a kernel without weights."""
    names = (name for name in tree.names(DIRECTORY) if name.startswith(_NODE))
    return {int(name.removeprefix(_NODE)): f"{DIRECTORY}/{name}" for name in names}
