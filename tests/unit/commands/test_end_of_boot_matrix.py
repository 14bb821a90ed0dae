"""The command "boot-matrix" without a machine: where it stops."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import pytest
from click.testing import CliRunner

from hugepage_qa.cases.boot.boot_case import BootCase
from hugepage_qa.cases.boot.boot_judge import BootResult
from hugepage_qa.cases.result import Verdict
from hugepage_qa.commands import boot_commands
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.sizes import GIB

CASES = [BootCase(f"/{number}", "x86_64", "max", "hugepages=1", (GIB,)) for number in range(5)]


class FakeMatrix:
    """Yields a pass, a failure, and passes; tells which cases were asked for and that it was stopped."""

    judged: list[str]
    stopped: list[str]

    def __init__(self, architecture: str, _settings: object) -> None:
        self.architecture = architecture
        self.kernel = KernelImage(Path("vmlinuz"), "x86_64", "6.1.0", None)

    def targets(self, _cpu: str | None) -> list[object]:
        return [SimpleNamespace()]

    def named_cases(self, _groups: object, _cpu: str | None) -> list[BootCase]:
        return CASES

    def run(self, cases: list[BootCase]) -> Iterator[BootResult]:
        for case in cases:
            self.judged.append(case.name)
            verdict = Verdict.FAIL if case.name == "/1" else Verdict.PASS
            yield BootResult(case.name, verdict, case=case, command_line=case.words)

    def run_random(self, *_: object) -> Iterator[BootResult]:
        yield from ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.append(self.architecture)


@pytest.fixture
def matrix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeMatrix]:
    FakeMatrix.judged, FakeMatrix.stopped = [], []
    monkeypatch.setattr(boot_commands, "Matrix", FakeMatrix)
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path / "cache"))
    return FakeMatrix


@pytest.mark.parametrize(("options", "judged"), [([], 10), (["-x"], 2)], ids=["all", "exitfirst"])
def test_the_first_failure_ends_it_if_asked(matrix: type[FakeMatrix], options: list[str], judged: int) -> None:
    arguments = [*options, "--arch", "x86_64", "--arch", "s390x"]
    done = CliRunner().invoke(boot_commands.boot_matrix, arguments)
    assert done.exit_code == 1, done.output
    assert len(matrix.judged) == judged
    assert matrix.stopped == ["x86_64", "s390x"][: 1 if options else 2]
    told = "not run: the first failure ended the run: 3 cases, all of s390x"
    assert (told in done.output) == bool(options)
