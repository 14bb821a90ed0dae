"""Pages that somebody holds who has no file open: they outlive their place in the file, the file and the mount."""

from collections.abc import Callable
from itertools import cycle

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.hugetlb_files import HugeFile, file_of_each_kind, open_file
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.pinned_pages import pipe_with, word_from
from hugepage_qa.kernel.uapi import AT_FDCWD
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

OUTLIVED = Area("reservation/outlived-mounts")
#: pages of the pool, and of the file
_ALL, _USED = 4, 2
#: min_size= and size= in pages
_LIMITS = ((None, None), (None, 2), (None, _ALL), (1, _ALL), (2, 2), (2, None), (3, _ALL), (_ALL, _ALL), (3, None))
#: fewer pages than the file uses are promised, and nothing limits it
_LESS_THAN_USED = ((1, None),)


@OUTLIVED.case(
    "a page that a pipe holds outlives its file and its mount, and holds what it held; it still counts as one of those"
    " that min_size= promises, which are all given back with the last page",
    f"{HUGETLB_DOC} min_size; vmsplice(2); mm/hugetlb.c hugepage_put_subpool(), unlock_or_release_subpool(),"
    " free_huge_folio()",
    since="5.13",  # 5.10 frees what counts the pages of the mount while these are held, and panics
    pages=_ALL,
)
def held_page_outlives_its_mount(live: Live) -> None:
    # with the bug a page that is given back changes memory that was freed, which may stop a CPU: what shows it is
    # "hugepage-qa reproduce", on a machine that is thrown away
    is_counted = not live.has_bug(Quirk.SUBPOOL_FREED_IN_USE)
    limits_here = (*_LIMITS, *_LESS_THAN_USED) if is_counted else _LIMITS
    rows = [(limits, held) for limits in limits_here for held in range(1, _USED + 1)]
    # gigantic pages take a second each: some rows, with one page held and with both
    for ((least, most), held), end in zip(rows[::5] if live.is_gigantic else rows, cycle(_ENDS)):
        promised = least or 0
        point = live.mount(**_limits(live, least, most))
        path = f"{point}/file"
        file = open_file(live, path)
        memory = file.map(_USED)
        for page in range(_USED):
            memory.touch(page, 7 + page)
        readers = [pipe_with(live, memory.part(page)) for page in range(held)]
        memory.unmap()
        with live.about(f"min_size= of {least} pages, size= of {most}, {held} of {_USED} are held, {end.__name__}"):
            end(file, path)
            left = max(promised - held, 0)
            live.expect_pool(nr=_ALL, free=_ALL - held, resv=left)
            live.unmount(point)
            live.expect_pool(nr=_ALL, free=_ALL - held, resv=left)
            for page, reader in enumerate(readers):
                live.expect("what comes out of the pipe", 7 + page, word_from(live, file.actor, reader))
                still = held - page - 1
                live.expect_pool(nr=_ALL, free=_ALL - still, resv=max(promised - still, 0) if still else 0)
        file.actor.end()


def _limits(live: Live, least: int | None, most: int | None) -> dict[str, int]:
    limits = {"min_size": least, "size": most}
    return {name: pages * live.size for name, pages in limits.items() if pages is not None}


def _cut(file: HugeFile, _path: str) -> None:
    file.truncate(0)
    file.close()


def _punched(file: HugeFile, _path: str) -> None:
    file.punch(_USED)
    file.close()


def _removed(file: HugeFile, path: str) -> None:
    file.close()
    file.actor.call("unlinkat", AT_FDCWD, path, 0)


_ENDS: tuple[Callable[[HugeFile, str], None], ...] = (_cut, _punched, _removed)


@OUTLIVED.case(
    "where a hole is punched under a page that a pipe holds, and where the file is cut and grows again, the file has"
    " another page, of zeroes, and the one in the pipe holds what it held; each goes by itself",
    "fallocate(2) FALLOC_FL_PUNCH_HOLE; vmsplice(2); fs/hugetlbfs/inode.c remove_inode_hugepages()",
    pages=2,
)
def hole_under_a_held_page(live: Live) -> None:
    for file in file_of_each_kind(live):
        for cut in (False, True):
            memory = file.map(1)
            memory.touch(value=7)
            reader = pipe_with(live, memory)
            if cut:
                file.truncate(0)
            else:
                file.punch(1)
            live.expect_pool(nr=2, free=1)
            live.expect("bytes that the file occupies", 0, file.blocks)
            file.truncate(1)
            memory.expect_zero()
            memory.touch(value=8)
            live.expect_pool(nr=2, free=0)
            live.expect("bytes that the file occupies", live.size, file.blocks)
            live.expect("what comes out of the pipe", 7, word_from(live, file.actor, reader))
            live.expect_pool(nr=2, free=1)
            live.expect("what the file holds", 8, memory.read())
            memory.unmap()
            file.truncate(0)
            live.expect_pool(nr=2, free=2)


class OutlivedMounts(LiveTest):
    def test_outlived_mounts(self) -> None:
        self.run_area(OUTLIVED)
