"""Programs that measure memory: what they print, as read and as broken, and the programs themselves."""

import re
import subprocess
from pathlib import Path

import pytest

from hugepage_qa.bench import page_migration, swapped_memory
from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.fragmented_memory import FragmentedFaults
from hugepage_qa.bench.memory_at_once import SharedMemory, Stutter, TouchAtOnce
from hugepage_qa.bench.memory_program import MEMORY, MemoryProgram, parse_lines
from hugepage_qa.bench.page_migration import PageMigration
from hugepage_qa.bench.swapped_memory import SwapAtOnce, SwapFromDisk, limited_group
from hugepage_qa.bench.workload import Unavailable
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.proc_tables import MOUNTS
from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.process.c_compiler import build_program
from hugepage_qa.sizes import GIB, MIB

BASE, THP = Backing(Kind.BASE, 4096), Backing(Kind.TRANSPARENT, 2 * MIB, is_default=True)
SMALL = Backing(Kind.TRANSPARENT, 65536)
STATIC, GIGANTIC = Backing(Kind.STATIC, 2 * MIB), Backing(Kind.STATIC, GIB)
TOUCHED = "touch-ns 500000000 unmap-ns 2000000 huge-kB 1048576\n"


def test_times_are_of_a_gib() -> None:
    repeats = parse_lines(TOUCHED * 2, TouchAtOnce.words, 2)
    assert TouchAtOnce().figures(repeats, 2 * GIB) == {
        "touch-at-once": [250, 250],
        "touch-at-once-unmap": [1, 1],
        "touch-at-once-huge": [1048576, 1048576],
    }


def test_pages_that_smaps_does_not_tell_of_are_no_figure() -> None:
    figures = TouchAtOnce().figures(parse_lines(TOUCHED, TouchAtOnce.words, 1), GIB)
    assert THP.without_hidden(figures) == BASE.without_hidden(figures) == figures
    assert set(SMALL.without_hidden(figures)) == {"touch-at-once", "touch-at-once-unmap"}


@pytest.mark.parametrize("workload", [SwapAtOnce(), SwapFromDisk()])
def test_what_is_hardly_swapped_says_nothing_of_swap(workload: SwapAtOnce) -> None:
    line = {"out-ns": 1_000_000, "in-ns": 2_000_000, "swapped-kB": 1024, "huge-kB": 0}
    assert workload.figures([line], MIB)[f"{workload.name}-in"] == [2048]
    with pytest.raises(Unavailable, match="swapped 1M of 4M"):
        workload.figures([line, {**line, "swapped-kB": 4096}], 4 * MIB)


def test_the_slowest_of_a_hundred_is_told() -> None:
    probes = [{"probe-ns": number * 1000} for number in range(1, 201)]
    assert Stutter().figures(probes, GIB)["stutter-slowest"] == [199]
    assert len(Stutter().figures(probes, GIB)["stutter"]) == 200


def test_huge_pages_of_all_faults_are_added() -> None:
    faults = [{"fault-ns": 9000, "huge-kB": had} for had in (2048, 0, 2048)]
    assert FragmentedFaults().figures(faults, GIB)["fragmented-faults-huge"] == [4096]


def test_each_process_touches_all_that_is_shared() -> None:
    figures = SharedMemory().of_processes([{"touch-ns": 16_000_000, "table-kB": 8192, "huge-kB": 0}], 16, GIB)
    assert figures == {
        "shared-memory-page-tables-16": [8192],
        "shared-memory-touch-16": [1],
        "shared-memory-huge": [0],
    }


def test_pages_move_there_and_back() -> None:
    figures = PageMigration().figures([{"move-ns": 500_000_000, "huge-kB": 2048}], GIB)
    assert figures == {"page-migration": [4], "page-migration-huge": [2048]}


def test_a_machine_of_one_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(page_migration, "_ROOT", CapturedTree({"sys/devices/system/node/has_memory": "0\n"}))
    parameters = {"bytes": GIB, "samples": 3}
    assert PageMigration().pool_bytes(parameters) == GIB
    with pytest.raises(Unavailable, match="1 node of this machine has memory, expected two"):
        PageMigration().measured(tmp_path, BASE, parameters, tmp_path)


@pytest.mark.parametrize(
    ("mounts", "control", "file"),
    [
        ("cgroup {point} cgroup rw,memory 0 0\n", "", "memory.limit_in_bytes"),
        ("cgroup {point} cgroup2 rw 0 0\n", "cpu memory\n", "memory.max"),
    ],
)
def test_a_group_is_limited_and_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mounts: str, control: str, file: str
) -> None:
    files = {MOUNTS: mounts.format(point=tmp_path), f"{tmp_path}/cgroup.subtree_control": control}
    monkeypatch.setattr(swapped_memory, "_ROOT", CapturedTree(files))
    removed: list[Path] = []
    monkeypatch.setattr(swapped_memory, "remove_cgroup", removed.append)
    with limited_group(64 * MIB) as group:
        assert (group / file).read_text() == str(64 * MIB)
    assert removed == [group]


@pytest.mark.parametrize("control", ["cpu\n", ""])
def test_a_machine_that_limits_no_memory(monkeypatch: pytest.MonkeyPatch, control: str) -> None:
    files = {MOUNTS: "cgroup /c cgroup2 rw 0 0\n", "/c/cgroup.subtree_control": control}
    monkeypatch.setattr(swapped_memory, "_ROOT", CapturedTree(files))
    with pytest.raises(Unavailable, match="no control groups"), limited_group(MIB):
        pytest.fail("there is none")


@pytest.mark.parametrize(
    "output",
    ["", TOUCHED, TOUCHED * 3, TOUCHED + "mmap: Cannot allocate memory\n", TOUCHED + TOUCHED.replace("2000000", "0")],
)
def test_broken_output(output: str) -> None:
    with pytest.raises(InputError, match="expected"):
        parse_lines(output, TouchAtOnce.words, 2)


def test_pages_that_they_run_on() -> None:
    there = (BASE, THP, STATIC, GIGANTIC)
    assert TouchAtOnce().backings(there) == SharedMemory().backings(there) == (BASE, THP, STATIC)
    assert SwapAtOnce().backings(there) == SwapFromDisk().backings(there) == (BASE, THP)
    assert FragmentedFaults().backings(there) == (BASE, THP)


@pytest.mark.parametrize("workload", [TouchAtOnce(), SwapAtOnce(), SharedMemory(), Stutter()])
def test_the_program_prints_what_is_read(tmp_path: Path, workload: MemoryProgram) -> None:
    program = build_program(workload.source, tmp_path, [MEMORY])
    words = [workload.operation, str(8 * MIB), "base", str(2 * MIB), "3", "2", str(tmp_path / "written")]
    output = subprocess.run([program, *words], check=True, capture_output=True, text=True, timeout=60).stdout
    assert parse_lines(output, workload.words, 3)
    assert re.match(workload.words[0], output)


@pytest.mark.parametrize("workload", [PageMigration(), FragmentedFaults()])
def test_the_other_programs_can_be_built(tmp_path: Path, workload: MemoryProgram) -> None:
    done = subprocess.run(
        [build_program(workload.source, tmp_path, [MEMORY])], check=False, capture_output=True, text=True, timeout=60
    )
    assert "usage" in done.stderr
