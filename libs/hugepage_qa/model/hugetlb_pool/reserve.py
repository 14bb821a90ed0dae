"""How pages are promised to files and mappings: hugetlb_reserve_pages() in mm/hugetlb.c."""

import errno

from hugepage_qa.model.hugetlb_pool.cgroup import ControlGroup
from hugepage_qa.model.hugetlb_pool.file import HugeFile
from hugepage_qa.model.known import Quirk


def reserve_file(file: HugeFile, group: ControlGroup, first: int, pages: int) -> None:
    """Promise a range of a file's pages, those that are not promised yet. Raises OSError (ENOMEM)."""
    missing = file.reservation.missing(first, pages)
    reserve(file, group, len(missing))
    file.reservation.add(missing, group)


def reserve(file: HugeFile, group: ControlGroup, pages: int) -> None:
    """Promise ``pages``, charged to ``group`` and to the quota of the mount. Raises OSError (ENOMEM)."""
    pool, subpool = file.pool, file.mount.subpool
    if not group.reserved.charge(pool.size, pages):
        raise OSError(errno.ENOMEM, "the control group may not reserve more")
    promised = pages if subpool is None else subpool.get(pages)
    if promised is not None and pool.reserve(promised):
        return
    if promised is not None and subpool is not None:
        subpool.fail(pages, promised, Quirk.SUBPOOL_USE_LOST_AT_MMAP)
    group.reserved.uncharge(pool.size, pages)
    raise OSError(errno.ENOMEM, "not enough pages")
