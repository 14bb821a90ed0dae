"""Numbers, sizes and names of per-size directories."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.tree import (
    CapturedTree,
    parse_integer,
    parse_number_or_size,
    read_integer,
    size_directories,
    size_name,
)


def test_missing_file_is_none() -> None:
    assert read_integer(CapturedTree({}), "proc/sys/vm/nr_hugepages") is None


@pytest.mark.parametrize(("text", "value"), [("0\n", 0), ("-1\n", -1), ("18446744073709551615\n", 2**64 - 1)])
def test_integer(text: str, value: int) -> None:
    assert parse_integer(text, "file") == value


@pytest.mark.parametrize("text", ["", "\n", "4 kB", "1_0", "0x10", "\u0663", "1\n2", "9" * 5000])
def test_what_is_no_integer_is_named(text: str) -> None:
    with pytest.raises(InputError, match=r"^/proc/x, line 3: .*expected a whole number"):
        parse_integer(text, "proc/x", 3)


def test_size_with_unit_becomes_bytes() -> None:
    assert parse_number_or_size("2048kB\n", "demote_size") == 2 << 20
    assert parse_number_or_size("7\n", "nr_hugepages") == 7


def test_size_directories_ascend() -> None:
    tree = CapturedTree({f"d/hugepages-{size}kB/x": "" for size in (1048576, 64, 2048)} | {"d/khugepaged/x": ""})
    assert list(size_directories(tree, "d").items()) == [
        (64 << 10, "d/hugepages-64kB"),
        (2 << 20, "d/hugepages-2048kB"),
        (1 << 30, "d/hugepages-1048576kB"),
    ]


def test_unknown_form_of_directory_is_an_error() -> None:
    with pytest.raises(InputError, match=r"/d/hugepages-2M: expected a name such as"):
        size_directories(CapturedTree({"d/hugepages-2M/x": ""}), "d")


@given(st.integers(min_value=0, max_value=2**44))
def test_name_of_a_size_leads_back(kilobytes: int) -> None:
    name = size_name(kilobytes * 1024)
    assert size_directories(CapturedTree({f"d/{name}/x": ""}), "d") == {kilobytes * 1024: f"d/{name}"}


@given(st.text())
def test_nothing_but_input_error(text: str) -> None:
    try:
        assert isinstance(parse_number_or_size(text, "file"), int)
    except InputError as error:
        assert "\n" not in str(error)
