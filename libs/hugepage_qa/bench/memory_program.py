"""A workload that is one program in C: its arguments, and the lines of figures that it prints."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.benchmark_program import files_digest, find_program, run_program
from hugepage_qa.bench.workload import Figures, Prepared, Program, Unavailable, Workload
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.thp import read_thp
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.process.c_compiler import build_program
from hugepage_qa.sizes import GIB, MIB, format_size

#: what all of these programs share
MEMORY = Path(__file__).with_name("measured_memory.c")

_ROOT = DirectoryTree(Path("/"))
NS_PER_US, NS_PER_MS = 1e3, 1e6
DEADLINE_SECONDS = 600.0
_SLOWEST = 0.99
#: what processes have a multiple of where there are no transparent pages
BLOCK = 2 * MIB

#: one repeat of the program: word -> number
Repeat = Mapping[str, int]


class MemoryProgram(Workload):
    """One ``operation`` of the program ``source``; ``words`` are those that each line of its figures has."""

    source: Path
    operation: str
    words: tuple[str, ...]
    #: whether a first repeat warms up and is left out
    warms_up = True
    programs = (Program("cc", "build-essential", "gcc"),)

    @contextmanager
    def prepare(self, profile: str, scratch: Path, disk: Path) -> Iterator[Prepared]:
        """Build the program."""
        find_program("cc", "build-essential")
        program = build_program(self.source, scratch, [MEMORY])
        parameters = {name: int(value or 0) for name, value in self.profiles[profile].items()}

        def block(backing: Backing) -> Figures:
            return backing.without_hidden(self.measured(program, backing, parameters, disk / self.name))

        try:
            yield Prepared(block, self.pool_bytes(parameters), {"source": files_digest(self.source, MEMORY)}, {})
        finally:
            # of another of these workloads it is the same
            program.unlink(missing_ok=True)
            (disk / self.name).unlink(missing_ok=True)

    def pool_bytes(self, parameters: Mapping[str, int]) -> int:
        """Return what a block needs of a pool."""
        return parameters.get("bytes", 0)

    def measured(self, program: Path, backing: Backing, parameters: Mapping[str, int], file: Path) -> Figures:
        """Return the figures of a block. Raises Unavailable, InputError."""
        size, other = self.shares(parameters)
        least, largest = size // parameters.get("processes", 1), block_size()
        if least < largest:
            raise Unavailable(f"{format_size(size)} of {self.name} is less than {format_size(largest)} a process")
        with self.surroundings(parameters, file) as used:
            return self.figures(self.run(program, backing, parameters, (size, other, used)), size)

    def run(
        self, program: Path, backing: Backing, parameters: Mapping[str, int], sizes: tuple[int, int, Path]
    ) -> list[Repeat]:
        """Return the repeats that count; ``sizes`` are the bytes, what is beside them, and a file."""
        repeats = parameters["samples"] + self.warms_up
        size, other, file = sizes
        words = (self.operation, size, pages_of(backing), block_size(), repeats, other, file)
        output = run_program([program, *map(str, words)], deadline=DEADLINE_SECONDS)
        return parse_lines(output, self.words, repeats)[self.warms_up :]

    def surroundings(self, parameters: Mapping[str, int], file: Path) -> AbstractContextManager[Path]:  # noqa: ARG002
        """What the machine has to have while the program runs; yields the file that it is told."""
        return nullcontext(file)

    def shares(self, parameters: Mapping[str, int]) -> tuple[int, int]:
        """Return the bytes that it is about, and the processes, or bytes, beside them. Raises Unavailable."""
        return parameters["bytes"], parameters["processes"]

    def figures(self, repeats: Sequence[Repeat], size: int) -> Figures:
        """Return the samples of the metrics."""
        raise NotImplementedError

    def backings(self, there: Sequence[Backing]) -> tuple[Backing, ...]:
        """Return those of which each process has some pages."""
        parameters = self.profiles["quick"]
        of_one = int(parameters["bytes"] or 0) // int(parameters.get("processes") or 1)
        return tuple(one for one in there if one.page_size <= of_one)


def pages_of(backing: Backing) -> str:
    """Return the word for pages of ``backing``."""
    return str(backing.page_size) if backing.kind is Kind.STATIC else backing.kind.value


def block_size() -> int:
    """Return the bytes of the largest transparent page; of smaller ones memory is where the largest could be, too."""
    thp = read_thp(_ROOT)
    return (thp.hpage_pmd_size if thp else None) or BLOCK


def parse_lines(output: str, words: Sequence[str], repeats: int) -> list[Repeat]:
    """Return the numbers of each of the ``repeats`` lines of ``output``; times are above 0. Raises InputError."""
    pattern = re.compile(" ".join(f"{word} ([0-9]{{1,18}})" for word in words))
    found = [pattern.fullmatch(line) for line in output.splitlines()]
    lines: list[Repeat] = [dict(zip(words, map(int, one.groups()), strict=True)) for one in found if one]
    if len(lines) != repeats or len(found) != repeats:
        raise InputError(f"program: expected {repeats} lines of figures, got {output[:200]!r}")
    if any(number == 0 for line in lines for word, number in line.items() if word.endswith("-ns")):
        raise InputError(f"program: expected times above 0, got {output[:200]!r}")
    return lines


def slowest(times: Sequence[float]) -> list[float]:
    """Return the time that one of a hundred exceeds."""
    return [sorted(times)[min(len(times) - 1, int(_SLOWEST * len(times)))]]


def of_a_gib(repeats: Sequence[Repeat], word: str, size: int) -> list[float]:
    """Return the times of ``word`` in ms for each GiB, of ``repeats`` on ``size`` bytes."""
    return [one[word] / NS_PER_MS / (size / GIB) for one in repeats]
