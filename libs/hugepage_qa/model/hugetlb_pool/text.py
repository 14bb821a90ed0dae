"""Operations as text, one in a line, as ``str()`` writes them."""

import re
from dataclasses import fields
from inspect import isabstract
from typing import get_type_hints

from hugepage_qa.errors import InputError
from hugepage_qa.model.hugetlb_pool import setup, use
from hugepage_qa.model.hugetlb_pool.operation import AREA_PAGES, Operation
from hugepage_qa.sizes import parse_size

_KINDS = {
    name: kind
    for module in (setup, use)
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
