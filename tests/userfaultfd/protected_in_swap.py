"""Memory in swap that a program protects, or protects no longer: it is so in swap, and when it is back."""

import signal
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory, runs
from hugepage_qa.cases.swapped import need_swap, page_all_out
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, mapped_in_parts
from hugepage_qa.cases.thp_shared_memory import map_start, mount_tmpfs
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.plugins.avocado_test import LiveTest

IN_SWAP = Area("userfaultfd/protected-in-swap", sizes=Sizes.ONCE)

DOC = (
    "Documentation/admin-guide/mm/userfaultfd.rst Write Protect Notifications; Documentation/admin-guide/mm/pagemap.rst"
    " bit 57; mm/mprotect.c change_pte_range(); mm/memory.c do_swap_page()"
)
_NEW_VALUE = 1 << 41


@IN_SWAP.case(
    "base pages, huge pages and files of a tmpfs that are in swap when a program protects them, all or a part, are"
    " protected there, when they are back, and in swap again: they are read and not written, what is beside them is;"
    " those that it protects no longer when they are in swap are written",
    DOC,
    since="5.19",  # UFFD_FEATURE_WP_HUGETLBFS_SHMEM
)
def protected_in_swap(live: Live) -> None:
    let_rest(live)
    size, base = pmd_size(live), live.base_page
    need_swap(live, 2 * size)
    for make, (start, length) in product(_KINDS, ((0, size), (size // 2, base), (base, size - 2 * base))):
        with live.about(f"{make.__name__.strip('_').replace('_', ' ')}, {length} bytes from {start} on"):
            _expect_protected_in_swap(live, make(live), start, length)


def _expect_protected_in_swap(live: Live, memory: Memory, start: int, length: int) -> None:
    """Expect ``length`` bytes of ``memory``, from ``start`` on, and no others to be protected as long as they are."""
    base = live.base_page
    protected = [range(start // base, (start + length) // base)]
    fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM)
    page_all_out(live, memory)
    fault.write_protect(offset=start, length=length)
    _expect_protected(live, memory, "in swap", protected)
    live.expect("Rss of what is in swap", 0, memory.smaps().rss)
    memory.expect_filled()
    _expect_protected(live, memory, "when it is back", protected)
    for offset in (start, start + length - WORD):
        live.expect_signal(signal.SIGBUS, memory.actor.write, memory.address + offset, _NEW_VALUE)
    for offset in (start - WORD, start + length):
        if 0 <= offset < memory.length:
            memory.fill_part(offset, WORD)
    memory.expect_filled()
    page_all_out(live, memory)
    _expect_protected(live, memory, "in swap again", protected)
    fault.write_protect(on=False, offset=start, length=length)
    _expect_protected(live, memory, "in swap, and no longer", [])
    memory.expect_filled()
    _expect_protected(live, memory, "when it is back, and no longer", [])
    memory.fill(_NEW_VALUE)
    memory.expect_filled(_NEW_VALUE)
    memory.actor.end()


def _expect_protected(live: Live, memory: Memory, when: str, protected: list[range]) -> None:
    live.expect(f"runs of base pages that are protected, {when}", protected, runs({*protected_pages(memory)}))


def _file_of_a_tmpfs(live: Live) -> Memory:
    actor = live.actor()
    memory = map_start(live, actor, live.open(actor, f"{mount_tmpfs(live, 'never')}/file"))
    memory.fill()
    return memory


_KINDS = (base_pages, huge_pages, mapped_in_parts, _file_of_a_tmpfs)


class ProtectedInSwap(LiveTest):
    def test_protected_in_swap(self) -> None:
        self.run_area(IN_SWAP)
