"""Kernel arguments as words, and as text in the files of boot loaders.

A word is an argument without its quotes: what ``dyndbg="file x +p"`` means is ``dyndbg=file x +p``.
"""

import re
from collections.abc import Iterable, Sequence

from hugepage_qa.errors import InputError
from hugepage_qa.parameters import parse_parameters

# what neither GRUB nor a shell nor the kernel takes for anything but itself
_PLAIN = re.compile(r"[\w@%+=:,./^-]+", re.ASCII)
# each of these means something inside double quotes to one of the programs that a word passes through
_UNQUOTABLE = re.compile(r"[\"'\\$`]|[^\x20-\x7e]")
_RAW = re.compile(r'(?:[^\s"]|"[^"]*(?:"|$))+')


def parse_words(text: str) -> tuple[str, ...]:
    """Return the kernel arguments in ``text``, up to a word ``--``: what follows belongs to init."""
    return tuple(str(parameter) for parameter in parse_parameters(text))


def quote(word: str) -> str:
    """Return ``word`` as it stands in a file: as it is, or in double quotes, which GRUB and the kernel take off."""
    return word if _PLAIN.fullmatch(word) else f'"{word}"'


def join_words(words: Iterable[str]) -> str:
    """Return ``words`` as the text of a command line."""
    return " ".join(map(quote, words))


def refuse_unquotable(words: Iterable[str]) -> None:
    """Raise InputError for a word that would not come through every boot loader as it is."""
    for word in words:
        if not word or word == "--" or _UNQUOTABLE.search(word):
            raise InputError(f"kernel argument {word!r}: expected printable ASCII without quotes, backslash, $ and `")


def append_words(text: str, words: Sequence[str]) -> str:
    """Return the command line ``text`` with ``words`` at its end."""
    return " ".join([*([text.rstrip()] if text.strip() else []), *map(quote, words)])


def drop_words(text: str, words: Sequence[str]) -> str:
    """Return the command line ``text`` without the last occurrence of each of ``words``; the others stay untouched."""
    raw = _RAW.findall(text)
    meanings = [_meaning(word) for word in raw]
    for position in sorted(last_positions(meanings, words), reverse=True):
        del raw[position]
    return " ".join(raw)


def without_last(words: Sequence[str], dropped: Sequence[str]) -> tuple[str, ...]:
    """Return ``words`` without the last occurrence of each of ``dropped``; what is not there is none."""
    positions = last_positions(words, dropped)
    return tuple(word for position, word in enumerate(words) if position not in positions)


def last_positions(words: Sequence[str], wanted: Sequence[str]) -> set[int]:
    """Return where in ``words`` the last occurrences of ``wanted`` are; a word that is wanted twice has two."""
    positions: set[int] = set()
    for word in wanted:
        free = (index for index in reversed(range(len(words))) if words[index] == word and index not in positions)
        if (found := next(free, None)) is not None:
            positions.add(found)
    return positions


def _meaning(raw: str) -> str:
    return next(iter(parse_words(raw)), raw)
