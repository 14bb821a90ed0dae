"""hugetlb pools in sysfs, of the machine and of each NUMA node (Documentation/admin-guide/mm/hugetlbpage.rst)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.nodes import node_directories
from hugepage_qa.kernel.tree import Tree, parse_number_or_size, size_directories, size_name

DIRECTORY = "sys/kernel/mm/hugepages"

# files that must hold a number; what later kernels add is kept when it does and left out otherwise
_KNOWN = frozenset(
    {
        "nr_hugepages",
        "nr_hugepages_mempolicy",
        "nr_overcommit_hugepages",
        "free_hugepages",
        "resv_hugepages",
        "surplus_hugepages",
        "demote_size",
    }
)


@dataclass(frozen=True)
class Pool:
    """The pages of one size, of the machine or of one node.

    ``size`` is in bytes; ``files`` maps file name to value: numbers of pages, but ``demote_size`` in bytes.
    """

    size: int
    files: Mapping[str, int]

    @property
    def name(self) -> str:
        """The directory name, for example ``hugepages-2048kB``."""
        return size_name(self.size)

    def count(self, name: str) -> int:
        """Return the number in the file ``name``, 0 without it: nodes have no resv_hugepages, for one."""
        return self.files.get(name, 0)


def read_pools(tree: Tree, names: Sequence[str] = ()) -> tuple[Pool, ...]:
    """Return the machine's pools by ascending size; empty without hugetlb. Raises InputError for a malformed file.

    Read are the files ``names``, by default all that there are.
    """
    return _pools(tree, DIRECTORY, names)


def read_pool(tree: Tree, size: int, node: int | None, names: Sequence[str]) -> Pool:
    """Return one pool, of the machine or of a node; without files where there is none. Raises InputError."""
    directory = DIRECTORY if node is None else f"{node_directories(tree)[node]}/hugepages"
    return Pool(size, _files(tree, f"{directory}/{size_name(size)}", names))


def read_node_pools(tree: Tree, names: Sequence[str] = ()) -> dict[int, tuple[Pool, ...]]:
    """Return node -> its pools by ascending size; nodes without pools (CPUs only) have an empty entry."""
    return {node: _pools(tree, f"{path}/hugepages", names) for node, path in node_directories(tree).items()}


def _pools(tree: Tree, directory: str, names: Sequence[str]) -> tuple[Pool, ...]:
    return tuple(Pool(size, _files(tree, path, names)) for size, path in size_directories(tree, directory).items())


def _files(tree: Tree, directory: str, names: Sequence[str]) -> dict[str, int]:
    files = {}
    for name in names or tree.names(directory):
        text = tree.read(f"{directory}/{name}")
        if text is None:  # demote can only be written
            continue
        try:
            files[name] = parse_number_or_size(text, f"{directory}/{name}")
        except InputError:
            if name in _KNOWN:
                raise
    return files
