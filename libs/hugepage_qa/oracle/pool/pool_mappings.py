"""What happens to the mappings of a process: mmap() reserves, munmap(), madvise(), mremap() and truncation give up.

Source: hugetlb_reserve_pages() and unmapping in mm/hugetlb.c, hole punching in fs/hugetlbfs/inode.c.
"""

import errno
from collections.abc import Sequence

from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.pool.pool_charges import ControlGroup
from hugepage_qa.oracle.pool.pool_counters import Page, Pool
from hugepage_qa.oracle.pool.pool_files import HugeFile, Mapping, NeverEnds, Process
from hugepage_qa.oracle.pool.pool_kernel import PoolKernel


def unmap_pages(mapping: Mapping, first: int, end: int) -> list[Page]:
    """Take page table entries away and return their pages, which are not freed yet: __unmap_hugepage_range().

    mmu_gather frees the pages of all mappings of one system call after the last one was unmapped.
    """
    return [_unmap_page(mapping, index) for index in sorted(mapping.present) if first <= index < end]


def _unmap_page(mapping: Mapping, index: int) -> Page:
    page = mapping.present.pop(index)
    page.mapped -= 1
    if _restores_reservation(mapping, page) and mapping.reservation is not None:
        page.restores_reservation = True
        mapping.reservation.used_up.discard(index)
    return page


def _restores_reservation(mapping: Mapping, page: Page) -> bool:
    pool = mapping.file.pool
    if mapping.reservation is None or not page.is_anonymous or pool.surplus:
        return False
    if not pool.kernel.unmapping_restores_reservation:
        return False
    return page.mapped == 0 or pool.kernel.follows(Quirk.UNMAP_RESERVES_PAGE_IN_USE)


def forget_page(pool: Pool, page: Page) -> None:
    """Free a page if nothing uses it any more."""
    if page.mapped == 0 and not page.is_cached:
        pool.free_page(page)


def zap(mapping: Mapping, first: int, end: int) -> None:
    """Unmap pages and free those that nothing else uses: unmap_hugepage_range()."""
    for page in unmap_pages(mapping, first, end):
        forget_page(mapping.file.pool, page)


def take_from_children(owner: Mapping, index: int) -> None:
    """Take the owner's page away from processes that were forked: unmap_ref_private(). Raises NeverEnds."""
    page = owner.present[index]
    kernel = owner.file.pool.kernel
    for other in owner.file.mappings_of(index, index + 1):
        if other is owner or other.is_shared or other.reservation is not None:
            continue
        if other.present.get(index) is page:
            if other.address_of(index) != owner.address_of(index) and kernel.follows(Quirk.COPY_NEVER_ENDS):
                raise NeverEnds
            other.has_lost_page = True
            zap(other, index, index + 1)


def close_mapping(mapping: Mapping) -> None:
    """Give back what a mapping that is gone had reserved and never touched: hugetlb_vm_op_close()."""
    if mapping.reservation is None:
        return
    file = mapping.file
    untouched = mapping.reservation.close(mapping.first, mapping.end, file.pool.size)
    if untouched:
        _end_reservation(file, untouched)


def truncate(file: HugeFile, length: int) -> None:
    """Set the length of a file in pages: hugetlb_vmtruncate()."""
    file.length = length
    for mapping in file.mappings_of(length, None):
        zap(mapping, length, mapping.end)
    removed = [index for index in sorted(file.pages) if index >= length]
    for index in removed:
        _remove_from_cache(file, index)
    # the pages have taken their reservations with them
    entries = file.reservation.remove(length, None, file.pool.size)
    _end_reservation(file, entries - len(removed))


def punch_hole(file: HugeFile, first: int, count: int) -> None:
    """Remove the pages of a range, but no reservation that has no page: hugetlbfs_punch_hole().

    Private copies of the range go as well.
    """
    for mapping in file.mappings_of(first, first + count):
        zap(mapping, first, first + count)
    for index in range(first, first + count):
        if index in file.pages:
            file.reservation.remove(index, index + 1, file.pool.size)
            _remove_from_cache(file, index)


def _remove_from_cache(file: HugeFile, index: int) -> None:
    page = file.pages.pop(index)
    page.is_cached = False
    forget_page(file.pool, page)


def _end_reservation(file: HugeFile, pages: int) -> None:
    subpool = file.mount.subpool
    file.pool.unreserve(pages if subpool is None else subpool.put(pages))


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
    if not mapping.file.pool.page.may_seem_shared or not mapping.present:
        return True
    return not kernel.may_follow(Quirk.FORK_LOSES_PAGES)


def reserve_file(file: HugeFile, group: ControlGroup, first: int, pages: int) -> None:
    """Reserve a range of a file's pages, those that are not reserved yet. Raises OSError (ENOMEM)."""
    missing = file.reservation.missing(first, pages)
    reserve(file, group, len(missing))
    file.reservation.add(missing, group)


def reserve(file: HugeFile, group: ControlGroup, pages: int) -> None:
    """Reserve ``pages``, charged to ``group`` and to the quota of the mount. Raises OSError (ENOMEM)."""
    pool, subpool = file.pool, file.mount.subpool
    if not group.reserved.charge(pool.size, pages):
        raise OSError(errno.ENOMEM, "the control group may not reserve more")
    from_pool = pages if subpool is None else subpool.get(pages)
    if from_pool is not None and pool.reserve(from_pool):
        return
    if from_pool is not None and subpool is not None:
        subpool.fail(pages, from_pool, Quirk.SUBPOOL_USE_LOST_AT_MMAP)
    group.reserved.uncharge(pool.size, pages)
    raise OSError(errno.ENOMEM, "not enough pages")
