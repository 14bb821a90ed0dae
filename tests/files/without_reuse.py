"""POSIX_FADV_NOREUSE for files in large folios: what is used once does not count as used, and nothing else changes."""

import errno
from collections.abc import Sequence
from functools import partial
from operator import not_

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.file_contents import Brought, KnownFile
from hugepage_qa.cases.frames import ACTIVE, REFERENCED, flags_of_folios
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.large_folios import DISKS, block_size, file_case
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME, WORD, runs
from hugepage_qa.cases.pages_in_memory import base_pages_in_memory
from hugepage_qa.cases.thp_shared_memory import map_file
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

WITHOUT_REUSE = Area("files/without-reuse", sizes=Sizes.ONCE)

SOURCE = "posix_fadvise(2) POSIX_FADV_NOREUSE; mm/fadvise.c generic_fadvise()"
_NORMAL, _WILLNEED = 0, 3
_USED = REFERENCED | ACTIVE
#: pages of a mapping that are used: the first, one amid, and the last one of a huge page
_PLACES = 3


@partial(file_case, WITHOUT_REUSE)(
    "POSIX_FADV_NOREUSE drops nothing of a file that is in memory, for any range of it, and changes nothing that it"
    " holds; a length below 0 is EINVAL",
    SOURCE,
)
def kept(live: Live, file: KnownFile) -> None:
    base, block, whole, actor = live.base_page, block_size(live), file.contents.length, file.actor
    address, every = file.map().address, range(whole // base)

    def dropped(start: int, length: int) -> list[range]:
        file.read(whole)
        before = base_pages_in_memory(live, actor, address, every)
        live.expect_success(actor.call, "fadvise64", file.descriptor, start, length, _no_reuse(live))
        return runs(before - base_pages_in_memory(live, actor, address, every))

    for start, length in (
        (0, 0),
        (0, whole),
        (base, base),
        (block // 2 + 8, block // 2),
        (block, 0),
        (2 * whole, base),
    ):
        # others may need memory in that moment
        found = live.host.last_attempt(partial(dropped, start, length), not_)
        live.expect(f"pages that went with {length} bytes at {start}", [], found)
    live.expect_errno(errno.EINVAL, actor.call, "fadvise64", file.descriptor, 0, -1, _no_reuse(live))
    file.expect("advised")


@WITHOUT_REUSE.case(
    "POSIX_FADV_NOREUSE is taken for a file of hugetlbfs, too, and drops nothing of it",
    SOURCE,
    sizes=Sizes.EACH,
    pages=2,
)
def of_a_pool(live: Live) -> None:
    file = new_memfd(live, pages=2)
    memory = file.map(2)
    memory.touch(0, 7)
    for start, length in ((0, 0), (0, live.size), (live.base_page, live.size)):
        live.expect_success(file.actor.call, "fadvise64", file.descriptor, start, length, _no_reuse(live))
    live.expect("what it holds", (7, 0), (memory.read(0), memory.read(1)))
    live.expect_pool(nr=2, free=0)


@partial(file_case, WITHOUT_REUSE, on=DISKS, by=(Brought.WRITTEN,))(
    "what is used in a mapping of a file that was advised to have no reuse does not count as used when it is unmapped,"
    " as it does by another descriptor of the file, and after the advice of normal use",
    f"{SOURCE}; include/linux/mm_inline.h vma_has_recency() (17e810229cb3)",
    since="6.3",
)
def not_used(live: Live, file: KnownFile) -> None:
    actor = file.actor
    advised, other = file.descriptor, live.open(actor, file.path)

    def used(descriptor: int) -> Sequence[bool]:
        return _used(live, file, descriptor)

    if not any(live.host.last_attempt(partial(used, advised), all)):
        # as kernels before 6.16 do not count huge pages that are mapped whole
        raise CannotRun("this kernel does not tell what is used in a mapping")
    actor.call("fadvise64", advised, 0, 0, _no_reuse(live))
    found = live.host.last_attempt(partial(used, advised), _none)
    live.expect("which places count as used", [False] * _PLACES, found)
    for what, descriptor in (("another descriptor", other), ("the advice of normal use", advised)):
        actor.call("fadvise64", descriptor, 0, 0, _NORMAL)
        found = live.host.last_attempt(partial(used, descriptor), any)
        live.expect(f"whether any place counts as used by {what}", True, any(found))


def _none(found: Sequence[bool]) -> bool:
    return not any(found)


def _used(live: Live, file: KnownFile, descriptor: int) -> list[bool]:
    """Map a file that was just read from its disk, use some places of it, and return which count as used thereafter."""
    actor, base, block = file.actor, live.base_page, block_size(live)
    file.evict()
    actor.call("fadvise64", descriptor, 0, file.contents.length, _WILLNEED)
    memory = map_file(live, actor, descriptor, 1)
    places = 0, block // 2 // base * base, block - base
    for place in places:
        expected = [piece.value for piece in file.contents.between(place, place + WORD)]
        live.expect("words that are used", expected, [actor.read(memory.address + place)])
    frames = [entry & FRAME for entry in memory.pagemap(memory.address + place for place in places)]
    memory.unmap()
    return [bool(flags & _USED) for flags in flags_of_folios(live, actor, frames)]


def _no_reuse(live: Live) -> int:
    """Return POSIX_FADV_NOREUSE, which is behind POSIX_FADV_DONTNEED on each architecture."""
    return live.host.uapi.posix_fadv_dontneed + 1


class WithoutReuse(LiveTest):
    def test_without_reuse(self) -> None:
        self.run_area(WITHOUT_REUSE)
