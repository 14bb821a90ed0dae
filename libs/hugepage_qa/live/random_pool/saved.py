"""Programs in files: the text of a program, as a failed one is reported, can be run again."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.live.random_pool.scale import FIRST_PROCESS
from hugepage_qa.model.hugetlb_pool.operation import Operation
from hugepage_qa.model.hugetlb_pool.text import parse_operation

#: lines that say something about a program
_REMARKS = ("#", "->")
_LONGEST = 1 << 20
#: fields that hold the name or the area of what an operation makes
_MADE = {
    "MountPool": "mount",
    "MakeGroup": "group",
    "CreateFile": "file",
    "MakeMemfd": "file",
    "MakeSegment": "file",
    "Fork": "child",
    "MapFile": "area",
    "MapAnonymous": "area",
    "Attach": "area",
    "Move": "target",
}


def read_program(path: Path) -> tuple[Operation, ...]:
    """Return the operations in a file. Raises InputError, which names file and line, for one that is no program."""
    try:
        with path.open("rb") as stream:
            text = stream.read(_LONGEST + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if len(text) > _LONGEST:
        raise InputError(f"{path}: more than {_LONGEST} characters: expected a program that pool-random has saved")
    try:
        operations = parse_program(text)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return operations


def parse_program(text: str) -> tuple[Operation, ...]:
    """Return the operations in ``text``. Raises InputError, also for one that makes the same thing twice."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line and not _is_remark(line)]
    operations = tuple(_parse(number, line) for number, line in lines)
    if not operations:
        raise InputError("no operation in it: expected a program that pool-random has saved")
    made = Counter([FIRST_PROCESS, *(getattr(one, _MADE[type(one).__name__]) for one in operations if _makes(one))])
    if twice := [name for name, count in made.items() if count > 1]:
        raise InputError(f"{twice[0]!r} is made twice: expected a new name or area each time")
    return operations


def page_size_of(operations: Sequence[Operation]) -> int:
    """Return the size of the pages that a program maps or first reserves. Raises InputError when it has none."""
    sizes = [size for one in operations if (size := getattr(one, "page_size", 0))]
    if not sizes:
        raise InputError("no operation with pages in it: expected a program that pool-random has saved")
    return sizes[0]


def _makes(operation: Operation) -> bool:
    return type(operation).__name__ in _MADE


def _is_remark(line: str) -> bool:
    return line.startswith(_REMARKS)


def _parse(number: int, line: str) -> Operation:
    try:
        return parse_operation(line)
    except InputError as error:
        raise InputError(f"line {number}: {error}") from error
