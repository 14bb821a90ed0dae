"""Programs in files, one operation in a line: a failed one, as it is reported, can be run again."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from inspect import isabstract
from pathlib import Path
from typing import get_type_hints

from hugepage_qa.cases.random.random_drawing import FIRST_PROCESS
from hugepage_qa.errors import InputError
from hugepage_qa.oracle.pool import pool_setup, pool_use
from hugepage_qa.oracle.pool.pool_operation import AREA_PAGES, Operation
from hugepage_qa.sizes import MIB, parse_size

_KINDS = {
    name: kind
    for module in (pool_setup, pool_use)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Operation) and not isabstract(kind)
}
_LINE = re.compile(r"(?P<kind>[A-Z]\w+)\((?P<words>.*)\)", re.ASCII)
# names become names of files and groups: nothing else is let through
_NAME = re.compile(r"'([a-z][0-9]{0,6})'")
_NUMBER = re.compile(r"[0-9]{1,18}[KMGT]?")
_CONSTANTS = {"None": None, "True": True, "False": False}
_PAGES = frozenset({"page", "pages", "first"})
_NO_LIMIT = frozenset({"value", "page_size", "least", "most", "limit"})
#: of areas, inodes and pages in a pool; far below what addresses and memory allow
_MOST = 999

Value = int | str | bool | None


def parse_operation(line: str) -> Operation:
    """Return the operation that ``line`` is the text of. Raises InputError, which tells what is wrong with the line."""
    match = _LINE.fullmatch(line.strip())
    kind = _KINDS.get(match["kind"]) if match else None
    if match is None or kind is None:
        raise InputError(f"{line!r}: expected an operation, for example SetCount(page_size=2M, count=3, node=None)")
    words = dict(word.partition("=")[::2] for word in match["words"].split(", "))
    hints = {field.name: get_type_hints(kind)[field.name] for field in fields(kind)}
    if list(words) != list(hints):
        raise InputError(f"{line!r}: expected {match['kind']}({', '.join(f'{name}=...' for name in hints)})")
    values = {name: _parse_value(name, text, line) for name, text in words.items()}
    for name, value in values.items():
        # bool is a subclass of int
        if type(value) not in getattr(hints[name], "__args__", (hints[name],)):
            raise InputError(f"{line!r}: {name}={words[name]} is not what {match['kind']} takes")
    return kind(**values)


def _parse_value(name: str, text: str, line: str) -> Value:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if named := _NAME.fullmatch(text):
        return named[1]
    if not _NUMBER.fullmatch(text):
        raise InputError(f"{line!r}: {name}={text}: expected a number, a size, a name such as 'f1', True, False, None")
    number = parse_size(text)
    most = AREA_PAGES if name in _PAGES else _MOST
    if name not in _NO_LIMIT and number > most:
        raise InputError(f"{line!r}: {name}={text}: expected at most {most}")
    return number


#: lines that say something about a program
_REMARKS = ("#", "->")
_LONGEST = MIB
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
    lines = enumerate(text.splitlines(), 1)
    operations = tuple(_parse(number, line) for number, line in lines if line and not line.startswith(_REMARKS))
    if not operations:
        raise InputError("no operation in it: expected a program that pool-random has saved")
    kinds = [(one, type(one).__name__) for one in operations]
    made = Counter([FIRST_PROCESS, *(getattr(one, _MADE[kind]) for one, kind in kinds if kind in _MADE)])
    if twice := [name for name, count in made.items() if count > 1]:
        raise InputError(f"{twice[0]!r} is made twice: expected a new name or area each time")
    return operations


def page_size_of(operations: Sequence[Operation]) -> int:
    """Return the size of the pages that a program maps or first reserves. Raises InputError when it has none."""
    sizes = [size for one in operations if (size := getattr(one, "page_size", 0))]
    if not sizes:
        raise InputError("no operation with pages in it: expected a program that pool-random has saved")
    return sizes[0]


def _parse(number: int, line: str) -> Operation:
    try:
        return parse_operation(line)
    except InputError as error:
        raise InputError(f"line {number}: {error}") from error
