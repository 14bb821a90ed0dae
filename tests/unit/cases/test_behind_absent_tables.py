"""Pages that a kernel passes over behind page tables that are not there: what ends a case, and leaves none of them."""

import mmap
import signal
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hugepage_qa.cases.behind_absent_tables import see_behind_absent_tables
from hugepage_qa.cases.expectations import Expectations, KnownBug
from hugepage_qa.cases.live import READ_WRITE
from hugepage_qa.oracle.architecture import MMUS
from hugepage_qa.oracle.compare import Difference
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.process.actor import Fault
from hugepage_qa.sizes import GIB, MIB
from hugepage_qa.version import KernelVersion

TOUCHED = (512, 2047)
HELD = {512: 5, 2047: 6}
PROTECTED = ("protect", mmap.PROT_READ)
WITH_THE_BUG = KernelVersion(6, 9)


class StandIn:
    """Memory whose ``open_pages`` are written whatever the protection; ``done`` is what was done to it."""

    def __init__(self, open_pages: Sequence[int]) -> None:
        self.held = dict(HELD)
        self.done: list[tuple[str, int]] = []
        self._open_pages = open_pages

    def protect(self, prot: int) -> None:
        """Change the protection of all of it."""
        self.done.append(("protect", prot))

    def read(self, page: int) -> int:
        """Return what a page holds."""
        return self.held[page]

    def touch(self, page: int, value: int) -> None:
        """Write a page that may only be read."""
        if page not in self._open_pages:
            raise Fault(signal.SIGSEGV, 2, 0)
        self.held[page] = value

    def unmap(self, first: int, pages: int) -> None:
        """Unmap pages."""
        assert pages == 1
        self.done.append(("unmap", first))


def look(
    memory: StandIn, version: KernelVersion = WITH_THE_BUG, architecture: str = "aarch64", size: int = GIB
) -> list[Difference]:
    """Look at ``memory``, and return the differences that were found."""
    expectations = Expectations(Rule("rule", "a statement", "a document"), version, architecture)
    live = SimpleNamespace(
        mmu=MMUS[f"{architecture} 4K"], size=size, has_bug=expectations.has_bug, expect=expectations.expect
    )
    see_behind_absent_tables(cast(Any, live), cast(Any, memory), TOUCHED)
    return expectations.differences


def test_pages_that_all_stay_writable_are_known_and_unmapped_one_by_one() -> None:
    memory = StandIn(TOUCHED)
    with pytest.raises(KnownBug) as raised:
        look(memory)
    assert raised.value.issue.quirk is Quirk.BEHIND_ABSENT_TABLE
    assert memory.done == [PROTECTED, *(("unmap", page) for page in TOUCHED)]
    assert memory.held == HELD


def test_memory_that_is_protected_is_left_as_it_was() -> None:
    memory = StandIn([])
    assert look(memory) == []
    assert memory.done == [PROTECTED, ("protect", READ_WRITE)]


@pytest.mark.parametrize("page", TOUCHED)
def test_one_page_alone_is_a_difference(page: int) -> None:
    memory = StandIn([page])
    assert len(look(memory)) == 1
    assert memory.done == [PROTECTED, ("protect", READ_WRITE)]
    assert memory.held == HELD


@pytest.mark.parametrize(
    ("version", "architecture", "size"),
    [
        (KernelVersion(6, 8, 12), "aarch64", GIB),
        (KernelVersion(7, 3), "aarch64", 32 * MIB),
        (KernelVersion(7, 3), "x86_64", GIB),
    ],
)
def test_nothing_is_done_where_there_is_no_such_bug(version: KernelVersion, architecture: str, size: int) -> None:
    memory = StandIn(TOUCHED)
    assert look(memory, version, architecture, size) == []
    assert memory.done == []
