"""The command line is split as next_arg() in lib/cmdline.c splits it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugepage_qa.parameters import Parameter, parse_parameters


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n", []),
        ("quiet hugepages=4\n", [("quiet", None), ("hugepages", "4")]),
        ("hugepages=", [("hugepages", "")]),
        ('a="b c" d', [("a", "b c"), ("d", None)]),
        ('"a=b c" d', [("a", "b c"), ("d", None)]),
        ('"a b"', [("a b", None)]),
        ('a=b"c d"e f', [("a", 'b"c d"e'), ("f", None)]),
        # the closing quote goes only where the word ends with it
        ('a="b"c', [("a", 'b"c')]),
        ('a="b c', [("a", "b c")]),
        ('a="', [("a", "")]),
        ('"', [("", None)]),
        ('""', [("", None)]),
        ("=a", [("=a", None)]),
        ("=a=b", [("=a", "b")]),
        ("a==b", [("a", "=b")]),
        ("a=b -- hugepages=4", [("a", "b")]),
        ("a=b --c=d", [("a", "b"), ("--c", "d")]),
        ('a "--" b', [("a", None)]),
        ("--=x b", [("--", "x"), ("b", None)]),
        ("a\tb\vc", [("a", None), ("b", None), ("c", None)]),
    ],
)
def test_words(text: str, expected: list[tuple[str, str | None]]) -> None:
    assert parse_parameters(text) == tuple(Parameter(*pair) for pair in expected)


def test_canonical_name_has_no_dashes() -> None:
    assert Parameter("default-hugepagesz", "2-M").canonical == "default_hugepagesz"


def test_text_form_is_what_the_kernel_prints() -> None:
    assert [str(word) for word in parse_parameters('quiet a="b c" d=')] == ["quiet", "a=b c", "d="]


_NAMES = st.text(alphabet="abz0_-.", min_size=1, max_size=8).filter(lambda name: name != "--")
_VALUES = st.none() | st.text(alphabet="ab=, \t", max_size=8)


@given(st.lists(st.builds(Parameter, _NAMES, _VALUES)), st.booleans())
def test_quoted_words_survive(words: list[Parameter], whole: bool) -> None:
    def quoted(word: Parameter) -> str:
        if word.value is None:
            return word.name
        return f'"{word.name}={word.value}"' if whole else f'{word.name}="{word.value}"'

    assert parse_parameters("  ".join(map(quoted, words))) == tuple(words)


@given(st.text())
def test_every_text_has_a_meaning(text: str) -> None:
    assert all(isinstance(word, Parameter) for word in parse_parameters(text))
