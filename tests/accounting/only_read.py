"""Shared memory that was read and never written: smaps tells none of it as dirty, and then what was written."""

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_shared_memory import expect_mapped_whole, map_file, mount_tmpfs
from hugepage_qa.kernel.uapi import MADV_POPULATE_READ
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

ONLY_READ = Area("accounting/only-read", sizes=Sizes.ONCE)

_VALUE = 77


@dataclass(frozen=True)
class File:
    """An open file of a tmpfs as long as a huge page, and what its huge= is."""

    actor: Actor
    descriptor: int
    huge: str

    def map(self, live: Live, offset: int, length: int) -> Memory:
        """Map base pages of it, or all of it where a huge page fits."""
        if length == pmd_size(live):
            return map_file(live, self.actor, self.descriptor, 1)
        address = self.actor.mmap(length, READ_WRITE, mmap.MAP_SHARED, self.descriptor, offset)
        return Memory(live, self.actor, address, length // live.base_page, live.base_page)


#: what has memory mapped without a write to it
_Read = Callable[[Live, Memory], None]


@ONLY_READ.case(
    "what of a file of a tmpfs was read through a mapping that may be written is clean in smaps, in huge pages and base"
    " pages, mapped as a whole or in part, whoever read it how: word by word, by advice, to lock it, before it might be"
    " written, or another process; what is written then is dirty, and stays so for who maps it again",
    "Documentation/filesystems/proc.rst Private_Clean, Private_Dirty; mlock(2); mm/gup.c populate_vma_page_range();"
    " mm/memory.c set_pte_range(); fs/proc/task_mmu.c smaps_account()",
    since="5.14",  # MADV_POPULATE_READ
)
def clean_until_written(live: Live) -> None:
    let_nobody_else_act(live)
    size, base = pmd_size(live), live.base_page
    parts = (0, 16 * base), (size // 2 - base, 3 * base), (size - base, base), (0, size)
    for huge in ("always", "never"):
        point = mount_tmpfs(live, huge)
        for (offset, length), is_there, read in product(parts, (False, True), _WAYS):
            row = f"huge={huge}, {length} bytes at {offset}, there before: {is_there},{read.__name__}"
            with live.about(row.replace("_", " ")):
                with_blocks(live, size, int(huge == "always"))
                actor = live.actor()
                file = File(actor, live.open(actor, f"{point}/file"), huge)
                actor.call("ftruncate", file.descriptor, size)
                if is_there:
                    # one huge page: a part of it is mapped otherwise than one that comes for a small mapping
                    whole = file.map(live, 0, size)
                    _expect_zeroes(live, whole)
                    expect_mapped_whole(live, whole, int(huge == "always"), f"huge={huge}, at first")
                    whole.unmap()
                memory = file.map(live, offset, length)
                read(live, memory)
                _expect_clean(live, memory)
                if length == size:
                    expect_mapped_whole(live, memory, int(huge == "always"), f"huge={huge}")
                _expect_dirty_when_written(live, file, memory, offset)
                # the next one is to find no page of it
                actor.call("ftruncate", file.descriptor, 0)
            actor.end()


def _expect_zeroes(live: Live, memory: Memory) -> None:
    live.expect("words that are not zero", 0, memory.nonzero(0, memory.length))


def _expect_clean(live: Live, memory: Memory) -> None:
    _expect_zeroes(live, memory)
    fields = memory.smaps().fields
    clean, dirty = (fields[f"Private_{kind}"] + fields[f"Shared_{kind}"] for kind in ("Clean", "Dirty"))
    live.expect("Rss, clean, dirty of what was read", (memory.length, memory.length, 0), (fields["Rss"], clean, dirty))


def _expect_dirty_when_written(live: Live, file: File, memory: Memory, offset: int) -> None:
    """Write the last base page of ``memory``, and expect that to be dirty, whoever has it mapped."""
    length, last = memory.length, memory.length - live.base_page
    memory.actor.write(memory.address + last, _VALUE)
    _expect_some_dirty(live, file, memory, "what was written")
    if memory.size > live.base_page:
        # some kernels forget it of what is unmapped as a whole, which files/tmpfs-files looks at (dirty-lost-at-unmap)
        return
    memory.unmap()
    again = file.map(live, offset, length)
    live.expect("words that are not zero then", 1, again.nonzero(0, length))
    _expect_some_dirty(live, file, again, "what was mapped again")


def _expect_some_dirty(live: Live, file: File, memory: Memory, what: str) -> None:
    """Expect the base page that was written to be dirty, and others only where they are of the same huge page."""
    # that has one bit where it is mapped as a whole, some base pages of it have one on arm64, and all have that of it
    most = memory.length if file.huge == "always" else live.base_page
    dirty = memory.smaps().dirty
    is_right = live.base_page <= dirty <= most
    live.expect(f"{dirty} bytes of {what} are dirty, {live.base_page} to {most}", True, is_right)


def _word_by_word(live: Live, memory: Memory) -> None:
    _expect_zeroes(live, memory)


def _last_page_first(live: Live, memory: Memory) -> None:
    live.expect("what is read first", 0, memory.actor.read(memory.address + memory.length - live.base_page))


def _by_advice(_live: Live, memory: Memory) -> None:
    memory.advise(MADV_POPULATE_READ)


def _to_lock_it(_live: Live, memory: Memory) -> None:
    memory.lock()
    memory.unlock()


def _before_it_might_be_written(live: Live, memory: Memory) -> None:
    memory.protect(mmap.PROT_READ)
    _expect_zeroes(live, memory)
    memory.protect(READ_WRITE)


def _by_another_process(live: Live, memory: Memory) -> None:
    other = memory.fork()
    _expect_zeroes(live, other)
    other.actor.end()


_WAYS: tuple[_Read, ...] = (
    *(_word_by_word, _last_page_first, _by_advice, _to_lock_it, _before_it_might_be_written, _by_another_process),
)


class OnlyRead(LiveTest):
    def test_only_read(self) -> None:
        self.run_area(ONLY_READ)
