"""What a probe machine printed on its serial port -> its files."""

import json
import re
from collections.abc import Iterator

from hugepage_qa.kernel.tree import CapturedTree

PREFIX = "@hugepage-qa "
"""What starts each line of init.sh; firmware and kernel print no such thing."""

# CSI sequences, and the two-character ones; firmware clears and sizes the terminal with them
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\^_a-z])")

_SHOWN = 100
"""Characters of a broken line that a message shows."""


class GarbledCapture(Exception):
    """The serial log does not hold one whole capture; the message says what is wrong with it."""


def _records(text: str) -> Iterator[dict[str, object]]:
    for line in _ANSI.sub("", text).split("\n"):
        if not line.startswith(PREFIX):
            continue
        try:
            record = json.loads(line.removeprefix(PREFIX).rstrip("\r"))
        except ValueError as error:
            raise GarbledCapture(f"not JSON ({error}): {_shortened(line)}") from error
        if not isinstance(record, dict):
            raise GarbledCapture(f"not an object: {_shortened(line)}")
        yield record


def _shortened(line: str) -> str:
    return repr(line if len(line) <= _SHOWN else f"{line[: _SHOWN - 30]} ... {line[-30:]}")


def _file(record: dict[str, object]) -> tuple[str, str]:
    path, text = record.get("path"), record.get("text")
    if len(record) != 2 or not isinstance(path, str) or not isinstance(text, str):  # noqa: PLR2004
        raise GarbledCapture(f"expected a path and a text: {_shortened(repr(record))}")
    if not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise GarbledCapture(f"expected a relative path: {path!r}")
    return path, text


def parse_capture(text: str) -> CapturedTree:
    """Return the files that init.sh printed into the serial log ``text``.

    Around them may be firmware output, kernel messages, CR LF and terminal control sequences. Raises
    GarbledCapture for a record that is broken, comes twice or is missing: half a capture would make
    a healthy kernel look as if it had no huge pages.
    """
    files: dict[str, str] = {}
    records = _records(text)
    for record in records:
        if "end" in record:
            if record != {"end": len(files)} or not files:
                raise GarbledCapture(f"end marker {record!r} after {len(files)} files")
            break
        path, content = _file(record)
        if path in files:
            raise GarbledCapture(f"{path} was printed twice")
        files[path] = content
    else:
        raise GarbledCapture(f"no end marker after {len(files)} files")
    for record in records:
        raise GarbledCapture(f"something follows the end marker: {_shortened(repr(record))}")
    return CapturedTree(files)
