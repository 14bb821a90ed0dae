"""Edits of C source by function: what an anchor finds in a function gets code before, after or in place of it.

Anchors are looked up in the source as it was unpacked, whatever other edits do to it. So the order of faults means
nothing, and what one fault inserts is never taken for the source of another one.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
_INCLUDE = re.compile(r"^#include ", re.MULTILINE)
#: what may stand between the parameters of a function and its body
_BETWEEN = re.compile(r"(?:\s|__\w+(?:\([^()]*\))?)*\{")
#: the condition of a fault in the code of its edits
_CONDITION = re.compile(r"\bSEEDED\b")
#: in the code of an edit: all that the anchor found, or one of its named groups
_FOUND = re.compile(r"@(\w*)")
_STATEMENT = re.compile(r"[;}]\s*\Z")
#: what a statement stands behind that belongs to a condition or a loop without braces
_CONDITION_BEFORE = re.compile(r"(?:\)|else)\Z")
HEADER = "linux/seeded_fault.h"


class Place(Enum):
    """Where the code of an edit goes, relative to what its anchor finds."""

    BEFORE = "before"
    AFTER = "after"
    INSTEAD = "instead"


@dataclass(frozen=True)
class Edit:
    """One edit: the first of ``files`` and ``functions`` that the source has is where ``anchor`` is looked up.

    ``number`` is which of several finds is meant, 1 for the first; None where there must be no other one.
    """

    fault: str
    files: tuple[str, ...]
    functions: tuple[str, ...]
    place: Place
    anchor: str
    code: str
    number: int | None = None


@dataclass(frozen=True)
class _Insertion:
    """``text`` replaces what lies between ``start`` and ``end``, characters of the source as it was unpacked."""

    start: int
    end: int
    edit: Edit
    groups: Mapping[str, str]


class AnchorNotFound(Exception):
    """The source has no file, no function or no place as an edit says, or several; the message names it."""


def constant(fault: str) -> str:
    """Return the C name of ``fault``, a slug."""
    return fault.replace("-", "_")


def compile_anchor(anchor: str) -> re.Pattern[str]:
    """Return the pattern of ``anchor``, in which a blank is any white space, or none. Raises re.error."""
    return re.compile(anchor.replace(" ", r"\s*"))


def edit_files(read: Callable[[str], str | None], edits: Iterable[Edit]) -> tuple[dict[str, str], list[str]]:
    """Return file -> edited text of the files that ``read`` gives by name, and what could not be applied.

    ``read`` returns None for a file that is not there.
    """
    by_file: dict[str, list[Edit]] = {}
    failures = []
    kept = cache(read)
    for edit in edits:
        name = next((name for name in edit.files if _defines(kept(name), edit.functions)), None)
        if name is None:
            where = " or ".join(edit.files)
            failures.append(f"{edit.fault}: {where}: no function {' or '.join(edit.functions)}")
        else:
            by_file.setdefault(name, []).append(edit)
    texts = {}
    for name, of_file in by_file.items():
        text, wrong = edit_text(kept(name) or "", of_file)
        texts[name] = text
        failures += [f"{line} (of {name})" for line in wrong]
    return texts, failures


def edit_text(text: str, edits: Sequence[Edit]) -> tuple[str, list[str]]:
    """Return ``text`` with ``edits``, and one line for each of them that cannot be applied."""
    blanked = _blank_comments(text)
    insertions, failures = [], []
    for edit in edits:
        try:
            insertions.append(_locate(blanked, edit))
        except AnchorNotFound as error:
            failures.append(f"{edit.fault}: {error}")
    parts: list[str] = []
    position = 0
    for spot in sorted({(one.start, one.end) for one in insertions}):
        # the innermost first: what leaves out what it was found in place of can have nothing in it
        here = sorted((one for one in insertions if (one.start, one.end) == spot), key=_keeps_what_is_found)
        for outer in (one for one in here[1:] if not _keeps_what_is_found(one)):
            hidden = here[0].edit.fault
            failures.append(f"{outer.edit.fault}: {outer.edit.anchor!r} hides {hidden}: expected @ in its code")
        if spot[0] < position:
            failures.append(f"{here[0].edit.fault}: {here[0].edit.anchor!r} overlaps the anchor of another edit")
            continue
        parts += text[position : spot[0]], _apply(text[spot[0] : spot[1]], here)
        position = spot[1]
    edited = "".join([*parts, text[position:]])
    return (_INCLUDE.sub(f"#include <{HEADER}>\n#include ", edited, count=1) if parts else text), failures


def _apply(found: str, insertions: Sequence[_Insertion]) -> str:
    """Return ``found`` with the code of all ``insertions``; what is put in its place nests, the first one innermost.

    Lines of their own, at the margin, keep a compiler from taking code for guarded by the condition before it.
    """
    before, middle, after = "", found, ""
    for one in insertions:
        if one.edit.place is Place.INSTEAD:
            middle = _code(one, middle)
        elif one.edit.place is Place.BEFORE:
            before += f"{_code(one, found)}\n"
        else:
            after += f"\n{_code(one, found)}"
    return f"{before}{middle}{after}"


def _keeps_what_is_found(insertion: _Insertion) -> bool:
    """Tell whether what the anchor found is in the code, so that the code of others can stand there."""
    return insertion.edit.place is not Place.INSTEAD or "" in _FOUND.findall(insertion.edit.code)


def _code(insertion: _Insertion, found: str) -> str:
    code = _CONDITION.sub(f"SEEDED({constant(insertion.edit.fault)})", insertion.edit.code.strip())
    return _FOUND.sub(lambda match: insertion.groups.get(match[1], "") if match[1] else found, code)


def _locate(blanked: str, edit: Edit) -> _Insertion:
    """Return where ``edit`` goes. Raises AnchorNotFound."""
    bodies = [body for name in edit.functions for body in find_bodies(blanked, name)]
    pattern = compile_anchor(edit.anchor)
    every = (match for start, end in bodies for match in pattern.finditer(blanked, start, end))
    found = [match for match in every if not _is_inside_word(blanked, match.start())]
    where = f"{' or '.join(edit.functions)}(): {edit.anchor!r}"
    if not found:
        raise AnchorNotFound(f"{where} is not found")
    if edit.number is None and len(found) > 1:
        raise AnchorNotFound(f"{where} is found {len(found)} times")
    if (edit.number or 1) > len(found):
        raise AnchorNotFound(f"{where} is found {len(found)} times, and number {edit.number} is wanted")
    match = found[(edit.number or 1) - 1]
    start, end = match.span()
    if edit.place is Place.BEFORE and _STATEMENT.search(edit.code) and _is_guarded(blanked, start):
        raise AnchorNotFound(
            f"{where} belongs to a condition without braces: a statement before it would take its place"
        )
    # code beside a place and code in its place do not get in each other's way
    if edit.place is Place.BEFORE:
        end = start
    elif edit.place is Place.AFTER:
        start = end
    return _Insertion(start, end, edit, {name: text or "" for name, text in match.groupdict().items()})


def _is_guarded(text: str, position: int) -> bool:
    """Tell whether the statement of ``text`` at ``position`` belongs to a condition or a loop without braces."""
    line = text[:position].rstrip().rpartition("\n")[2].lstrip()
    return not line.startswith("#") and _CONDITION_BEFORE.search(line) is not None


def _is_inside_word(text: str, position: int) -> bool:
    """Tell whether a word of ``text`` goes on at ``position``: ``put_page`` is not found in ``output_page``."""
    return re.match(r"\w\w", text[position - 1 : position + 1]) is not None


def find_bodies(blanked: str, function: str) -> Iterator[tuple[int, int]]:
    """Yield where each body of ``function`` begins and ends, its braces included; ``#ifdef`` makes several.

    A definition begins in the first column, or its return type does on the line before.
    """
    for match in re.finditer(rf"^(?:\w[\w \t*]*[ \t*])?{re.escape(function)}\s*\(", blanked, re.MULTILINE):
        depth, position = 1, match.end()
        while depth and position < len(blanked):
            depth += {"(": 1, ")": -1}.get(blanked[position], 0)
            position += 1
        body = _BETWEEN.match(blanked, position)
        end = blanked.find("\n}", position)
        if body and end >= 0:
            yield body.end() - 1, end + 2


def _defines(text: str | None, functions: Sequence[str]) -> bool:
    if text is None:
        return False
    blanked = _blank_comments(text)
    return any(True for name in functions for _body in find_bodies(blanked, name))


@cache
def _blank_comments(text: str) -> str:
    """Return ``text`` with blanks for comments, and as long as it was; strings stay."""
    return _COMMENT.sub(lambda match: match[0] if match[0][0] == '"' else re.sub(r"[^\n]", " ", match[0]), text)
