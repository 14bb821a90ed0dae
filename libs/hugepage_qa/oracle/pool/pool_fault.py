"""How a page is had: page faults and what they share with fallocate(), in mm/hugetlb.c."""

import signal

from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.pool.pool_charges import ControlGroup
from hugepage_qa.oracle.pool.pool_counters import Page
from hugepage_qa.oracle.pool.pool_files import AccessFault, HugeFile, Mapping, Process
from hugepage_qa.oracle.pool.pool_mappings import forget_page, take_from_children


def touch(process: Process, address: int, value: int | None) -> int:
    """Read the 8 bytes at the start of a page, or store ``value`` there; return what they hold then: hugetlb_fault().

    Raises AccessFault: SIGSEGV where nothing is mapped, SIGBUS where no page can be had.
    """
    mapping = process.at(address)
    index = mapping.index(address)
    if index not in mapping.present:
        _map_missing_page(mapping, index, process.group)
    if value is not None:
        if not mapping.is_shared:
            _own_page(mapping, index, process.group)
        mapping.present[index].value = value
    return mapping.present[index].value


def allocate_page(
    file: HugeFile, index: int, private: Mapping | None, group: ControlGroup, copies_own_page: bool = False
) -> Page | None:
    """Return a new page for page ``index`` of ``file``, or of a ``private`` mapping of it; None where none can be had.

    alloc_hugetlb_folio(): quota of the mount, control group, then the pool. ``copies_own_page``: the owner of the
    mapping copies a page of its own, whose reservation it has used up already.
    """
    pool, subpool = file.pool, file.mount.subpool
    is_unreserved = copies_own_page or _needs_reservation(file, index, private)
    from_pool: int | None = int(is_unreserved)
    if is_unreserved and subpool is not None:
        from_pool = subpool.get(1)
    if from_pool is None:
        return None
    page = None
    if _charge(group, pool.size, is_unreserved):
        page = pool.take_page(from_pool == 0 and not _leaves_reserve(file, private, copies_own_page))
        if page is None:
            _uncharge(group, pool.size, is_unreserved)
    if page is None:
        if is_unreserved and subpool is not None:
            subpool.fail(1, from_pool, Quirk.SUBPOOL_USE_LOST_AT_FAULT)
        return None
    page.subpool = subpool
    page.group = group
    page.reserving_group = group if is_unreserved else None
    if private is None:
        file.reservation.add(file.reservation.missing(index, 1), None)
    elif private.reservation is not None:
        private.reservation.used_up.add(index)
    return page


def _needs_reservation(file: HugeFile, index: int, private: Mapping | None) -> bool:
    """Tell whether no reservation waits for this page: vma_needs_reservation()."""
    if private is None:
        return index not in file.reservation
    return private.reservation is None or index in private.reservation.used_up


def _leaves_reserve(file: HugeFile, private: Mapping | None, copies_own_page: bool) -> bool:
    """Tell whether a page that the mount has reserved is taken without counting the reservation down."""
    kernel = file.pool.kernel
    if copies_own_page:
        return kernel.follows(Quirk.SUBPOOL_RESERVE_AVOIDED)
    is_owned = private is None or private.reservation is not None
    return not is_owned and kernel.follows(Quirk.SUBPOOL_RESERVE_NOT_USED)


def _charge(group: ControlGroup, size: int, is_unreserved: bool) -> bool:
    if is_unreserved and not group.reserved.charge(size, 1):
        return False
    if group.used.charge(size, 1):
        return True
    if is_unreserved:
        group.reserved.uncharge(size, 1)
    return False


def _uncharge(group: ControlGroup, size: int, is_unreserved: bool) -> None:
    group.used.uncharge(size, 1)
    if is_unreserved:
        group.reserved.uncharge(size, 1)


def _map_missing_page(mapping: Mapping, index: int, group: ControlGroup) -> None:
    """Map the file's page or a new one: hugetlb_no_page()."""
    if mapping.has_lost_page:
        raise AccessFault(signal.SIGBUS)
    file = mapping.file
    page = file.pages.get(index)
    if page is None:
        page = _new_page(mapping, index, group)
    page.mapped += 1
    mapping.present[index] = page


def _new_page(mapping: Mapping, index: int, group: ControlGroup) -> Page:
    file = mapping.file
    if index >= file.length:
        raise AccessFault(signal.SIGBUS)
    if not mapping.is_shared and file.pool.kernel.prepares_anonymous_first:
        mapping.is_anonymous = True
    page = allocate_page(file, index, None if mapping.is_shared else mapping, group)
    if page is None:
        raise AccessFault(signal.SIGBUS)
    page.restores_reservation = False
    if mapping.is_shared:
        page.is_cached = True
        file.pages[index] = page
    else:
        page.is_anonymous = mapping.is_anonymous = True
    return page


def _own_page(mapping: Mapping, index: int, group: ControlGroup) -> None:
    """Make a page of a private mapping writable, copy it if others have it: hugetlb_wp()."""
    page = mapping.present[index]
    if page.is_anonymous and page.mapped == 1:
        return
    is_own = page.is_anonymous and mapping.reservation is not None
    copy = allocate_page(mapping.file, index, mapping, group, copies_own_page=is_own)
    if copy is None:
        if not is_own:
            raise AccessFault(signal.SIGBUS)
        take_from_children(mapping, index)
        return
    copy.value = page.value
    copy.is_anonymous = mapping.is_anonymous = True
    copy.restores_reservation = False
    copy.mapped = 1
    mapping.present[index] = copy
    page.mapped -= 1
    forget_page(mapping.file.pool, page)
