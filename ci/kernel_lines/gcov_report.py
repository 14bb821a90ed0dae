"""What gcov tells of a source file: how often each line ran, and which ways each condition took."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

from hugepage_qa.errors import InputError

#: a name or a text of a function that huge pages come through
_HUGE = re.compile(r"huge|hstate|thp|compound|folio_order|folio_nr_pages|p[mu]d", re.IGNORECASE)
_DEFINITION = re.compile(r"^(?:\w[\w \t*]*[ \t*]|)(\w+)\([^;{}]*\)\s*\n\{\n", re.MULTILINE)
#: beginnings of functions and assignments have branches of what was inlined there
_DECIDES = re.compile(r"\b(?:if|while|for\w*|switch|return)\b|\?|&&|\|\|")
#: conditions that no healthy kernel meets
_CHECKS = re.compile(r"\b(?:BUG|WARN|ASSERT)(?:_|\b)|_(?:BUG|WARN)_ON|\b(?:lockdep|might)_")


@dataclass(frozen=True)
class Line:
    """How often a line ran, and how often each way out of its conditions was taken."""

    count: int
    ways: tuple[int, ...] = ()

    def __add__(self, other: "Line") -> "Line":
        """Return both as one: a function that was inlined has its lines several times."""
        ways = tuple(one + another for one, another in zip_longest(self.ways, other.ways, fillvalue=0))
        return Line(self.count + other.count, ways)


@dataclass(frozen=True)
class Unrun:
    """A function of ``file`` with lines that did not run, and those that ran with a way that was never taken."""

    file: str
    name: str
    known: int
    lines: tuple[int, ...]
    branches: tuple[int, ...]

    @property
    def is_never_called(self) -> bool:
        """Whether no line of it ran."""
        return len(self.lines) == self.known


def run_gcov(notes: Path, counts: Path, source: Path) -> dict[int, Line]:
    """Return what ``counts``, a .gcda file, tells of the lines of ``source``; ``notes`` is the .gcno file to it.

    Raises InputError where gcov fails.
    """
    with TemporaryDirectory() as place:
        for file in (notes, counts):
            (Path(place) / f"of{file.suffix}").symlink_to(file)
        command = ["gcov", "--json-format", "--stdout", "--branch-probabilities", "of.gcda"]
        try:
            done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise InputError(f"{counts}: gcov fails: {error}") from error
    return read_gcov(done.stdout, source)


def read_gcov(text: str, source: Path) -> dict[int, Line]:
    """Return number -> line of ``source`` from the JSON that gcov prints (gcov(1), --json-format)."""
    lines: dict[int, Line] = {}
    for file in json.loads(text)["files"]:
        if file["file"] == str(source):
            for line in file["lines"]:
                told = Line(line["count"], tuple(way["count"] for way in line["branches"]))
                number = line["line_number"]
                lines[number] = lines.get(number, Line(0)) + told
    return lines


def find_unrun(name: str, text: str, lines: Mapping[int, Line]) -> Iterator[Unrun]:
    """Yield the functions of the file ``name`` that huge pages come through and that did not run as a whole.

    ``text`` is the source, ``lines`` are those that gcov knows: what was not compiled is none of them.
    """
    shown = text.splitlines()
    for match in _DEFINITION.finditer(text):
        end = text.find("\n}", match.end() - 1) + 1
        if not _HUGE.search(text, match.start(), end):
            continue
        first, last = (text.count("\n", 0, place) + 1 for place in (match.start(), end))
        known = [number for number in range(first, last + 1) if number in lines]
        unrun = tuple(number for number in known if not lines[number].count)
        branches = tuple(
            number
            for number in known
            if lines[number].count and 0 in lines[number].ways and _is_decision(shown[number - 1])
        )
        if unrun or branches:
            arguments = match[0].partition("(")[2]
            own = re.split(r"\W", arguments)[0] if match[1].startswith("SYSCALL_DEFINE") else match[1]
            yield Unrun(name, own, len(known), unrun, branches)


def _is_decision(text: str) -> bool:
    return _DECIDES.search(text) is not None and _CHECKS.search(text) is None


def told(unrun: Unrun, text: str, lines: Mapping[int, Line]) -> Iterator[str]:
    """Yield the lines of a report on ``unrun``, with what stands there in the source."""
    shown = text.splitlines()
    share = f"{len(unrun.lines)} of {unrun.known} lines not run"
    if unrun.is_never_called:
        yield f"{unrun.file} {unrun.name}: never run, {unrun.known} lines"
        return
    yield f"{unrun.file} {unrun.name}: {share}, {len(unrun.branches)} with a way never taken"
    for number in sorted((*unrun.lines, *unrun.branches)):
        ways = lines[number].ways
        mark = "  not run" if number in unrun.lines else f"{ways.count(0):2} of {len(ways):2}"
        yield f"  {number:5} {mark:9} {shown[number - 1].expandtabs(4).strip()}"
