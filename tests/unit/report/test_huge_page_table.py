"""Processes that use huge pages, for people and for programs."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugepage_qa.commands.ps import as_json, printable, table_lines
from hugepage_qa.kernel.pools import Pool
from hugepage_qa.machine.huge_page_users import HugePageUser, HugePageUsers, HugetlbUse, MemoryUse
from hugepage_qa.sizes import GIB, KIB, MIB

POSTGRES = HugePageUser(
    7, "postgres", 26, MemoryUse({2 * MIB: HugetlbUse(1, 8 * MIB, 0, 4 * MIB)}, 6 * MIB, 0, 2 * MIB, 88 * KIB)
)
POOL = Pool(2 * MIB, {"nr_hugepages": 8, "free_hugepages": 6, "resv_hugepages": 2, "surplus_hugepages": 0})
EMPTY_POOL = Pool(GIB, {"nr_hugepages": 0, "free_hugepages": 0, "resv_hugepages": 0, "surplus_hugepages": 0})


def users(processes: Sequence[HugePageUser], not_readable: int = 0) -> HugePageUsers:
    return HugePageUsers(4 * KIB, tuple(processes), not_readable, (POOL, EMPTY_POOL))


def lines(processes: Sequence[HugePageUser], not_readable: int = 0) -> list[str]:
    return list(table_lines(users(processes, not_readable), processes))


def test_table() -> None:
    other = HugePageUser(10000, "x", 0, MemoryUse({GIB: HugetlbUse(1, GIB, GIB, 0)}, page_tables=4 * KIB))
    assert lines([POSTGRES, other]) == [
        "  PID  2M MAPPED  2M PRIVATE  2M SHARED  1G MAPPED  1G PRIVATE  1G SHARED"
        "  ANON THP  SHMEM THP  FILE THP  PAGE TABLES  NAME",
        "    7         8M           0         4M          0           0          0"
        "        6M          0        2M          88K  postgres",
        "10000          0           0          0         1G          1G          0"
        "         0          0         0           4K  x",
        "total         8M           0         4M         1G          1G          0"
        "        6M          0        2M          92K  2 processes",
        "a page that several processes map is in each of them, and in the total several times",
        "pool of 2M pages: 8, of which 2 in use (4M) and 6 free (2 of them reserved); 0 surplus",
        "pool of 1G pages: 0, of which 0 in use (0) and 0 free (0 of them reserved); 0 surplus",
    ]


def test_sizes_and_notes_only_where_there_is_something_to_say() -> None:
    private = HugePageUser(7, "x", 0, MemoryUse({2 * MIB: HugetlbUse(1, 2 * MIB, 2 * MIB, 0)}))
    assert not [line for line in lines([private]) if "1G" in line or "several" in line or "not readable" in line]
    assert lines([])[:2] == [
        "  PID  ANON THP  SHMEM THP  FILE THP  PAGE TABLES  NAME",
        "total         0          0         0            0  0 processes",
    ]


@pytest.mark.parametrize(("number", "text"), [(1, "not readable: 1 process "), (2, "not readable: 2 processes ")])
def test_what_could_not_be_read_is_said_in_one_line(number: int, text: str) -> None:
    assert lines([POSTGRES], number)[-1].startswith(text)


def test_json() -> None:
    memory = {
        "hugetlb": {str(2 * MIB): {"mappings": 1, "mapped": 8 * MIB, "private": 0, "shared": 4 * MIB}},
        "anonymous_thp": 6 * MIB,
        "shmem_thp": 0,
        "file_thp": 2 * MIB,
        "page_tables": 88 * KIB,
    }
    assert as_json(users([POSTGRES], 3), [POSTGRES]) == {
        "base_page_size": 4 * KIB,
        "processes": [{"pid": 7, "name": "postgres", "uid": 26, **memory}],
        "total": memory,
        "pools": {str(2 * MIB): dict(POOL.files), str(GIB): dict(EMPTY_POOL.files)},
        "not_readable": 3,
    }


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("postgres: writer", "postgres: writer"),
        ("\x1b[31mred\n\\", r"\x1b[31mred\n\\"),
        ("\x9b2J\x07\r\t", r"\x9b2J\x07\r\t"),
        ("日本語", "日本語"),
        ("gnp\u202e", r"gnp\u202e"),
    ],
)
def test_names_do_nothing_to_a_terminal(name: str, shown: str) -> None:
    assert printable(name) == shown
    assert lines([HugePageUser(7, name, 0, MemoryUse())])[1].endswith(f"  {shown}")


@given(st.text())
def test_every_name_is_one_printable_line_and_no_other_name_looks_the_same(name: str) -> None:
    assert printable(name).isprintable()
    assert printable(name).encode("latin-1", "backslashreplace").decode("unicode_escape") == name
