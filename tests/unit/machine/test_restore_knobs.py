"""Knobs are put back in the order that the kernel needs, and what cannot be is told."""

from pathlib import Path

import pytest

from hugepage_qa.machine import restore as module
from hugepage_qa.machine.kept_file import NOTHING, Repair, unrestored
from hugepage_qa.machine.knobs import read_knobs
from hugepage_qa.machine.restore import restore_knobs

from .conftest import NODES, POOLS, THP, VM, Kernel, value

SMALL_0 = f"{NODES}/node0/hugepages/hugepages-2048kB/nr_hugepages"
SMALL_1 = f"{NODES}/node1/hugepages/hugepages-2048kB/nr_hugepages"
LARGE_0 = f"{NODES}/node0/hugepages/hugepages-1048576kB/nr_hugepages"
LARGE_1 = f"{NODES}/node1/hugepages/hugepages-1048576kB/nr_hugepages"
OVERCOMMIT = f"{POOLS}/hugepages-2048kB/nr_overcommit_hugepages"


def saved(root: Path) -> dict[str, str]:
    return {knob.path: value for knob, value in read_knobs(root).items()}


def test_nothing_is_written_where_nothing_has_changed(kernel: Kernel) -> None:
    assert restore_knobs(saved(kernel.root), kernel.root) == []
    assert kernel.written == []


def test_order(kernel: Kernel) -> None:
    wanted = saved(kernel.root)
    changed = {
        SMALL_0: "2",  # must grow to 7
        SMALL_1: "9",  # must shrink to 4
        LARGE_0: "0",  # must grow to 1
        LARGE_1: "1",  # must shrink to 0
        OVERCOMMIT: "5",
        f"{THP}/enabled": "[always] madvise never",
        f"{VM}/min_free_kbytes": "2000",
        "proc/sys/kernel/shmmax": "1",
    }
    for path, text in changed.items():
        kernel.set(path, text)
    kernel.set(f"{NODES}/node0/hugepages/hugepages-2048kB/surplus_hugepages", "0")
    repairs = restore_knobs(wanted, kernel.root)
    assert kernel.written == [
        OVERCOMMIT,
        "proc/sys/kernel/shmmax",
        LARGE_1,
        SMALL_1,
        LARGE_0,
        SMALL_0,
        f"{THP}/enabled",
        f"{VM}/min_free_kbytes",
    ]
    assert saved(kernel.root) == wanted
    assert unrestored(repairs) == ()
    assert Repair("node0/hugepages-2048kB/nr_hugepages", "7", "2", "7") in repairs
    assert len(repairs) == len(changed)


def test_min_free_kbytes_that_switching_thp_on_raises(kernel: Kernel) -> None:
    wanted = saved(kernel.root)
    kernel.set(f"{THP}/enabled", "always madvise [never]")

    def raise_reserve(path: str, _: str) -> None:
        if path == f"{THP}/enabled":
            kernel.set(f"{VM}/min_free_kbytes", "9000")

    kernel.rules.append(raise_reserve)
    repairs = restore_knobs(wanted, kernel.root)
    assert saved(kernel.root) == wanted
    assert unrestored(repairs) == ()


@pytest.mark.parametrize(("kbytes", "ratio"), [("0", "50"), ("700", "0"), ("0", "0")])
@pytest.mark.parametrize(("kbytes_now", "ratio_now"), [("0", "50"), ("800", "0"), ("0", "30"), ("0", "0")])
def test_overcommit_ratio_and_kbytes_exclude_each_other(
    kernel: Kernel, kbytes: str, ratio: str, kbytes_now: str, ratio_now: str
) -> None:
    paths = [f"{VM}/overcommit_kbytes", f"{VM}/overcommit_ratio"]

    def reset_other(path: str, _: str) -> None:
        if path in paths:
            kernel.set(paths[1 - paths.index(path)], "0")

    kernel.rules.append(reset_other)
    for path, text in zip(paths, (kbytes_now, ratio_now), strict=True):
        kernel.set(path, text)
    assert unrestored(restore_knobs({paths[0]: kbytes, paths[1]: ratio}, kernel.root)) == ()
    assert [value(kernel.root, path) for path in paths] == [kbytes, ratio]


def test_values_that_forbid_one_another_need_another_attempt(kernel: Kernel) -> None:
    everything, one = f"{THP}/shmem_enabled", f"{THP}/hugepages-64kB/shmem_enabled"
    wanted = {one: "inherit", everything: "never"}
    kernel.set(everything, "always within_size advise never deny [force]")
    kernel.set(one, "always inherit within_size advise [never]")

    def forbid(path: str, text: str) -> None:
        if path == one and text == "inherit" and "[force]" in value(kernel.root, everything):
            kernel.refuse(path, "always inherit within_size advise [never]")

    kernel.rules.append(forbid)
    assert unrestored(restore_knobs(wanted, kernel.root)) == ()
    assert kernel.written == [one, everything, one]


def test_fragmented_memory_is_compacted(kernel: Kernel) -> None:
    def fail_until_compacted(path: str, _: str) -> None:
        if path == LARGE_0 and f"{VM}/compact_memory" not in kernel.written:
            kernel.set(path, "0")

    kernel.rules.append(fail_until_compacted)
    kernel.set(LARGE_0, "0")
    (repair,) = restore_knobs({LARGE_0: "1"}, kernel.root)
    assert repair.succeeded
    assert kernel.written == [LARGE_0, f"{VM}/drop_caches", f"{VM}/compact_memory", LARGE_0]


def test_a_pool_that_cannot_grow(kernel: Kernel) -> None:
    kernel.set(LARGE_0, "0")
    kernel.rules.append(lambda path, _: kernel.set(path, "3") if path == LARGE_0 else None)
    (repair,) = restore_knobs({LARGE_0: "5"}, kernel.root)
    assert str(repair) == "node0/hugepages-1048576kB/nr_hugepages: NOT put back: wanted 5, found 3"
    assert kernel.written.count(LARGE_0) == module._ATTEMPTS


def test_a_file_that_refuses(kernel: Kernel) -> None:
    wanted = saved(kernel.root)
    for path in (f"{THP}/use_zero_page", f"{VM}/min_free_kbytes"):
        kernel.set(path, "0")

    def refuse(path: str, _: str) -> None:
        if path == f"{THP}/use_zero_page":
            kernel.refuse(path, "0")

    kernel.rules.append(refuse)
    repairs = restore_knobs(wanted, kernel.root)
    assert unrestored(repairs) == (Repair("transparent_hugepage/use_zero_page", "1", "0", "0"),)
    # the others are put back all the same
    assert value(kernel.root, f"{VM}/min_free_kbytes") == "1000"


def test_caches_are_dropped_for_pools_only(kernel: Kernel) -> None:
    kernel.set(f"{THP}/use_zero_page", "0")
    kernel.rules.append(lambda path, _: kernel.refuse(path, "0") if path == f"{THP}/use_zero_page" else None)
    restore_knobs({f"{THP}/use_zero_page": "1"}, kernel.root)
    assert set(kernel.written) == {f"{THP}/use_zero_page"}


def test_a_knob_that_is_gone(machine: Path) -> None:
    (machine / f"{THP}/use_zero_page").unlink()
    assert restore_knobs({f"{THP}/use_zero_page": "1"}, machine) == [
        Repair("transparent_hugepage/use_zero_page", "1", NOTHING, NOTHING)
    ]


def test_only_knobs_are_written(machine: Path) -> None:
    paths = ("proc/cmdline", f"{POOLS}/hugepages-1048576kB/demote", f"{THP}/khugepaged/full_scans", f"{VM}/drop_caches")
    before = {path: (machine / path).stat().st_mtime_ns for path in paths}
    repairs = restore_knobs(dict.fromkeys(paths, "1"), machine)
    assert len(unrestored(repairs)) == len(paths)
    assert before == {path: (machine / path).stat().st_mtime_ns for path in paths}


def test_persistent_pages_are_put_back_beside_surplus_ones(kernel: Kernel) -> None:
    wanted = saved(kernel.root)
    kernel.set(SMALL_0, "3")
    kernel.set(f"{NODES}/node0/hugepages/hugepages-2048kB/surplus_hugepages", "0")
    restore_knobs(wanted, kernel.root)
    assert value(kernel.root, SMALL_0) == "7"
