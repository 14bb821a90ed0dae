"""What MADV_COLLAPSE tells of private mappings of files: that it is done if, and only if, all is mapped as a whole."""

import errno
import os
from collections.abc import Sequence
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse_memory, expect_no_collapse
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import mapped_huge, pmd_size
from hugepage_qa.cases.thp_shared_memory import expect_shared, map_file, map_start, mount_tmpfs
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_DONTNEED
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

TOLD = Area("thp/collapse-told", sizes=Sizes.ONCE)

#: what the manual page says of success: all is mapped as a whole
DOC = "madvise(2) MADV_COLLAPSE; mm/khugepaged.c madvise_collapse()"
SINCE = "6.1"
_PAGES = 3
_COPY = 1 << 41


@TOLD.case(
    "MADV_COLLAPSE of a private mapping of a file that is in huge pages is EINVAL where the process has a copy of any"
    " base page of its own, whichever and however many, and leaves the copies what they are; where it never had one, or"
    " has given all back, it succeeds, and all is mapped as a whole",
    f"{DOC}, collapse_pte_mapped_thp(); mmap(2) MAP_PRIVATE",
    since=SINCE,
)
def private_copies(live: Live) -> None:
    point, every = _prepare(live)
    copies = ((), (0,), (1,), (every // 2,), (every - 1,), (0, every - 1), tuple(range(every)))
    for mounted, read, copied in product((point, None), (False, True), copies):
        file = _file_in_huge_pages(live, mounted)
        with live.about(
            f"a tmpfs that is mounted {bool(mounted)}, read before {read}, copies of {len(copied)} from {copied[:1]}"
        ):
            memory = map_file(live, *file, 1, shared=False)
            _copy(live, memory, copied)
            if read:
                live.expect("words that are not those of the file", 0, _wrong(live, memory, copied))
            if copied:
                for _time in range(2):
                    expect_no_collapse(live, memory, errno.EINVAL)
                    live.expect("bytes mapped as a whole", 0, mapped_huge(memory))
                    live.expect("words that changed", 0, _wrong(live, memory, copied))
                # its copies are gone with it, and the file is there
                memory.advise(MADV_DONTNEED)
            else:
                # a mapping without a page table is none yet
                live.expect("the first word", 1, memory.read())
            collapse_memory(live, memory)
            live.expect("bytes mapped as a whole without copies", memory.length, mapped_huge(memory))
            live.expect("words of the file that changed", 0, _wrong(live, memory, ()))
        file[0].end()


@TOLD.case(
    "of a private mapping of several huge pages MADV_COLLAPSE is EINVAL when there is a copy of a base page in any of"
    " them, the first, one between or the last; what is mapped as a whole then has none, and all hold what they held",
    f"{DOC}, collapse_pte_mapped_thp(); mmap(2) MAP_PRIVATE",
    since=SINCE,
)
def one_of_several(live: Live) -> None:
    point, every = _prepare(live)
    for with_copies, place in product(((0,), (1,), (2,), (0, 2), (0, 1, 2)), (0, every // 2, every - 1)):
        actor, descriptor = _file_in_huge_pages(live, point)
        with live.about(f"copies of base page {place} of the pages {with_copies}"):
            memory = map_file(live, actor, descriptor, _PAGES, shared=False)
            copied = [page * every + place for page in with_copies]
            _copy(live, memory, copied)
            live.expect("words that are not those of the file", 0, _wrong(live, memory, copied))
            expect_no_collapse(live, memory, errno.EINVAL)
            live.expect("words that changed", 0, _wrong(live, memory, copied))
            whole = _PAGES - len(with_copies)
            found = mapped_huge(memory)
            live.expect(
                f"at most {whole} huge pages are mapped as a whole, found {found} bytes",
                True,
                found <= whole * memory.size,
            )
            for page in range(_PAGES):
                if page not in with_copies:
                    collapse_memory(live, memory.part(page))
            live.expect("bytes mapped as a whole without copies", whole * memory.size, mapped_huge(memory))
            live.expect("words that changed then", 0, _wrong(live, memory, copied))
        actor.end()


def _prepare(live: Live) -> tuple[str, int]:
    """Have files get huge pages, and nobody else make them. Raises CannotRun.

    Returns where a tmpfs with them is mounted, and how many base pages each has.
    """
    let_nobody_else_act(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "always")
    return mount_tmpfs(live, "always"), pmd_size(live) // live.base_page


def _file_in_huge_pages(live: Live, mounted: str | None) -> tuple[Actor, int]:
    """Return a new actor, and the descriptor of a file, filled, that is in huge pages. Raises CannotRun.

    It is one of the tmpfs that is ``mounted`` there, or of that of the kernel, and gone with its actor.
    """
    actor = live.actor()
    if mounted:
        descriptor = live.open(actor, mounted, os.O_RDWR | live.host.uapi.o_tmpfile)
    else:
        descriptor = actor.call("memfd_create", "file", 0)
    memory = map_start(live, actor, descriptor, _PAGES)
    expect_shared(live, memory, True, "huge=always")
    memory.unmap()
    return actor, descriptor


def _copy(live: Live, memory: Memory, copied: Sequence[int]) -> None:
    """Write the first word of each base page whose number is in ``copied``."""
    for number in copied:
        memory.actor.write(memory.address + number * live.base_page, _COPY + number)


def _wrong(live: Live, memory: Memory, copied: Sequence[int]) -> int:
    """Return how many words of ``memory`` are not the file's, but for the first of copies, which must be their own."""
    # that is one that differs
    differ = memory.wrong(0, memory.length) - len(copied)
    own = (memory.actor.read(memory.address + number * live.base_page) - number for number in copied)
    return differ + sum(value != _COPY for value in own)


class ThpCollapseTold(LiveTest):
    def test_collapse_told(self) -> None:
        self.run_area(TOLD)
