"""The sentinel: seconds that a fixed program without huge pages takes, before and after each block."""

from pathlib import Path

from hugepage_qa.actor.build import build_program
from hugepage_qa.bench.program import find_program, run_program
from hugepage_qa.errors import InputError

SOURCE = Path(__file__).with_name("sentinel.c")

_NS_PER_S = 1e9
_DEADLINE_SECONDS = 120.0


def build_sentinel(scratch: Path) -> Path:
    """Return the program. Raises Unavailable without a compiler."""
    find_program("cc", "build-essential")
    return build_program(SOURCE, scratch)


def run_sentinel(program: Path) -> float:
    """Return the seconds that it took. Raises InputError."""
    return parse_sentinel(run_program([program], deadline=_DEADLINE_SECONDS))


def parse_sentinel(output: str) -> float:
    """Return the seconds in what it prints. Raises InputError."""
    text = output.strip()
    if not (text.isascii() and text.isdigit() and int(text)):
        raise InputError(f"sentinel: expected nanoseconds, got {text[:100]!r}")
    return int(text) / _NS_PER_S
