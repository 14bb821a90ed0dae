"""Memory that many want at once: what the program prints, as read and as broken, and the program itself."""

import re
import subprocess
from pathlib import Path

import pytest

from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.memory_at_once import (
    SOURCE,
    FragmentedFaults,
    Stutter,
    SwapAtOnce,
    TouchAtOnce,
    parse_lines,
)
from hugepage_qa.bench.workload import Unavailable
from hugepage_qa.errors import InputError
from hugepage_qa.process.c_compiler import build_program
from hugepage_qa.sizes import GIB, MIB

BASE, THP = Backing(Kind.BASE, 4096), Backing(Kind.TRANSPARENT, 2 * MIB)
STATIC, GIGANTIC = Backing(Kind.STATIC, 2 * MIB), Backing(Kind.STATIC, GIB)
TOUCHED = "touch-ns 500000000 unmap-ns 2000000 huge-kB 1048576\n"


def test_times_are_of_a_gib() -> None:
    repeats = parse_lines(TOUCHED * 2, TouchAtOnce.words, 2)
    assert TouchAtOnce().figures(repeats, 2 * GIB) == {
        "touch-at-once": [250, 250],
        "touch-at-once-unmap": [1, 1],
        "touch-at-once-huge": [1048576, 1048576],
    }


def test_what_is_hardly_swapped_says_nothing_of_swap() -> None:
    line = {"out-ns": 1_000_000, "in-ns": 2_000_000, "swapped-kB": 1024, "huge-kB": 0}
    assert SwapAtOnce().figures([line], MIB)["swap-at-once-in"] == [2048]
    with pytest.raises(Unavailable, match="swapped 1M of 4M"):
        SwapAtOnce().figures([line, {**line, "swapped-kB": 4096}], 4 * MIB)


def test_the_slowest_of_a_hundred_is_told() -> None:
    probes = [{"probe-ns": number * 1000} for number in range(1, 201)]
    assert Stutter().figures(probes, GIB)["stutter-slowest"] == [199]
    assert len(Stutter().figures(probes, GIB)["stutter"]) == 200


def test_huge_pages_of_all_faults_are_added() -> None:
    faults = [{"fault-ns": 9000, "huge-kB": had} for had in (2048, 0, 2048)]
    assert FragmentedFaults().figures(faults, GIB)["fragmented-faults-huge"] == [4096]


@pytest.mark.parametrize(
    "output",
    ["", TOUCHED, TOUCHED * 3, TOUCHED + "mmap: Cannot allocate memory\n", TOUCHED + TOUCHED.replace("2000000", "0")],
)
def test_broken_output(output: str) -> None:
    with pytest.raises(InputError, match="memory_at_once"):
        parse_lines(output, TouchAtOnce.words, 2)


def test_pages_that_they_run_on() -> None:
    there = (BASE, THP, STATIC, GIGANTIC)
    assert TouchAtOnce().backings(there) == (BASE, THP, STATIC)
    assert SwapAtOnce().backings(there) == FragmentedFaults().backings(there) == (BASE, THP)


@pytest.mark.parametrize("workload", [TouchAtOnce(), Stutter()])
def test_the_program_prints_what_is_read(tmp_path: Path, workload: TouchAtOnce | Stutter) -> None:
    program = build_program(SOURCE, tmp_path)
    words = [workload.operation, str(8 * MIB), "base", str(2 * MIB), "3", "2", str(tmp_path / "written")]
    output = subprocess.run([program, *words], check=True, capture_output=True, text=True, timeout=60).stdout
    assert set(workload.figures(parse_lines(output, workload.words, 3), 8 * MIB)) == {
        metric.name for metric in workload.metrics
    }
    assert re.match(workload.words[0], output)
