"""Huge pages in parts that NUMA balancing waits for a fault on: one fault gives back all that it may, and no more.

Since Linux 6.10 the fault of a base page gives back the others of its huge page, too.
"""

import mmap
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from hugepage_qa.cases.balanced_pages import await_marks, far_memory
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import F_NUMA_BALANCING, Mode, set_policy
from hugepage_qa.cases.process_counters import faults
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.kernel.uapi import PROT_NONE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

HINTED = Area("thp/hinted-parts", sizes=Sizes.ONCE)

_READ = mmap.PROT_READ
_NEW_VALUE = 77
_NAMES = {READ_WRITE: "read and written", _READ: "read", PROT_NONE: "closed"}


@dataclass(frozen=True)
class Part:
    """Base pages of a huge page from a first to before a last one, and what may be done with them."""

    first: int
    end: int
    prot: int


@HINTED.case(
    "when NUMA balancing has given back the base pages of a huge page that it waited for a fault on, each part of it"
    " has the protection that mprotect(2) gave it before: what is closed stays closed, and what is to be read is not"
    " written, wherever the parts begin and end and whichever is touched first; all of it holds what it held",
    "mprotect(2); Documentation/admin-guide/sysctl/kernel.rst numa_balancing; mm/memory.c do_numa_page(),"
    " numa_rebuild_large_mapping()",
    since="5.12",  # MPOL_F_NUMA_BALANCING (bda420b98505)
    nodes=2,
)
def protected_before(live: Live) -> None:
    rows = _rows(live)
    memory, _near, node = far_memory(live, len(rows))
    actor, each = memory.actor, memory.size // live.base_page
    # where no processor of the process is near, such a policy has pages waited for, and keeps them where they are:
    # what moves is given back in another way
    set_policy(actor, Mode.BIND | F_NUMA_BALANCING, [node])
    of_base_pages = Memory(live, actor, memory.address, len(rows) * each, live.base_page)
    opened = 0
    for number, parts in enumerate(rows):
        for part in parts:
            of_base_pages.protect(part.prot, number * each + part.first, part.end - part.first)
            opened += (part.prot != PROT_NONE) * (part.end - part.first)
    await_marks(live, actor, opened, in_parts=True)
    # what it touches for a request may be waited for, too, once
    own = actor.mmap(live.base_page, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    actor.write(own, _NEW_VALUE)
    live.expect("what a page of its own holds", _NEW_VALUE, actor.read(own))
    waited_for = 0
    for number, parts in enumerate(rows):
        told = ", ".join(f"{part.first} to {part.end - 1} {_NAMES[part.prot]}" for part in parts)
        with live.about(f"base pages {told}"):
            waited_for += _expect_protected(
                live, of_base_pages.part(number * each, each), 1 + number * memory.size, parts
            )
    if not waited_for:
        raise CannotRun("NUMA balancing waits for no fault on huge pages in parts")
    live.notes.append(f"a fault was waited for on {waited_for} of {len(rows)} huge pages")


def _expect_protected(live: Live, memory: Memory, first_word: int, parts: Sequence[Part]) -> bool:
    """Touch a base page of the first part that is open, and expect all to have their protection, and to hold theirs.

    The first word of all is ``first_word``. Returns whether the touch was a fault.
    """
    of_ours = next(part for part in parts if part.prot != PROT_NONE)
    touched = (of_ours.first + of_ours.end) // 2
    before = faults(live, memory.actor).minor
    live.expect(f"base page {touched}", first_word + touched * memory.size, memory.read(touched))
    is_fault = faults(live, memory.actor).minor > before
    for part in parts:
        for page in _looked_at(part):
            word = first_word + page * memory.size
            with live.about(f"base page {page}, {_NAMES[part.prot]}"):
                if part.prot == PROT_NONE:
                    live.expect_signal(signal.SIGSEGV, memory.read, page)
                    continue
                live.expect("what it holds", word, memory.read(page))
                if part.prot == _READ:
                    live.expect_signal(signal.SIGSEGV, memory.touch, page, _NEW_VALUE)
                else:
                    memory.touch(page, word)
    memory.protect(READ_WRITE)
    memory.expect_filled(first_word)
    return is_fault


def _looked_at(part: Part) -> list[int]:
    """Return base pages at both ends of a part, and one in it."""
    pages = {part.first, part.first + 1, (part.first + part.end) // 2, part.end - 2, part.end - 1}
    return sorted(page for page in pages if part.first <= page < part.end)


def _rows(live: Live) -> list[list[Part]]:
    """Return the parts of each huge page: two, behind each other and with other borders, and three."""
    every = pmd_size(live) // live.base_page
    half, quarter = every // 2, every // 4
    rows = []
    for opened in (READ_WRITE, _READ):
        for other in (PROT_NONE, _READ if opened == READ_WRITE else READ_WRITE):
            rows += [
                [Part(0, border, first), Part(border, every, second)]
                for border, first, second in (
                    (half, opened, other),
                    (half, other, opened),
                    (every - 1, opened, other),
                    (1, other, opened),
                )
            ]
    for middle, ends in ((READ_WRITE, PROT_NONE), (PROT_NONE, READ_WRITE), (_READ, PROT_NONE), (READ_WRITE, _READ)):
        rows.append([Part(0, quarter, ends), Part(quarter, half, middle), Part(half, every, ends)])
    return rows


class ThpHintedParts(LiveTest):
    def test_hinted_parts(self) -> None:
        self.run_area(HINTED)
