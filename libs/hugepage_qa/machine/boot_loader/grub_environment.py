"""grubenv: the variables that GRUB loads at boot, such as saved_entry (GRUB manual, "The GRUB environment block").

What they and GRUB's quotes make of the kernel arguments of an entry.
"""

import re
import shlex
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.machine.boot_loader.boot_files import read_optional_text

#: GRUB calls its directory grub or, where GRUB 1 had that name, grub2
GRUB_DIRECTORIES = ("boot/grub2", "boot/grub")

_VARIABLE = re.compile(r"(?<!\\)\$(?:\{(?P<braced>\w+)\}|(?P<bare>\w+))")
_COMMAND_ENDS = ";&|"


def find_in_grub_directory(root: Path, name: str) -> Path | None:
    """Return the file ``name`` of GRUB's directory below ``root``, None where there is none."""
    paths = (root / directory / name for directory in GRUB_DIRECTORIES)
    return next((path for path in paths if path.is_file()), None)


def read_grub_environment(root: Path) -> dict[str, str]:
    """Return the variables in grubenv; none where there is no such file. Raises InputError if it cannot be read."""
    path = find_in_grub_directory(root, "grubenv")
    text = (read_optional_text(path) if path else None) or ""
    lines = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {name: value.replace("\\\\", "\\") for name, equals, value in lines if equals}


def parse_grub_words(text: str, variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words that GRUB makes of the kernel arguments ``text``, without quotes.

    A variable that is not set is nothing, and what follows a ``;`` without quotes is no argument. Raises InputError
    for a quote that has no end.
    """
    expanded = _VARIABLE.sub(lambda match: variables.get(match["braced"] or match["bare"], ""), text)
    # GRUB quotes as a shell does
    lexer = shlex.shlex(expanded, posix=True, punctuation_chars=_COMMAND_ENDS)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return tuple(takewhile(lambda word: not word or word.strip(_COMMAND_ENDS), lexer))
    except ValueError as error:
        raise InputError(f"kernel arguments {text!r}: expected what GRUB can read ({error})") from error
