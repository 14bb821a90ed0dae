"""The pages of the host that the memory of a guest is on: what is measured has to be what it is called."""

from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.unavailable import Unavailable
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.smaps import MemoryMapping, read_smaps
from hugepage_qa.kernel.tree import Tree
from hugepage_qa.sizes import format_size

#: part of a guest that has to be on transparent pages: what is at the ends of its memory may not be
_MOSTLY = 0.9


def expect_pages(tree: Tree, pid: int, backing: Backing, memory: int) -> None:
    """Expect all ``memory`` bytes of a guest, whose QEMU is ``pid`` and has touched them all, on ``backing``.

    Raises Unavailable where the kernel had too few pages for THP, InputError where QEMU is on other pages than it was
    told.
    """
    guest = f"guest of {format_size(memory)} on {backing.name}"
    found = _memory_of(tree, pid, memory)
    if found is None:
        raise InputError(f"{guest}: its QEMU has no memory of this size, expected it to run")
    static = found.private_hugetlb + found.shared_hugetlb
    transparent = found.anon_huge_pages + found.shmem_pmd_mapped
    seen = (
        f"{format_size(static)} of it are on static pages of {format_size(found.kernel_page_size)}"
        if found.is_hugetlb
        else f"{format_size(transparent)} of it are on transparent pages"
    )
    if found.is_hugetlb != (backing.kind is Kind.STATIC):
        raise InputError(f"{guest}: {seen}")
    if backing.kind is Kind.STATIC and (found.kernel_page_size != backing.page_size or static < memory):
        raise InputError(f"{guest}: {seen}, expected all of it on its own")
    if backing.kind is Kind.BASE and transparent:
        raise InputError(f"{guest}: {seen}, expected none")
    if backing.kind is Kind.TRANSPARENT and transparent < _MOSTLY * memory:
        raise Unavailable(f"{guest}: {seen}, the kernel gave no more")


def _memory_of(tree: Tree, pid: int, memory: int) -> MemoryMapping | None:
    """Return the mapping that is the memory of the guest: an emulator's translated code is large, too."""
    large = (one for one in read_smaps(tree, pid) or () if one.size >= memory and "x" not in one.permissions)
    return next(large, None)
