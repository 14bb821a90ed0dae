"""KSM, which merges pages that are equal (Documentation/admin-guide/mm/ksm.rst)."""

from typing import Final

from hugepage_qa.kernel.tree import Tree

DIRECTORY: Final = "sys/kernel/mm/ksm"


def has_ksm(tree: Tree) -> bool:
    """Tell whether the kernel has CONFIG_KSM: without it MADV_MERGEABLE and MADV_UNMERGEABLE are EINVAL."""
    return tree.read(f"{DIRECTORY}/run") is not None
