"""Text of programs on any kernel: whether it can be huge, how much of it, and what of it is in memory."""

from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.live.hugetext import ENABLED
from hugepage_qa.live.khugepaged import allow_absent, quicken
from hugepage_qa.live.live import Live
from hugepage_qa.live.outcomes import CannotRun
from hugepage_qa.live.text_program.program import TextProgram
from hugepage_qa.live.transparent import keep_min_free, pmd_size
from hugepage_qa.model.text.program import round_up
from hugepage_qa.version import KernelVersion

#: the last kernel that was seen with READ_ONLY_THP_FOR_FS; 7.2 has none, there file systems decide
_OPTION_UNTIL = KernelVersion(6, 19)
#: before commit e6be37b2e7bd of Linux 5.14 THPeligible left such text out
_SHOWN_SINCE = KernelVersion(5, 14)
_IN_MEMORY = 1


def allow_always(live: Live) -> None:
    """Let khugepaged merge all it may, until the case ends: always, whatever is absent, and nothing by hugetext."""
    keep_min_free(live)
    if live.host.read(ENABLED) is not None:
        live.set_knob(ENABLED, "0")
    live.set_knob(f"{DIRECTORY}/enabled", "always")
    quicken(live)
    allow_absent(live, pmd_size(live) // live.base_page - 1)


def is_eligible(live: Live, program: TextProgram) -> bool:
    """Return what smaps says, which has to be what the kernel was built for, where that decides.

    Raises CannotRun where neither tells.
    """
    built_in = live.host.kernel_option("READ_ONLY_THP_FOR_FS")
    if built_in is not None and live.kernel_version < _SHOWN_SINCE:
        return built_in
    eligible = program.mappings()[0].thp_eligible
    if eligible is None:
        raise CannotRun("smaps of this kernel has no THPeligible")
    if built_in is not None and live.kernel_version < _OPTION_UNTIL:
        live.expect("THPeligible of text", built_in, eligible)
    return eligible


def whole_pages(live: Live, program: TextProgram) -> int:
    """Return the bytes of its text that lie in whole, aligned huge pages."""
    return sum(one.huge_bytes(program.built.elf.size, pmd_size(live)) for one in program.mapped())


def _whole_blocks(live: Live, program: TextProgram) -> tuple[int, ...]:
    """Return the addresses of the whole, aligned huge pages of its text."""
    size = pmd_size(live)
    starts = ((round_up(one.start, size), one.huge_bytes(program.built.elf.size, size)) for one in program.mapped())
    return tuple(start + offset for start, length in starts for offset in range(0, length, size))


def absent_pages(live: Live, program: TextProgram) -> tuple[int, ...]:
    """Return how many base pages of each of these are not in the page cache (mincore(2))."""
    count = pmd_size(live) // live.base_page
    asked = (
        program.actor.call_with_buffers("mincore", start, pmd_size(live), bytes(count))[1][0]
        for start in _whole_blocks(live, program)
    )
    return tuple(sum(not state & _IN_MEMORY for state in states) for states in asked)
