"""The kernel's number parsing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugepage_qa.oracle.boot.cstring import (
    kstrtobool,
    kstrtoul,
    memparse,
    scan_decimal,
    string_get_size,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2M", (2 << 20, "")),
        ("2m", (2 << 20, "")),
        ("2MB", (2 << 20, "B")),
        ("0x200000", (2 << 20, "")),
        ("010", (8, "")),
        ("08", (0, "8")),
        ("0x", (0, "x")),
        ("huge", (0, "huge")),
        ("-2M", (0, "-2M")),
        ("", (0, "")),
        ("1G,2G", (1 << 30, ",2G")),
        ("16E", (0, "")),  # 16 EiB do not fit into 64 bits
    ],
)
def test_memparse(text: str, expected: tuple[int, str]) -> None:
    assert memparse(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("16", (16, "")),
        ("010", (10, "")),
        ("0x10", (0, "x10")),
        ("3:4", (3, ":4")),
        ("-1", None),
        ("", None),
        ("x", None),
    ],
)
def test_scan_decimal(text: str, expected: tuple[int, str] | None) -> None:
    assert scan_decimal(text) == expected


def test_scan_decimal_wraps_at_64_bits() -> None:
    assert scan_decimal(str((1 << 64) + 5)) == (5, "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", 3),
        ("0x3", 3),
        ("03", 3),
        ("+2", 2),
        ("2\n", 2),
        ("010", 8),
        ("1x", None),
        ("", None),
        (" 1", None),
        ("-1", None),
    ],
)
def test_kstrtoul(text: str, expected: int | None) -> None:
    assert kstrtoul(text) == expected


def test_kstrtoul_overflow() -> None:
    assert kstrtoul(str(1 << 64)) is None
    assert kstrtoul(str((1 << 64) - 1)) == (1 << 64) - 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("on", True),
        ("off", False),
        ("y", True),
        ("Nein", False),
        ("1", True),
        ("0", False),
        ("o", None),
        ("", None),
        (None, None),
    ],
)
def test_kstrtobool(text: str | None, expected: bool | None) -> None:
    assert kstrtobool(text) is expected


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (64 << 10, "64.0 KiB"),
        (2 << 20, "2.00 MiB"),
        (32 << 20, "32.0 MiB"),
        (512 << 20, "512 MiB"),
        (1 << 30, "1.00 GiB"),
    ],
)
def test_string_get_size(size: int, text: str) -> None:
    assert string_get_size(size) == text


@given(st.text())
def test_parsers_take_any_text(text: str) -> None:
    memparse(text)
    scan_decimal(text)
    kstrtoul(text)
    kstrtobool(text)
