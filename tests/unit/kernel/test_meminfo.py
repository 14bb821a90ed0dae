"""/proc/meminfo and that of a node."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.counters import parse_meminfo, read_meminfo
from hugepage_qa.kernel.tree import CapturedTree


def test_units() -> None:
    text = "MemTotal:   24684084 kB\nActive(anon):   1532 kB\nHugePages_Total:      3\nHugepagesize:   2048 kB\n"
    assert parse_meminfo(text, "proc/meminfo") == {
        "MemTotal": 24684084 * 1024,
        "Active(anon)": 1532 * 1024,
        "HugePages_Total": 3,
        "Hugepagesize": 2 << 20,
    }


def test_node_prefix_is_dropped() -> None:
    text = "Node 10 MemTotal:        5466316 kB\nNode 10 HugePages_Total:     5\n"
    assert parse_meminfo(text, "x") == {"MemTotal": 5466316 * 1024, "HugePages_Total": 5}


def test_missing_file_is_empty() -> None:
    assert read_meminfo(CapturedTree({})) == {}


@pytest.mark.parametrize("line", ["MemFree", "MemFree: ", "MemFree: -1 kB", "MemFree: 1 MB", "MemTotal: 1 kB"])
def test_malformed_line_is_named(line: str) -> None:
    with pytest.raises(InputError, match=r"^/proc/meminfo, line 2: 'Mem"):
        parse_meminfo(f"MemTotal: 5 kB\n{line}\n", "proc/meminfo")


def test_every_line_of_a_real_file(any_capture: CapturedTree) -> None:
    values = read_meminfo(any_capture)
    lines = (any_capture.read("proc/meminfo") or "").splitlines()
    assert len(values) == len(lines) > 40
    for line in lines:
        name, number, *unit = line.replace(":", " ").split()
        assert values[name] == int(number) * (1024 if unit else 1)


@given(st.text() | st.from_regex(r"(Node 0 )?[A-Z]\w{0,3}:\s{0,2}[0-9]{1,3}( [kM]B)?\n?", fullmatch=True))
def test_nothing_but_input_error(text: str) -> None:
    try:
        assert all(value >= 0 for value in parse_meminfo(text, "x").values())
    except InputError as error:
        assert "\n" not in str(error)
