"""Workload ``text-access``: calls of code that is spread over many pages, as that of large programs is.

The text is on base pages, on huge ones that madvise(2) made (``text-thp``), or on those of hugetext, an addition to
Alibaba's kernels.
"""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hugepage_qa.bench.backing import Backing, Kind, ProgramText
from hugepage_qa.bench.benchmark_program import files_digest, find_program, run_program
from hugepage_qa.bench.memory_program import DEADLINE_SECONDS, MEMORY, block_size
from hugepage_qa.bench.tlb_counters import COUNTERS, PATTERN, tlb_figures, tlb_metrics
from hugepage_qa.bench.workload import Fact, Figures, Metric, Prepared, Program, Unavailable, Workload
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.thp import read_thp
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.process.c_compiler import build_program
from hugepage_qa.process.text_program_build import STEP, pages_of_code
from hugepage_qa.sizes import KIB, MIB, format_size

TEXT_SOURCE = Path(__file__).with_name("text_access.c")

_ROOT = DirectoryTree(Path("/"))
_CALLS = re.compile(rf"call-ns (?P<ns>[0-9]{{1,18}}) huge-kB (?P<huge>[0-9]{{1,18}}) {PATTERN}")
_TEXT_TLB = "text-access-itlb"


class TextAccess(Workload):
    """Call functions at random, one of each page."""

    name = "text-access"
    metrics = (
        Metric("text-access", "ns", "lower"),
        Metric("text-access-huge", "kB", "higher", "count"),
        # only where the CPU counts them
        *tlb_metrics(_TEXT_TLB),
    )
    programs = (Program("cc", "build-essential", "gcc"),)
    profiles: Mapping[str, Mapping[str, Fact]] = {
        "quick": {"bytes": 16 * MIB, "calls": 2_000_000, "samples": 8},
        "reference": {"bytes": 64 * MIB, "calls": 20_000_000, "samples": 15},
    }

    texts = tuple(ProgramText)

    def backings(self, there: Sequence[Backing]) -> tuple[Backing, ...]:
        """Base pages: it is the text alone that may be huge."""
        return tuple(one for one in there if one.kind is Kind.BASE)

    @contextmanager
    def prepare(self, profile: str, scratch: Path, disk: Path) -> Iterator[Prepared]:
        """Build the program: on a disk where the kernel makes text there huge, else in memory, where all kernels do."""
        find_program("cc", "build-essential")
        parameters = {name: int(value or 0) for name, value in self.profiles[profile].items()}
        thp = read_thp(_ROOT)
        pmd_size = block_size()
        places = [disk, scratch] if thp else [disk]
        is_built_in = thp is not None and thp.hugetext_enabled is not None
        program = next(
            one
            for one in (build_text(place, parameters["bytes"], pmd_size) for place in places)
            if is_built_in or one.parent == places[-1] or _collapses(one, parameters["bytes"], pmd_size)
        )

        def block(backing: Backing) -> Figures:
            # what the page cache has of a file stays huge, whoever starts it next
            anew = program.with_name(f"{TEXT_SOURCE.stem}-block")
            shutil.copy(program, anew)
            try:
                return _block(anew, backing.text, parameters, pmd_size)
            finally:
                anew.unlink()

        try:
            where = "disk" if program.parent == disk else "memory"
            yield Prepared(block, 0, {"source": files_digest(TEXT_SOURCE, MEMORY), "text": where}, {})
        finally:
            for place in places:
                for file in place.glob(f"{TEXT_SOURCE.stem}-*"):
                    file.unlink()


def build_text(directory: Path, size: int, pmd_size: int) -> Path:
    """Return the program in ``directory`` with ``size`` bytes of functions, linked for huge pages of ``pmd_size``."""
    pages = directory / f"{TEXT_SOURCE.stem}-pages.c"
    pages.write_text(pages_of_code(0, size // STEP), encoding="ascii")
    options = [
        # in the order of their numbers, without tables that are larger than the functions
        "-fno-toplevel-reorder",
        "-fno-asynchronous-unwind-tables",
        # kernels before 5.10 put no other program at a multiple of a huge page
        "-no-pie",
        f"-Wl,-z,max-page-size={pmd_size},-z,common-page-size={pmd_size},-z,separate-code",
    ]
    return build_program(TEXT_SOURCE, directory, [MEMORY, COUNTERS, pages], options)


def parse_text_access(output: str, calls: int, repeats: int) -> Figures:
    """Return the figures in ``output`` of ``repeats`` repeats of ``calls`` but the first. Raises InputError."""
    lines = [_CALLS.fullmatch(line) for line in output.splitlines()]
    if len(lines) != repeats or not all(lines):
        raise InputError(f"text_access: expected {repeats} lines of figures, got {output[:200]!r}")
    repeat = [line.groupdict() for line in lines if line][1:]
    if any(int(one["ns"]) == 0 for one in repeat):
        raise InputError(f"text_access: expected times above 0, got {output[:200]!r}")
    return {
        "text-access": [int(one["ns"]) / calls for one in repeat],
        "text-access-huge": [float(one["huge"]) for one in repeat],
        **tlb_figures(_TEXT_TLB, repeat),
    }


def _collapses(program: Path, size: int, pmd_size: int) -> bool:
    """Return whether the kernel makes text in this place huge."""
    try:
        run_program([program, *map(str, (size // STEP, 1, 1, pmd_size, "collapse"))], deadline=DEADLINE_SECONDS)
    except InputError:
        return False
    return True


def _block(program: Path, text: ProgramText | None, parameters: Mapping[str, int], pmd_size: int) -> Figures:
    """Return the figures of a block. Raises Unavailable where the text does not become huge."""
    size, repeats = parameters["bytes"], parameters["samples"] + 1
    # what is at its ends need not fill a huge page
    whole = size - 2 * pmd_size
    if text is ProgramText.COLLAPSED and not _collapses(program, size, pmd_size):
        raise Unavailable("the kernel collapses no text: madvise(2) refuses MADV_COLLAPSE")
    wanted = whole if text is not None and text.is_of_files else 0
    how = "collapse" if text is ProgramText.COLLAPSED else str(wanted)
    words = (size // STEP, parameters["calls"], repeats, pmd_size, how)
    output = run_program([program, *map(str, words)], deadline=DEADLINE_SECONDS)
    figures = parse_text_access(output, parameters["calls"], repeats)
    least, most = (int(one(figures["text-access-huge"])) * KIB for one in (min, max))
    if least < wanted or (most and not wanted):
        raise Unavailable(f"the kernel has made {format_size(least)} of {format_size(size)} of text huge")
    return figures
