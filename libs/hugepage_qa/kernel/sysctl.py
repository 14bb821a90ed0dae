"""Numbers below /proc/sys/vm (Documentation/admin-guide/sysctl/vm.rst)."""

from collections.abc import Iterable

from hugepage_qa.kernel.tree import Tree
from hugepage_qa.kernel.values import read_integer

#: What the huge page parameters of the command line can change.
HUGE_PAGE_SYSCTLS = ("nr_hugepages", "nr_hugepages_mempolicy", "nr_overcommit_hugepages", "hugetlb_optimize_vmemmap")


def read_vm(tree: Tree, names: Iterable[str] = HUGE_PAGE_SYSCTLS) -> dict[str, int]:
    """Return the value of each of ``names`` that the kernel has; raises InputError for what is no number."""
    values = ((name, read_integer(tree, f"proc/sys/vm/{name}")) for name in names)
    return {name: value for name, value in values if value is not None}
