"""The language of grub.cfg: text to commands and conditions (GRUB manual, "Writing full configuration files directly").

What only matters to what is seen on the screen (loops, functions) is recognised and left out.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hugepage_qa.errors import InputError

_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+|[?#*@])\}|(?P<bare>\w+|[?#*@]))")
_SEPARATORS = "\n;&|"
_SPACES = " \t\r"
_ESCAPABLE_IN_QUOTES = '$"\\\n'


@dataclass(frozen=True)
class Piece:
    """A part of a word: text, or the name of a variable; inside quotes a value is not split at spaces."""

    text: str
    is_variable: bool = False
    is_quoted: bool = False


Word = tuple[Piece, ...]


@dataclass(frozen=True)
class Command:
    """A command with its words, and the block in braces after a menuentry, submenu or function."""

    words: tuple[Word, ...]
    block: "tuple[Node, ...]" = ()


@dataclass(frozen=True)
class Condition:
    """``if``, with each of its conditions and what is run where it holds; ``else`` has no condition."""

    branches: "tuple[tuple[tuple[Node, ...], tuple[Node, ...]], ...]"


Node = Command | Condition


def parse_script(text: str, path: str) -> tuple[Node, ...]:
    """Return what ``text`` says. Raises InputError, which names ``path``, where a block has no end."""
    return _Parser(list(_tokens(text)), path).block(())


def expand(words: Sequence[Word], variables: Mapping[str, str]) -> list[str]:
    """Return ``words`` with the values of ``variables``; one that is not set is empty."""
    return [text for word in words for text in _expand_word(word, variables)]


def _expand_word(word: Word, variables: Mapping[str, str]) -> list[str]:
    texts = [""]
    for piece in word:
        value = variables.get(piece.text, "") if piece.is_variable else piece.text
        if piece.is_variable and not piece.is_quoted:
            first, *rest = value.split() or [""]
            texts[-1] += first
            texts += rest
        else:
            texts[-1] += value
    # an unquoted variable without a value is no word at all
    return texts if any(texts) or any(piece.is_quoted for piece in word) else []


def _tokens(text: str) -> Iterator[Word | str]:
    """Yield words, and as text what ends a command: a separator or a brace."""
    position = 0
    while position < len(text):
        char = text[position]
        if char in _SPACES:
            position += 1
        elif text.startswith("\\\n", position):
            position += 2
        elif char == "#":
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
        elif char in _SEPARATORS:
            yield ";"
            position += 1
        elif char in "{}":
            yield char
            position += 1
        else:
            word, position = _word(text, position)
            yield word


def _word(text: str, position: int) -> tuple[Word, int]:
    pieces: list[Piece] = []
    while position < len(text) and text[position] not in _SPACES + _SEPARATORS + "{}":
        char = text[position]
        if char == "'":
            end = text.find("'", position + 1)
            end = len(text) if end < 0 else end
            pieces.append(Piece(text[position + 1 : end], is_quoted=True))
            position = end + 1
        elif char == '"':
            quoted, position = _double_quoted(text, position + 1)
            pieces += quoted
        elif char == "\\":
            escaped = text[position + 1 : position + 2]
            pieces.append(Piece("" if escaped == "\n" else escaped, is_quoted=escaped != "\n"))
            position += 2
        elif match := _VARIABLE.match(text, position):
            pieces.append(Piece(match["braced"] or match["bare"], is_variable=True))
            position = match.end()
        else:
            pieces.append(Piece(char))
            position += 1
    return tuple(pieces), position


def _double_quoted(text: str, position: int) -> tuple[list[Piece], int]:
    # what is quoted is a word even when it is empty
    pieces = [Piece("", is_quoted=True)]
    while position < len(text) and text[position] != '"':
        if text[position] == "\\" and text[position + 1 : position + 2] in tuple(_ESCAPABLE_IN_QUOTES):
            pieces.append(Piece(text[position + 1].replace("\n", ""), is_quoted=True))
            position += 2
        elif match := _VARIABLE.match(text, position):
            pieces.append(Piece(match["braced"] or match["bare"], is_variable=True, is_quoted=True))
            position = match.end()
        else:
            pieces.append(Piece(text[position], is_quoted=True))
            position += 1
    return pieces, position + 1


def _keyword(token: Word | str | None) -> str:
    """Return the text of an unquoted word without variables, or of a separator."""
    if token is None or isinstance(token, str):
        return token or ""
    plain = not any(piece.is_variable or piece.is_quoted for piece in token)
    return "".join(piece.text for piece in token) if plain else ""


class _Parser:
    """Recursive descent; every method leaves the position behind what it has taken."""

    def __init__(self, tokens: Sequence[Word | str], path: str) -> None:
        self._tokens = tokens
        self._path = path
        self._position = 0

    def block(self, ends: Sequence[str]) -> tuple[Node, ...]:
        """Return the nodes up to one of ``ends``, which is not taken; () is the end of the text."""
        nodes: list[Node] = []
        while (word := self._peek()) not in ends or not ends:
            if self._position >= len(self._tokens):
                if ends:
                    raise InputError(f"{self._path}: no {' or '.join(ends)}: expected a whole GRUB configuration")
                break
            if word == ";":
                self._position += 1
            elif word == "if":
                nodes.append(self._condition())
            elif word in ("for", "while", "until"):
                self._loop()
            else:
                nodes.append(self._command())
        return tuple(nodes)

    def _peek(self) -> str:
        return _keyword(self._tokens[self._position]) if self._position < len(self._tokens) else ""

    def _take(self) -> None:
        self._position += 1

    def _condition(self) -> Condition:
        branches = []
        while self._peek() in ("if", "elif"):
            self._take()
            condition = self.block(("then",))
            self._take()
            branches.append((condition, self.block(("elif", "else", "fi"))))
        if self._peek() == "else":
            self._take()
            branches.append(((), self.block(("fi",))))
        self._take()
        return Condition(tuple(branches))

    def _loop(self) -> None:
        while self._peek() != "do" and self._position < len(self._tokens):
            self._take()
        self._take()
        self.block(("done",))
        self._take()

    def _command(self) -> Command:
        words: list[Word] = []
        while self._position < len(self._tokens):
            item = self._tokens[self._position]
            if item == "{":
                self._take()
                block = self.block(("}",))
                self._take()
                return Command(tuple(words), block)
            if isinstance(item, str):
                # a closing brace in command position ends the block around it; a lone one means nothing
                self._position += item == "}" and not words
                break
            words.append(item)
            self._take()
        return Command(tuple(words))
