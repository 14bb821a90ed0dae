"""Files by others: refused by size before they are read; no JSON, or of a later version, is one line."""

import json
import stat
import sys
from pathlib import Path
from typing import Any

from hugepage_qa.errors import InputError
from hugepage_qa.schema import find_violation
from hugepage_qa.sizes import MIB, format_size

#: bytes; 100 metrics of 37,000 samples are some 70 MiB
LARGEST_FILE = 256 * MIB


def read_text(path: Path, largest: int = LARGEST_FILE) -> str:
    """Return the text of the file ``path``. Raises InputError for anything but ``largest`` bytes of UTF-8."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path}: expected a file, not a directory or device")
        if status.st_size > largest:
            raise InputError(
                f"{path}: {status.st_size} bytes, expected at most {format_size(largest)}; split it by session"
            )
        with path.open("rb") as stream:
            content = stream.read(largest + 1)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    if len(content) > largest:
        raise InputError(f"{path}: expected at most {format_size(largest)}; it grew while it was read")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected UTF-8 text ({error.reason} at byte {error.start})") from error


def read_json(path: Path) -> Any:
    """Return the JSON document in ``path``. Raises InputError."""
    try:
        return parse_json(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: expected JSON, is the file truncated? ({error})") from error


def read_output(path: Path, schema: str, expected: str) -> Any:
    """Return the JSON document in ``path``, which ``schemas/<schema>.json`` allows as the output of another program.

    Raises InputError for any other, which tells what was ``expected``.
    """
    document = read_json(path)
    violation = find_violation(document, __package__, schema)
    if violation is not None:
        raise InputError(f"{path}: expected {expected}: {violation}")
    return document


def parse_json(text: str) -> Any:
    """Return the JSON document in ``text``; a key that is there twice, NaN and infinities are errors.

    Raises ValueError, and RecursionError for what is nested beyond all reason.
    """
    return json.loads(text, object_pairs_hook=_once, parse_constant=_refuse)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in keys if keys.count(key) > 1)!r} is there twice")
    return found


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def number(text: str, where: str) -> float:
    """Return the number that ``text`` is. Raises InputError, which begins with ``where``."""
    try:
        # Python takes 1_000 and digits of other scripts, too
        return float(text if text.isascii() and "_" not in text else "")
    except ValueError as error:
        raise InputError(f"{where}: expected a number, got {text!r}") from error


_DEEPEST = 32
_LARGEST = sys.float_info.max
#: as many as a million blocks have
_MOST_VALUES = 20_000_000


def check_plain(document: Any, source: object, most: int = _MOST_VALUES) -> None:
    """Raise InputError for what could not be written again: nested too deeply, infinite, or no text."""
    level, values = [document], 0
    for _ in range(_DEEPEST):
        values += len(level)
        if values > most:
            raise InputError(f"{source}: expected at most {most} values")
        for one in level:
            if isinstance(one, int | float) and not abs(one) <= _LARGEST:
                raise InputError(f"{source}: expected finite numbers, got one beyond floating point")
            if isinstance(one, str) and not is_text(one):
                raise InputError(f"{source}: {one!r}: expected text that UTF-8 can hold")
        level = [inner for one in level for inner in _parts(one)]
        if not level:
            return
    raise InputError(f"{source}: expected at most {_DEEPEST} levels of nesting")


def is_text(text: str) -> bool:
    """Return whether UTF-8 can hold ``text``: half of a surrogate pair it cannot."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list) else []


def check_document(document: Any, source: object, form: str, version: int, schema: str) -> None:
    """Refuse a document that is not ``form`` in ``version``, or breaks ``schemas/<schema>.json``. Raises InputError."""
    if not isinstance(document, dict) or document.get("format") != form:
        raise InputError(f'{source}: expected a JSON object with "format": "{form}"')
    found = document.get("version")
    if type(found) is int and found > version:
        raise InputError(
            f"{source}: version {found} of {form}, this hugepage-qa knows up to {version}; install a later one"
        )
    check_plain(document, source)
    violation = find_violation(document, __package__, schema)
    if violation is not None:
        raise InputError(f"{source}: {_shortened(violation)}")


_LONGEST_MESSAGE = 300


def _shortened(message: str) -> str:
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}..."
