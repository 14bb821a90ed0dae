"""How pages are given up: unmapping, truncation and hole punching, in mm/hugetlb.c and fs/hugetlbfs/inode.c."""

from hugepage_qa.model.hugetlb_pool.file import HugeFile, Mapping
from hugepage_qa.model.hugetlb_pool.pool import Page, Pool
from hugepage_qa.model.known import Quirk


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
    """Take the owner's page away from processes that were forked: unmap_ref_private()."""
    page = owner.present[index]
    for other in owner.file.mappings_of(index, index + 1):
        if other is owner or other.is_shared or other.reservation is not None:
            continue
        if other.present.get(index) is page:
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
