"""Huge pages that stand behind page tables that are not there, which a known bug passes over and loses."""

import mmap
from collections.abc import Sequence
from functools import partial

from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory, value_or_signal
from hugepage_qa.oracle.known_issues import Quirk


def see_behind_absent_tables(live: Live, memory: Memory, touched: Sequence[int]) -> None:
    """Look whether what is done to ``memory`` is done to its ``touched`` pages, each behind a table that is not there.

    A kernel with behind-absent-table would lose them for the pool at the end of the mapping. There all of them stay
    writable when ``memory`` as a whole is protected: then each is unmapped by itself, which meets its table, before
    KnownBug is raised. On kernels without it nothing is done; on others ``memory`` is as it was.
    """
    if not (live.mmu.has_pud_entries(live.size) and live.has_bug(Quirk.BEHIND_ABSENT_TABLE)):
        return
    memory.protect(mmap.PROT_READ)
    found = [value_or_signal(partial(memory.touch, page, memory.read(page))) for page in touched]
    passed_over = [None for _ in touched]
    if found == passed_over:
        for page in touched:
            memory.unmap(page, 1)
    known = {Quirk.BEHIND_ABSENT_TABLE: passed_over}
    what = "signals of writes to pages behind a page table that is not there, after mprotect(2) of all"
    live.expect(what, ["SIGSEGV" for _ in touched], found, known)
    memory.protect(READ_WRITE)
