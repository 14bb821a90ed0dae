"""What happens to the mappings of a process: munmap(), madvise(), mremap(), fork()."""

import errno
from collections.abc import Sequence

from hugepage_qa.model.hugetlb_pool.file import Mapping
from hugepage_qa.model.hugetlb_pool.kernel import PoolKernel
from hugepage_qa.model.hugetlb_pool.process import Process
from hugepage_qa.model.hugetlb_pool.unmap import close_mapping, forget_page, unmap_pages, zap
from hugepage_qa.model.known import Quirk

#: what move_hugetlb_page_tables() returns as an int and move_page_tables() takes for an unsigned long
_INT = 1 << 32


def unmap(process: Process, mappings: Sequence[Mapping]) -> None:
    """Unmap: first all pages, then the mappings with their reservations: unmap_vmas(), hugetlb_vm_op_close()."""
    pages = [(one.file.pool, page) for one in mappings for page in unmap_pages(one, one.first, one.end)]
    for pool, page in pages:
        forget_page(pool, page)
    for mapping in mappings:
        process.remove(mapping)
        close_mapping(mapping)


def discard(process: Process, address: int, end: int, kernel: PoolKernel) -> None:
    """madvise(MADV_DONTNEED): madvise_dontneed_free(), zap_page_range_single().

    Raises OSError: EINVAL before Linux 5.18, ENOMEM where something is not mapped; what is mapped goes all the same.
    """
    if not kernel.can_discard:
        raise OSError(errno.EINVAL, "not for huge pages")
    reached = address
    for mapping in process.mappings:
        first, last = max(address, mapping.address), min(end, mapping.end_address)
        if first < last:
            zap(mapping, mapping.index(first), mapping.index(last))
            reached = last if first == reached else reached
    if reached != end:
        raise OSError(errno.ENOMEM, "something is not mapped")


def move(process: Process, address: int, end: int, target: int, kernel: PoolKernel) -> None:
    """mremap() to ``target``: move_vma().

    Raises OSError: EFAULT when the range is not of one mapping, EINVAL before Linux 5.16.
    """
    old = process.find(address)
    if old is None or end > old.end_address:
        raise OSError(errno.EFAULT, "not one mapping")
    if not kernel.can_move:
        raise OSError(errno.EINVAL, "not for huge pages")
    moved = old.part(old.index(address), old.index(end))
    if _fails_to_move(process, moved, kernel):
        _move_back(old, moved, kernel)
        raise OSError(errno.ENOMEM, "the length was truncated")
    moved.address = target
    for index in moved.present:
        del old.present[index]
    process.add(moved)
    is_partial = moved.count < old.count
    if is_partial and old.reservation is not None and kernel.follows(Quirk.MOVE_FORGETS_RESERVATION):
        old.reservation = None
    for left in process.cut(address, end):
        process.remove(left)


def _fails_to_move(process: Process, moved: Mapping, kernel: PoolKernel) -> bool:
    """Tell whether the kernel takes a move for incomplete because its length does not fit into an int."""
    length = moved.end_address - moved.address
    if _seems_short(length, length):
        return kernel.follows(Quirk.MOVE_LENGTH_TRUNCATED)
    # a page table that is not there counts to its end; whether one without pages is there the model does not know
    table = moved.file.pool.page.table
    first, end = moved.address // table * table, -(-moved.end_address // table) * table
    present = (one.address_of(index) for one in process.mappings for index in one.present)
    if any(first <= address < end for address in present):
        return False
    return _seems_short(end - moved.address, length) and kernel.may_follow(Quirk.MOVE_LENGTH_TRUNCATED)


def _seems_short(moved: int, length: int) -> bool:
    """Tell whether ``moved``, cut to an int and made unsigned again, is less than ``length``."""
    return moved % _INT < min(length, _INT // 2)


def _move_back(old: Mapping, moved: Mapping, kernel: PoolKernel) -> None:
    """Leave ``old`` as much of what was ``moved`` as was taken for moved; the rest is unmapped at its new place."""
    if old.reservation is None or not kernel.follows(Quirk.FAILED_MOVE_ENDS_RESERVATION):
        moved.reservation = None
    else:
        old.reservation = None
    kept = moved.first + (moved.count * moved.file.pool.size) % _INT // moved.file.pool.size
    for index in [index for index in moved.present if index >= kept]:
        del old.present[index]
    zap(moved, kept, moved.end)
    close_mapping(moved)


def fork(parent: Process, kernel: PoolKernel) -> Process:
    """Copy a process: dup_mmap(), copy_hugetlb_page_range(). Private reservations stay with the parent."""
    copy = Process(parent.group, open_files=list(parent.open_files))
    for file in copy.open_files:
        file.descriptors += 1
    for mapping in parent.mappings:
        twin = mapping.part(mapping.first, mapping.end)
        twin.reservation, twin.has_lost_page = None, False
        if not _copies_pages(mapping, kernel):
            twin.present = {}
        for page in twin.present.values():
            page.mapped += 1
        mapping.file.insert_after(twin, mapping)
        copy.adopt(twin)
    return copy


def _copies_pages(mapping: Mapping, kernel: PoolKernel) -> bool:
    """Tell whether fork() copies page table entries: vma_needs_copy()."""
    if not mapping.is_anonymous and kernel.copies_tables_lazily:
        return False
    if mapping.file.pool.page.has_pmd_entries or not mapping.present:
        return True
    return not kernel.may_follow(Quirk.FORK_LOSES_PAGES)
