"""Which writes are accepted, by the kernels that the rules were learnt from."""

import pytest

from hugepage_qa.oracle.program_text import (
    Generation,
    accept_enabled,
    accept_threshold,
    possible_generations,
)

PMD = 2 << 20


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("1", 1), ("2", 2), ("3\n", 3), ("0x3", 3), ("0x0", 0), ("03", 3), ("+2", 2)],
)
def test_bits_are_read_in_any_base(text: str, value: int) -> None:
    assert accept_enabled(text, Generation.BITS) == value


@pytest.mark.parametrize(
    "text", ["4", "-1", "\n", "", "1 ", " 1", "1x", "010", "always", "18446744073709551617", "0x4"]
)
def test_bits_refuse_all_else_and_clamp_nothing(text: str) -> None:
    assert accept_enabled(text, Generation.BITS) is None


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("1\n", 1), ("01", 1), ("2", None), ("3", None), ("0x1", None)])
def test_the_switch_of_the_first_kernels_is_decimal(text: str, value: int | None) -> None:
    assert accept_enabled(text, Generation.SWITCH) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("4096", 4096), ("2097151", 2097151), ("010", 10), ("+7", 7), ("1\n", 1)],
)
def test_a_threshold_is_decimal_bytes(text: str, value: int) -> None:
    assert accept_threshold(text, PMD) == value


@pytest.mark.parametrize("text", ["2097152", "-1", "0x1000", "4k", "\n", "1 "])
def test_a_threshold_is_below_a_huge_page(text: str) -> None:
    assert accept_threshold(text, PMD) is None


def test_files_decide_the_generation() -> None:
    assert possible_generations(has_threshold=True) == (Generation.BITS,)
    assert set(possible_generations(has_threshold=False)) == set(Generation)
