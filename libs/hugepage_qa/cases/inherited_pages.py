"""What a child lacks of the huge pages that its parent has."""

from hugepage_qa.kernel.smaps import MemoryMapping, read_smaps
from hugepage_qa.machine.host import Host, ObservedTree
from hugepage_qa.process.actor import Actor

#: VmFlags of memory that userfaultfd protects, which fork(2) copies where it is shared, too (VM_COPY_ON_FORK)
_PROTECTED = {"uw", "ur"}


def lacks_pages(host: Host, parent: Actor, child: Actor) -> bool:
    """Tell whether a child that was forked just now lacks pages of a pool that its parent has, and fork(2) copies.

    It copies private mappings, and shared ones that userfaultfd protects (vma_needs_copy() in mm/memory.c).
    """
    of_parent = {mapping.start: _pages(mapping) for mapping in _mappings(host, parent)}
    of_child = [mapping for mapping in _mappings(host, child) if not mapping.is_shared or mapping.flags & _PROTECTED]
    return any(_pages(mapping) < of_parent.get(mapping.start, 0) for mapping in of_child)


def _mappings(host: Host, actor: Actor) -> list[MemoryMapping]:
    return [mapping for mapping in read_smaps(ObservedTree(host), actor.pid) or () if "ht" in mapping.flags]


def _pages(mapping: MemoryMapping) -> int:
    """Return the bytes of pages that are present, whoever else has them."""
    return mapping.private_hugetlb + mapping.shared_hugetlb
