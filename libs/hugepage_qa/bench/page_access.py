"""Workloads ``page-access`` and ``text-access``: what accesses to many pages of each kind cost, of memory and of code.

``text-access`` calls code that is spread over many pages, as that of large programs is. The text is on base pages, on
huge ones that madvise(2) made (``text-thp``), or on those of hugetext, an addition to Alibaba's kernels.

Both count TLB misses around what they measure (``tlb_counters.c``). Virtual machines mostly count none: then there are
no such figures, and a configuration or machine without them is no other than one with.
"""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hugepage_qa.bench.backing import Backing, Kind, ProgramText, text_backings
from hugepage_qa.bench.benchmark_program import find_program, run_program
from hugepage_qa.bench.memory_program import DEADLINE_SECONDS, MEMORY, NS_PER_MS, block_size, pages_of, sources_digest
from hugepage_qa.bench.workload import Fact, Figures, Metric, Prepared, Program, Unavailable, Workload
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.thp import read_thp
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.process.c_compiler import build_program
from hugepage_qa.process.text_program_build import STEP, pages_of_code
from hugepage_qa.sizes import GIB, KIB, MIB, format_size

COUNTERS = Path(__file__).with_name("tlb_counters.c")

_NOT_COUNTED = "n/a"
#: what ends a line of the program
PATTERN = " ".join(
    rf"{word} (?P<{word}>[0-9]{{1,18}}|{_NOT_COUNTED})" for word in ("misses", "accesses", "instructions")
)
_PER_THOUSAND, _PER_CENT = 1000, 100


def tlb_metrics(name: str) -> tuple[Metric, Metric]:
    """Return the metrics of the TLB called ``name``, such as ``text-access-itlb``."""
    return (
        Metric(f"{name}-mpki", "misses per 1000 instructions", "lower"),
        Metric(f"{name}-miss-rate", "%", "lower"),
    )


def tlb_figures(name: str, repeats: Sequence[Mapping[str, str]]) -> Figures:
    """Return the samples of ``tlb_metrics``; none of what was not counted in each of the ``repeats``."""
    mpki, rate = tlb_metrics(name)
    found = {
        mpki.name: _ratios(repeats, "instructions", _PER_THOUSAND),
        rate.name: _ratios(repeats, "accesses", _PER_CENT),
    }
    return {metric: values for metric, values in found.items() if values}


def _ratios(repeats: Sequence[Mapping[str, str]], of: str, unit: int) -> list[float]:
    pairs = [(one["misses"], one[of]) for one in repeats]
    if any(_NOT_COUNTED in pair or int(pair[1]) == 0 for pair in pairs):
        return []
    return [unit * int(misses) / int(number) for misses, number in pairs]


ACCESS_SOURCE = Path(__file__).with_name("page_access.c")

_ACCESSES = re.compile(
    r"first-touch-ns (?P<touch>[0-9]{1,18}) access-ns (?P<access>[0-9]{1,18}) unmap-ns (?P<unmap>[0-9]{1,18})"
    r" faults (?P<faults>[0-9]{1,18}) page-table-kB (?P<tables>-?[0-9]{1,18}) huge-kB (?P<huge>[0-9]{1,18}) " + PATTERN
)
_DATA_TLB = "page-access-dtlb"


class PageAccess(Workload):
    """Touch memory page by page, read it at random, and unmap it: nothing but page faults, TLB misses and freeing."""

    name = "page-access"
    metrics = (
        Metric("page-access-first-touch", "ms/GiB", "lower"),
        Metric("page-access-random", "ns", "lower"),
        Metric("page-access-unmap", "ms/GiB", "lower"),
        Metric("page-access-faults", "faults", "lower", "count"),
        Metric("page-access-page-tables", "kB", "lower", "count"),
        Metric("page-access-huge", "kB", "higher", "count"),
        # only where the CPU counts them
        *tlb_metrics(_DATA_TLB),
    )
    programs = (Program("cc", "build-essential", "gcc"),)
    profiles: Mapping[str, Mapping[str, Fact]] = {
        "quick": {"bytes": 512 * MIB, "accesses": 1_000_000, "samples": 8},
        "reference": {"bytes": 4 * GIB, "accesses": 20_000_000, "samples": 15},
    }

    @contextmanager
    def prepare(self, profile: str, scratch: Path, disk: Path) -> Iterator[Prepared]:  # noqa: ARG002 - needs no disk
        """Build the program."""
        find_program("cc", "build-essential")
        program = build_program(ACCESS_SOURCE, scratch, [MEMORY, COUNTERS])
        parameters = self.profiles[profile]
        size, accesses, samples = (int(parameters[name] or 0) for name in ("bytes", "accesses", "samples"))

        def block(backing: Backing) -> Figures:
            huge = size // 2 if backing.is_halved else size
            # the first one warms caches and clocks up
            words = [size, pages_of(backing), accesses, samples + 1, huge]
            output = run_program([program, *map(str, words)], deadline=DEADLINE_SECONDS)
            return backing.without_hidden(parse_page_access(output, size, accesses, samples + 1))

        try:
            yield Prepared(block, size, {"source": sources_digest(ACCESS_SOURCE, MEMORY)}, {})
        finally:
            program.unlink()


def parse_page_access(output: str, size: int, accesses: int, repeats: int) -> Figures:
    """Return the figures in ``output`` of ``repeats`` repeats on ``size`` bytes but the first. Raises InputError."""
    lines = [_ACCESSES.fullmatch(line) for line in output.splitlines()]
    if len(lines) != repeats or not all(lines):
        raise InputError(f"page_access: expected {repeats} lines of figures, got {output[:200]!r}")
    counted = [line.groupdict() for line in lines if line][1:]
    names = ("touch", "access", "unmap", "faults", "tables", "huge")
    repeat = [{name: int(one[name]) for name in names} for one in counted]
    if any(0 in (one["touch"], one["access"], one["unmap"]) or one["tables"] < 0 for one in repeat):
        raise InputError(f"page_access: expected times above 0 and page tables that grow, got {output[:200]!r}")
    # a page of 1 GiB is cleared and freed as a whole, whatever is touched of it
    gib = [max(size, one["huge"] * KIB) / GIB for one in repeat]
    return {
        "page-access-first-touch": [one["touch"] / NS_PER_MS / had for one, had in zip(repeat, gib, strict=True)],
        "page-access-random": [one["access"] / accesses for one in repeat],
        "page-access-unmap": [one["unmap"] / NS_PER_MS / had for one, had in zip(repeat, gib, strict=True)],
        "page-access-faults": [float(one["faults"]) for one in repeat],
        "page-access-page-tables": [float(one["tables"]) for one in repeat],
        "page-access-huge": [float(one["huge"]) for one in repeat],
        **tlb_figures(_DATA_TLB, counted),
    }


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

    def backings(self, there: Sequence[Backing]) -> tuple[Backing, ...]:
        """Text on base pages, and in each way in which it can be huge."""
        return (*(one for one in there if one.kind is Kind.BASE), *text_backings(there))

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
            yield Prepared(block, 0, {"source": sources_digest(TEXT_SOURCE, MEMORY), "text": where}, {})
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
