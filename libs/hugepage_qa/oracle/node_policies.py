"""What memory policies of NUMA nodes come to: nodes in turn, policies that follow a cpuset, and policies of ranges."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hugepage_qa.version import KernelVersion

# include/uapi/linux/mempolicy.h MPOL_F_STATIC_NODES, MPOL_F_RELATIVE_NODES
STATIC, RELATIVE = 1 << 15, 1 << 14
_INODE_COUNTS_PAGES = KernelVersion(6, 7)


def node_in_turn(nodes: Collection[int], index: int) -> int:
    """Return the node of the page with ``index`` of interleaved memory (mm/mempolicy.c interleave_nid()).

    Pages of a file have the index that they have in it, whatever part of it is mapped, counted in pages of their size.
    """
    return sorted(nodes)[index % len(nodes)]


def node_in_turn_of_inode(nodes: Collection[int], index: int, inode: int, order: int, version: KernelVersion) -> int:
    """Return the node of the page with ``index`` of shared memory, counted in pages of ``order``, interleaved.

    The number of the inode spreads the first pages over the nodes (mm/shmem.c): shmem_get_policy() adds it to the index
    since ddc1a5cbc05d, shmem_pseudo_vma_init() did so in base pages.
    """
    return node_in_turn(nodes, index + (inode >> order if version < _INODE_COUNTS_PAGES else inode))


def node_by_weight(weights: Mapping[int, int], index: int) -> int:
    """Return the node of the page with ``index`` of memory that is interleaved by the ``weights`` of its nodes.

    Each has as many pages in a row as its weight says (mm/mempolicy.c weighted_interleave_nid()).
    """
    row = [node for node in sorted(weights) for _page in range(weights[node])]
    return row[index % len(row)]


def nodes_of_next_page(chosen: Iterable[int], free: Iterable[int], *, is_bound: bool) -> frozenset[int]:
    """Return the nodes of which one gives a page, none where there is none to be had: SIGBUS.

    They are those that the policy has ``chosen`` and that have ``free`` pages, and where no such node is, unless memory
    is bound, all that have any (numa_memory_policy.rst, Components of Memory Policies).
    """
    with_pages = frozenset(free)
    return (with_pages & frozenset(chosen)) or (frozenset() if is_bound else with_pages)


def node_after(node: int, old: Collection[int], new: Collection[int]) -> int:
    """Return where a page is that was on ``node`` when the nodes of its cpuset were ``old``, and became ``new``.

    It keeps its place among them, and stays where it may (mm/mempolicy.c do_migrate_pages(); where there are as many
    nodes as before all pages are renumbered). What was on no node of the cpuset is left there.
    """
    if node not in old or (node in new and len(old) != len(new)):
        return node
    return sorted(new)[sorted(old).index(node) % len(new)]


@dataclass(frozen=True)
class FollowingPolicy:
    """A policy for ``wanted`` nodes, with mode flag ``flag`` or 0, that was set where ``allowed`` nodes may be used.

    Documentation/admin-guide/mm/numa_memory_policy.rst, MPOL_F_STATIC_NODES and MPOL_F_RELATIVE_NODES.
    """

    flag: int
    wanted: frozenset[int]
    allowed: frozenset[int]

    @property
    def nodes(self) -> frozenset[int]:
        """The nodes that it is for when it is set; a policy for none is refused (EINVAL)."""
        return _relative(self.wanted, self.allowed) if self.flag == RELATIVE else self.wanted & self.allowed

    def nodes_with(self, allowed: frozenset[int]) -> frozenset[int]:
        """Return the nodes that it is for when other nodes are ``allowed``: all of these, where none would be left."""
        if self.flag == STATIC:
            found = self.wanted & allowed
        elif self.flag == RELATIVE:
            found = _relative(self.wanted, allowed)
        else:
            old, new = sorted(self.allowed), sorted(allowed)
            found = frozenset(new[old.index(node) % len(new)] for node in self.nodes)
        return found or allowed

    def told_with(self, allowed: frozenset[int]) -> frozenset[int]:
        """Return what get_mempolicy(2) tells then: with a flag the nodes that were wanted, as the user gave them."""
        return self.wanted if self.flag else self.nodes_with(allowed)


def _relative(wanted: Iterable[int], allowed: Collection[int]) -> frozenset[int]:
    """Return ``wanted``, which are numbers of nodes within the ``allowed`` ones, and begin anew behind the last."""
    return frozenset(sorted(allowed)[number % len(allowed)] for number in wanted)


@dataclass
class PoliciesOfRanges:
    """The node that each base page of a file, or of a mapping, is bound to; a later policy replaces earlier ones."""

    pages: int
    _set: list[tuple[int, int, int | None]] = field(default_factory=list)

    def bind(self, first: int, end: int, node: int | None) -> None:
        """Bind base pages from ``first`` to before ``end`` to ``node``, or to none."""
        self._set.append((first, end, node))

    def node_of(self, page: int) -> int | None:
        """Return the node that a base page is bound to, None without a policy."""
        return next((node for first, end, node in reversed(self._set) if first <= page < end), None)

    def telling_pages(self) -> Sequence[int]:
        """Return the base pages beside every end of a range, and beside both ends of all: nothing changes elsewhere."""
        ends = {0, self.pages, *(end for first, last, _node in self._set for end in (first, last))}
        return sorted({page for end in ends for page in (end - 1, end) if 0 <= page < self.pages})
