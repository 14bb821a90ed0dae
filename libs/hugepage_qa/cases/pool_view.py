"""The pools as the kernel shows them, in every place where it shows them, and whether these places agree."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.pools import Pool, read_node_pools, read_pool, read_pools
from hugepage_qa.kernel.tree import Tree
from hugepage_qa.oracle.compare import Difference
from hugepage_qa.oracle.rules import HUGETLB_DOC, Rule

VIEWS_AGREE = Rule(
    "views-agree",
    "sysfs, the nodes and /proc/meminfo show the same pool, and Hugetlb: the memory in the pools of all sizes",
    f"{HUGETLB_DOC}; mm/hugetlb.c hugetlb_report_meminfo(), hugetlb_report_node_meminfo()",
)
COUNTERS_IN_ORDER = Rule(
    "counters-in-order",
    "no more pages are free, or surplus, than there are, and every reserved page is free",
    f"{HUGETLB_DOC} HugePages_Rsvd; mm/hugetlb.c hugetlb_acct_memory()",
)

_MEMINFO = {"nr": "HugePages_Total", "free": "HugePages_Free", "resv": "HugePages_Rsvd", "surplus": "HugePages_Surp"}
_FILES = {
    "nr": "nr_hugepages",
    "free": "free_hugepages",
    "resv": "resv_hugepages",
    "surplus": "surplus_hugepages",
}
_OF_A_NODE = ("nr", "free", "surplus")
_OVERCOMMIT = "nr_overcommit_hugepages"
#: read are these alone: an emulated machine takes half of its time for files, and has others beside them
_READ, _READ_OF_A_NODE = (*_FILES.values(), _OVERCOMMIT), tuple(_FILES[name] for name in _OF_A_NODE)


@dataclass(frozen=True)
class Counters:
    """Pages of one size: in the pool (surplus included), free, reserved for a mapping, above what was asked for."""

    nr: int
    free: int
    resv: int = 0
    surplus: int = 0

    @property
    def available(self) -> int:
        """Pages that are free and reserved by nobody."""
        return self.free - self.resv

    def is_as(self, other: "Counters") -> bool:
        """Tell whether both are the same; a counter of the kernel that fell below 0 is that number modulo 2**64."""
        return all((getattr(self, name) - getattr(other, name)) % 2**64 == 0 for name in _FILES)

    def __str__(self) -> str:
        return ", ".join(f"{file} {getattr(self, name)}" for name, file in _FILES.items())


#: a pool that the machine does not have
NO_POOL = Counters(0, 0)
NO_HUGETLB = "the kernel has no hugetlb, or the CPU no huge pages: /sys/kernel/mm/hugepages has no pool"


@dataclass(frozen=True)
class PoolView:
    """Every pool: size -> counters, node -> size -> counters (``resv`` is 0 there: nodes have none), and meminfo."""

    pools: Mapping[int, Counters]
    nodes: Mapping[int, Mapping[int, Counters]]
    overcommit: Mapping[int, int]
    meminfo: Mapping[str, int]

    def disagreements(self) -> list[Difference]:
        """Return where two places that show the same number do not."""
        return [
            Difference(subject, rule, str(expected), str(found))
            for subject, rule, expected, found in (*self._sums(), *self._default_size(), *self._total())
            if expected != found
        ] + [
            Difference(f"hugepages-{size // 1024}kB", COUNTERS_IN_ORDER, "free, surplus <= nr, resv <= free", str(pool))
            for size, pool in self.pools.items()
            if not (pool.resv <= pool.free <= pool.nr and pool.surplus <= pool.nr)
        ]

    def _sums(self) -> Iterator[tuple[str, Rule, int, int]]:
        if not self.nodes:
            return
        for size, pool in self.pools.items():
            for name in _OF_A_NODE:
                total = sum(getattr(node[size], name) for node in self.nodes.values() if size in node)
                yield f"nodes/*/hugepages-{size // 1024}kB/{_FILES[name]}", VIEWS_AGREE, getattr(pool, name), total

    def _default_size(self) -> Iterator[tuple[str, Rule, int, int]]:
        pool = self.pools.get(self.meminfo.get("Hugepagesize", 0))
        if pool is None:
            return
        for name, line in _MEMINFO.items():
            yield f"meminfo/{line}", VIEWS_AGREE, getattr(pool, name), self.meminfo.get(line, -1)

    def _total(self) -> Iterator[tuple[str, Rule, int, int]]:
        # since Linux 4.16 (fcb2b0c577f1)
        if "Hugetlb" in self.meminfo:
            memory = sum(size * pool.nr for size, pool in self.pools.items())
            yield "meminfo/Hugetlb", VIEWS_AGREE, memory, self.meminfo["Hugetlb"]


def read_pool_view(tree: Tree) -> PoolView:
    """Return all pools of the machine, none of a kernel without hugetlb. Raises InputError for an unknown form."""
    pools = read_pools(tree, _READ)
    of_nodes = read_node_pools(tree, _READ_OF_A_NODE)
    return PoolView(
        pools={pool.size: _counters(pool) for pool in pools},
        nodes={node: {pool.size: _counters(pool) for pool in of_node} for node, of_node in of_nodes.items()},
        overcommit={pool.size: pool.count(_OVERCOMMIT) for pool in pools},
        meminfo=read_meminfo(tree),
    )


def read_counters(tree: Tree, size: int, node: int | None = None) -> Counters:
    """Return one pool, of the machine or of a node: no place is compared with another. Raises InputError."""
    return _counters(read_pool(tree, size, node, _READ if node is None else _READ_OF_A_NODE))


def _counters(pool: Pool) -> Counters:
    values = {name: pool.files.get(file, 0) for name, file in _FILES.items()}
    return Counters(**values)
