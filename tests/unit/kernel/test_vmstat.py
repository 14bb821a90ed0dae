"""Counters of the memory management."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.counters import parse_vmstat, read_vmstat, vmstat_delta
from hugepage_qa.kernel.tree import CapturedTree, DirectoryTree


def test_every_line_of_a_real_file(any_capture: CapturedTree) -> None:
    values = read_vmstat(any_capture)
    lines = (any_capture.read("proc/vmstat") or "").splitlines()
    assert {f"{name} {value}" for name, value in values.items()} == set(lines)
    assert len(lines) > 50


def test_of_this_machine() -> None:
    assert read_vmstat(DirectoryTree(Path("/")))["pgfault"] > 0


def test_missing_file_is_empty() -> None:
    assert read_vmstat(CapturedTree({})) == {}


def test_the_largest_number_that_the_kernel_prints() -> None:
    assert parse_vmstat(f"nr_free_pages {(1 << 64) - 1}\n", "x") == {"nr_free_pages": (1 << 64) - 1}


def test_delta() -> None:
    before = {"thp_fault_alloc": 3, "nr_free_pages": 10, "gone": 1}
    after = {"thp_fault_alloc": 5, "nr_free_pages": 7, "new": 2}
    assert vmstat_delta(before, after) == {"thp_fault_alloc": 2, "nr_free_pages": -3}
    assert vmstat_delta(before, before)["thp_fault_alloc"] == 0


@pytest.mark.parametrize(
    "line",
    ["pgfault", "pgfault ", "pgfault x", "pgfault -1", "pgfault 1 kB", "pgfault: 1", " pgfault 1", "thp_split_pmd 1"],
)
def test_malformed_line_is_named(line: str) -> None:
    with pytest.raises(InputError, match=r"^/proc/vmstat, line 2: "):
        read_vmstat(CapturedTree({"proc/vmstat": f"thp_split_pmd 4\n{line}\n"}))


@given(st.text() | st.from_regex(r"([a-z]{1,3} [0-9]{1,3}\n){0,3}", fullmatch=True))
def test_nothing_but_input_error(text: str) -> None:
    try:
        assert all(value >= 0 for value in parse_vmstat(text, "x").values())
    except InputError as error:
        assert "\n" not in str(error)
