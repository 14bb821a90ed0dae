"""Fragmented memory and the reservation at run time, on memory of our own and on files that stand for the kernel's."""

import os
from pathlib import Path

import pytest

from hugepage_qa.cases.reboot.run_time_settings import RunTimeReservation, fragmented_memory, reserve_at_run_time
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.sizes import MIB

SIZE = 2 * MIB
# two pieces of 64 MiB are 70 % of it
MEMINFO = f"MemAvailable:   {200 * 1024} kB\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/buddyinfo": "Node 0, zone   Normal      1      2\n",
        "proc/sys/vm/drop_caches": "0\n",
        "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "7\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only the number


def test_two_pages_of_each_huge_page_are_pinned_and_let_go() -> None:
    before = open_files()
    with fragmented_memory(SIZE, CapturedTree({"proc/meminfo": MEMINFO})) as pinned:
        assert pinned == 2 * 64 * MIB // (SIZE // 2)
        assert open_files() > before
    assert open_files() == before


def test_pages_are_let_go_after_an_error() -> None:
    before = open_files()
    with pytest.raises(RuntimeError), fragmented_memory(SIZE, CapturedTree({"proc/meminfo": MEMINFO})):
        raise RuntimeError
    assert open_files() == before


def test_pool_is_put_back(root: Path) -> None:
    found = reserve_at_run_time(40, SIZE, root)
    assert (found.asked, found.got, found.pinned) == (40, 40, 128)
    assert (root / "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages").read_text() == "7\n"
    assert [line for line in found.log.splitlines() if line.startswith("---")] == [
        "--- /proc/buddyinfo, before",
        "--- /proc/buddyinfo, fragmented",
        "--- /proc/buddyinfo, 40 of 40 pages reserved",
    ]


def test_no_such_pool(root: Path) -> None:
    with pytest.raises(InputError, match=r"hugepages-1048576kB/nr_hugepages: no such file"):
        reserve_at_run_time(1, 1024 * MIB, root)


def test_a_pool_that_cannot_be_set(root: Path) -> None:
    (root / "proc/sys/vm/drop_caches").unlink()
    (root / "proc/sys/vm/drop_caches").mkdir()
    with pytest.raises(InputError, match=r"drop_caches: 1 cannot be written \(Is a directory\)"):
        reserve_at_run_time(1, SIZE, root)


@pytest.mark.parametrize(("got", "right"), [(0, True), (39, True), (40, True), (41, False)])
def test_fewer_are_evidence_and_more_are_wrong(got: int, right: bool) -> None:
    assert (RunTimeReservation(40, got, 9, "").differences() == []) is right
