"""hugetext on the running machine: its switches, and the text that khugepaged collapses, once it had its chance.

Which memory of a process is in huge pages is told by its page frames (Documentation/admin-guide/mm/pagemap.rst).
"""

import mmap
import os
from collections.abc import Iterable
from functools import partial

from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.fragmentation import expect_no_node_short, with_blocks
from hugepage_qa.cases.khugepaged_clock import (
    KHUGEPAGED,
    PATIENT_SCANS,
    allow_absent,
    await_khugepaged,
    await_scans,
    quicken,
)
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME, PAGEMAP, PRESENT, Memory, read_entries
from hugepage_qa.cases.text_program import TextProgram
from hugepage_qa.cases.thp_memory import keep_min_free, map_aligned, pmd_size
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.program_text import Generation, becomes_huge, possible_generations
from hugepage_qa.process.actor import Actor, Refused
from hugepage_qa.sizes import MIB

FLAGS = "/proc/kpageflags"

_HEAD, _TAIL = 1 << 15, 1 << 16


def in_huge_pages(live: Live, actor: Actor, addresses: Iterable[int], size: int) -> int | None:
    """Return how many bytes at the aligned ``addresses`` are in pages of ``size`` bytes, mapped as such or not.

    None where the kernel has no such files (CONFIG_PROC_PAGE_MONITOR).
    """
    try:
        frames, flags = (live.open(actor, path, os.O_RDONLY) for path in (PAGEMAP, FLAGS))
    except Refused:
        return None
    count = size // live.base_page
    return sum(size for address in addresses if _is_huge(actor, frames, flags, address // live.base_page, count))


def _is_huge(actor: Actor, frames: int, flags: int, page: int, count: int) -> bool:
    """Tell whether ``count`` pages from ``page`` on are a compound page: its head, and nothing but tails."""
    present = [entry & FRAME for entry in read_entries(actor, frames, page, count) if entry & PRESENT]
    if not present or present != list(range(present[0], present[0] + count)):
        return False
    head, *tails = read_entries(actor, flags, present[0], count)
    return bool(head & _HEAD) and all(flag & _TAIL for flag in tails)


ENABLED = f"{DIRECTORY}/hugetext_enabled"
THRESHOLD = f"{DIRECTORY}/hugetext_pad_threshold"

_MOST = f"{KHUGEPAGED}/max_nr_hugetext"
_WRITABLE_CODE = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
_BITS_ONLY = 2
_LARGEST_PMD = 32 * MIB


def require_hugetext(live: Live) -> None:
    """Raise CannotRun on a kernel without hugetext."""
    if live.host.read(ENABLED) is None:
        raise CannotRun(f"this kernel has no hugetext (/{ENABLED})")


def require_padding(live: Live) -> None:
    """Raise CannotRun on a kernel that pads no text."""
    if live.host.read(THRESHOLD) is None:
        raise CannotRun(f"this kernel pads no text (no /{THRESHOLD})")


def generation(live: Live) -> Generation:
    """Return how the kernel understands hugetext_enabled; where its files do not tell, by whether it takes a 2."""
    require_hugetext(live)
    possible = possible_generations(has_threshold=live.host.read(THRESHOLD) is not None)
    if len(possible) == 1:
        return possible[0]
    try:
        live.set_knob(ENABLED, str(_BITS_ONLY))
    except OSError:
        return Generation.SWITCH
    return Generation.BITS


def switch(live: Live, mode: int, *, threshold: int = 0, thp: str = "madvise") -> None:
    """Set hugetext_enabled and the padding threshold (bytes) until the case ends, with a quick khugepaged.

    Raises CannotRun where the kernel does not have this.
    """
    require_hugetext(live)
    if mode >= _BITS_ONLY and generation(live) is Generation.SWITCH:
        raise CannotRun("hugetext_enabled of this kernel is a switch: it has no modes 2 and 3")
    keep_min_free(live)
    live.set_knob(f"{DIRECTORY}/enabled", thp)
    live.set_knob(f"{DIRECTORY}/defrag", "always")
    quicken(live)
    live.set_knob(f"{KHUGEPAGED}/defrag", "1")
    # one page of a huge page is enough, and no limit on how many there are (which later 5.10 kernels have)
    allow_absent(live, pmd_size(live) // live.base_page - 1)
    live.set_knob_if_there(_MOST, "0")
    if threshold:
        require_padding(live)
    live.set_knob_if_there(THRESHOLD, str(threshold))
    live.set_knob(ENABLED, str(mode))


def huge_page_of_text(live: Live) -> int:
    """Return the bytes of a huge page of text. Raises CannotRun where programs of this size are too large to build."""
    size = pmd_size(live)
    if size > _LARGEST_PMD:
        raise CannotRun(f"huge pages of {size >> 20} MiB: programs of that size are not built")
    return size


def expect_collapsed(live: Live, program: TextProgram, mode: int, *, advised: bool = False) -> None:
    """Expect each text mapping to become huge as the model says, once khugepaged has seen it, and to be right."""
    wanted = _predicted(live, program, mode, advised=advised)

    def is_collapsed() -> bool:
        # khugepaged takes the page table away; the next access maps the huge page
        program.touch()
        return _found(program) == wanted

    await_khugepaged(live, is_collapsed, PATIENT_SCANS)
    expect_huge(live, program, wanted)
    program.expect_intact()


def expect_huge(live: Live, program: TextProgram, wanted: list[int]) -> None:
    """Expect these bytes of FilePmdMapped of each text mapping; say of others what the page frames are.

    A counter that is wrong and a khugepaged that makes no huge pages would be the same difference. Raises CannotRun
    where memory is too fragmented for them.
    """
    subject, found = "FilePmdMapped of each text mapping", _found(program)
    if found != wanted:
        size = pmd_size(live)
        expect_text_can_be_huge(live, found, wanted)
        inside = in_huge_pages(live, program.actor, program.whole_blocks(size), size)
        subject += ", which kpageflags would tell" if inside is None else f", of which {inside} bytes are in huge pages"
    live.expect(subject, wanted, found)


def expect_text_can_be_huge(live: Live, found: list[int], wanted: list[int]) -> None:
    """Raise CannotRun where less text is huge than is ``wanted``, and memory is too fragmented for it."""
    if sum(found) < sum(wanted):
        expect_no_node_short(live, pmd_size(live), sum(wanted) // pmd_size(live))


def expect_not_collapsed(live: Live, program: TextProgram) -> None:
    """Expect no text of a program to be huge although khugepaged has looked at this process.

    It looks at none that nothing has put on its list: memory that the program is advised about does.
    """
    see_khugepaged_at_work(live, program.actor)
    expect_small(live, program)


def expect_small(live: Live, program: TextProgram) -> None:
    """Expect no text of a program to be huge, and all of it to be right."""
    program.touch()
    live.expect("FilePmdMapped of the text", 0, program.huge())
    program.expect_intact()


def see_khugepaged_at_work(live: Live, actor: Actor | None = None) -> Memory:
    """Wait until khugepaged has made a huge page of advised memory and has then been through its list again.

    The memory is that of ``actor``, by default of a process of its own. Raises Failed when it does not come to that,
    CannotRun where memory is too fragmented for it.
    """
    size = pmd_size(live)
    with_blocks(live, size, 1)
    memory = map_aligned(live, 1, size, actor=actor, advice=MADV_NOHUGEPAGE)
    memory.fill()
    memory.advise(MADV_HUGEPAGE)
    if not await_khugepaged(live, lambda: memory.smaps().anon_huge_pages == size, PATIENT_SCANS):
        expect_no_node_short(live, size, 1)
        live.fail("AnonHugePages of advised memory", memory.size, memory.smaps().anon_huge_pages)
    await_scans(live)
    return memory


def map_code(live: Live, pages: int, prot: int) -> Memory:
    """Map aligned anonymous memory for code, with protection ``prot``, for which there are free blocks if possible."""
    with_blocks(live, pmd_size(live), pages)
    memory = map_aligned(live, pages, pmd_size(live))
    memory.protect(prot)
    return memory


def expect_code(live: Live, *, huge: bool) -> None:
    """Expect a huge page for code at its first fault, and not later by khugepaged; or none, and none later."""
    counted = {"thp_fault_alloc": int(huge)}
    memory = expect_change(live, counted, partial(map_code, live, 1, _WRITABLE_CODE), Memory.fill)
    if not huge:
        see_khugepaged_at_work(live, memory.actor)
    mapping = memory.smaps()
    live.expect("AnonHugePages of code", pmd_size(live) if huge else 0, mapping.anon_huge_pages)
    live.expect("FilePmdMapped of code", 0, mapping.file_pmd_mapped)
    memory.expect_filled()


def _found(program: TextProgram) -> list[int]:
    return [mapping.file_pmd_mapped for mapping in program.mappings()]


def _predicted(live: Live, program: TextProgram, mode: int, *, advised: bool) -> list[int]:
    elf, pmd = program.built.elf, pmd_size(live)
    return [becomes_huge(mapping, elf, mode=mode, pmd=pmd, advised=advised) for mapping in program.mapped()]
