"""Which cases have room on this host, and what they are called."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hugepage_qa.cases.boot import boot_matrix
from hugepage_qa.cases.boot.boot_case import BootCase
from hugepage_qa.cases.boot.boot_judge import BootResult
from hugepage_qa.cases.boot.boot_matrix import Matrix, Settings, skipped_for_memory
from hugepage_qa.cases.boot.case_groups import groups
from hugepage_qa.cases.result import Verdict
from hugepage_qa.qemu.boards import BOARDS
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.sizes import GIB

SMALL = BootCase(name="/small", architecture="x86_64", cpu="max", words="hugepages=1", memory=(GIB,))
LARGE = replace(SMALL, name="/large", memory=(4 * GIB, 12 * GIB))


def test_a_machine_that_the_host_has_no_memory_for_is_skipped() -> None:
    [skipped] = skipped_for_memory([SMALL, LARGE], 8 * GIB)
    assert (skipped.case, skipped.verdict, skipped.command_line) == (LARGE, Verdict.SKIP, "hugepages=1")
    assert skipped.reason == "its machine needs 16640 MiB of host memory, and less is free"


def test_nothing_is_skipped_where_there_is_memory() -> None:
    assert list(skipped_for_memory([SMALL, LARGE], 32 * GIB)) == []


def pass_all(_matrix: Matrix, cases: Sequence[BootCase]) -> Iterator[BootResult]:
    return (BootResult(case.name, Verdict.PASS, case=case, command_line=case.words) for case in cases)


@pytest.mark.parametrize("architecture", BOARDS)
def test_no_two_cases_have_one_name(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results of a test are told apart by the names of its cases, on whichever CPU they were tried."""
    monkeypatch.setattr(
        boot_matrix, "find_kernel", lambda architecture, _: KernelImage(tmp_path, architecture, "6.12.0", None)
    )
    monkeypatch.setattr(Matrix, "run", pass_all)
    matrix = Matrix(architecture, Settings(cache=tmp_path))
    drawn = [judgement.name for judgement in matrix.run_random(5, 1)]
    assert len(drawn) == 5 * len(matrix.targets())
    names = [*drawn, *(case.name for case in matrix.named_cases(groups()))]
    assert len(set(names)) == len(names)
