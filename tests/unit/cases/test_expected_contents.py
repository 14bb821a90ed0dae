"""What a file must hold, by pieces, is what a list of its words says."""

from hypothesis import given
from hypothesis import strategies as st

from hugepage_qa.cases.expected_contents import Contents, Piece

_WORDS = 24
_WORD = 8


def words_of(contents: Contents) -> list[int]:
    """Return each word of ``contents``."""
    return [
        0 if piece.value is None else piece.value + offset
        for piece in contents.pieces
        for offset in range(0, piece.length, _WORD)
    ]


@given(
    st.lists(st.tuples(st.integers(0, _WORDS), st.integers(0, _WORDS), st.integers(0, _WORDS), st.booleans())),
    st.integers(0, 2 * _WORDS),
)
def test_pieces_are_replaced_by_others_of_any_length(changes: list[tuple[int, int, int, bool]], end: int) -> None:
    contents = Contents([Piece(_WORDS * _WORD, 1000)])
    words = [1000 + offset for offset in range(0, _WORDS * _WORD, _WORD)]
    for number, (start, length, new, is_zero) in enumerate(changes, start=2):
        first = min(start, len(words))
        count = min(length, len(words) - first)
        piece = Piece(new * _WORD, None if is_zero else number * 100_000)
        contents.replace(first * _WORD, count * _WORD, [piece])
        words[first : first + count] = words_of(Contents([piece]))
        assert words_of(contents) == words
    contents.resize(end * _WORD)
    assert words_of(contents) == (words + [0] * end)[:end]
    assert contents.length == end * _WORD
