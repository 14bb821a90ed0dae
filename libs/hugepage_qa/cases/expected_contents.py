"""What a file must hold, after all that was done to it."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    """Bytes of a file that lie together: zeroes, or words: ``value`` and, from word to word, 8 more."""

    length: int
    value: int | None

    def part(self, first: int, length: int) -> "Piece":
        """Return ``length`` bytes of it, from byte ``first`` on."""
        return Piece(length, None if self.value is None else self.value + first)


class Contents:
    """What a file must hold: pieces, one after the other. All numbers are bytes, and whole words."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = list(pieces)

    @property
    def length(self) -> int:
        """Its length in bytes."""
        return sum(piece.length for piece in self.pieces)

    def replace(self, first: int, length: int, by: Sequence[Piece]) -> None:
        """Put ``by``, which may be shorter or longer, in the place of ``length`` bytes."""
        self.pieces = [*self.between(0, first), *by, *self.between(first + length, self.length)]

    def resize(self, length: int) -> None:
        """Make the file shorter, or longer by zeroes."""
        longer = length - self.length
        self.replace(min(length, self.length), max(-longer, 0), [Piece(longer, None)] if longer > 0 else [])

    def between(self, first: int, end: int) -> list[Piece]:
        """Return the pieces of its bytes from ``first`` to ``end``, or to where it ends."""
        found = []
        start = 0
        for piece in self.pieces:
            low, high = max(first, start), min(end, start + piece.length)
            if low < high:
                found.append(piece.part(low - start, high - low))
            start += piece.length
        return found
