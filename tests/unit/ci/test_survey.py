"""make survey: what is measured, what is not measured again, and how it goes on after a stop. No machine runs."""

import io
import json
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from ci import survey
from ci.survey import Machines, main
from rich.console import Console

from hugepage_qa.cases.boot.boot_matrix import Settings
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.cases.throwaway_run import LiveWanted
from hugepage_qa.commands.check_request import AREAS
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.debian_kernels import DebianKernel
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.report.check_report import read_check, write_evidence, write_results

CHOICE = "trixie/x86_64 trixie/s390x"


class Double:
    """Kernels that are files, and parts that give one result each; ``before_part`` is called before a part runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ran: list[tuple[str, str]] = []
        self.missing: set[str] = set()
        self.verdicts: dict[tuple[str, str], Verdict] = {}
        self.before_part: Callable[[str, str], None] = lambda _kernel, _part: None

    def machines(self) -> Machines:
        return Machines(self.obtain, self.run)

    def obtain(self, kernel: DebianKernel) -> KernelImage:
        if kernel.name in self.missing:
            raise InputError(f"no package {kernel.package}")
        file = self.directory / kernel.name.replace("/", "-")
        if not file.exists():
            file.write_text(kernel.name)
        return KernelImage(file, kernel.architecture, "6.12.107+deb13-amd64", None)

    def run(self, kernel: DebianKernel, _image: KernelImage, part: str, directory: Path) -> None:
        self.ran.append((kernel.name, part))
        directory.mkdir()
        verdict = self.verdicts.get((kernel.name, part), Verdict.PASS)
        result = Result(f"/{part}/case", verdict, (f"why {part}",), 1.0, "last words")
        write_evidence(directory, result)
        self.before_part(kernel.name, part)
        write_results(directory, [result])


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    monkeypatch.setattr(survey, "BUILD", tmp_path / "build" / "survey")
    monkeypatch.setattr(survey, "RECORDS", tmp_path / "docs" / "kernels")
    monkeypatch.setattr(survey, "case_versions", lambda: dict.fromkeys(AREAS, "0123456789ab"))
    yield Double(tmp_path)


def measure(double: Double, choice: str = CHOICE) -> int:
    return main({"KERNELS": choice}, double.machines())


def test_every_part_of_every_kernel_is_run_once_and_kept(
    double: Double, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure(double) == 0
    assert double.ran == [(kernel, part) for kernel in CHOICE.split() for part in AREAS]
    assert sorted(path.name for path in (tmp_path / "docs" / "kernels").iterdir()) == [
        "trixie-s390x.json",
        "trixie-x86_64.json",
    ]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[1/2] trixie/x86_64: 6.12.107+deb13-amd64"
    assert lines[-1] == "2 of 2 kernels measured"
    assert measure(double) == 0
    assert len(double.ran) == 2 * len(AREAS)
    assert "[1/2] trixie/x86_64: 6.12.107+deb13-amd64 was measured on " in capsys.readouterr().out


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_what_was_cut_off_is_run_again_and_what_was_done_is_not(double: Double, end: type[BaseException]) -> None:
    def stop(_kernel: str, part: str) -> None:
        if part == "numa":
            raise end

    double.before_part = stop
    if end is KeyboardInterrupt:
        assert measure(double) == 130
    else:
        with pytest.raises(SystemExit):
            measure(double)
    done = len(double.ran)
    double.before_part = lambda _kernel, _part: None
    assert measure(double) == 0
    assert double.ran[done] == ("trixie/x86_64", "numa")
    assert len(double.ran) == 2 * len(AREAS) + 1


def test_another_version_of_the_cases_and_another_kernel_are_measured(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(double)
    monkeypatch.setattr(survey, "case_versions", lambda: dict.fromkeys(AREAS, "ba9876543210"))
    measure(double)
    assert len(double.ran) == 4 * len(AREAS)
    (double.directory / "trixie-s390x").write_text("the next one")
    measure(double)
    assert double.ran[4 * len(AREAS) :] == [("trixie/s390x", part) for part in AREAS]


def test_only_the_part_whose_cases_are_others_is_measured_again(
    double: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(double, "trixie/s390x")
    file = tmp_path / "docs" / "kernels" / "trixie-s390x.json"
    before = json.loads(file.read_text())["measured"]["cases"]
    versions = {**dict.fromkeys(AREAS, "0123456789ab"), "numa": "ba9876543210"}
    monkeypatch.setattr(survey, "case_versions", lambda: versions)
    measure(double, "trixie/s390x")
    assert double.ran[len(AREAS) :] == [("trixie/s390x", "numa")]
    assert json.loads(file.read_text())["measured"]["cases"] != before


def test_a_kernel_that_two_suites_have_is_run_once(double: Double) -> None:
    for name in ("forky-x86_64", "sid-x86_64"):
        (double.directory / name).write_text("the same")
    assert measure(double, "forky/x86_64 sid/x86_64") == 0
    assert {kernel for kernel, _ in double.ran} == {"forky/x86_64"}


def test_a_part_with_errors_alone_is_run_again(double: Double) -> None:
    double.verdicts[("trixie/x86_64", "thp")] = Verdict.ERROR
    assert measure(double) == 3
    double.verdicts.clear()
    done = len(double.ran)
    assert measure(double) == 0
    assert double.ran[done:] == [("trixie/x86_64", "thp")]


def test_a_kernel_that_cannot_be_had_is_a_line_and_the_rest_goes_on(
    double: Double, capsys: pytest.CaptureFixture[str]
) -> None:
    double.missing.add("trixie/x86_64")
    assert measure(double) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[1/2] trixie/x86_64: not there: no package linux-image-cloud-amd64"
    assert lines[-1] == "1 of 2 kernels measured; not there: trixie/x86_64"
    assert measure(double, "trixie/x86_64") == 2


def test_a_kernel_that_no_machine_can_run_is_not_there(double: Double, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(kernel: str, _part: str) -> None:
        if kernel.endswith("x86_64"):
            raise InputError("qemu-system-x86_64 is not installed")

    double.before_part = refuse
    assert measure(double) == 0
    assert "not there: boot cannot be run: qemu-system-x86_64 is not installed\n" in capsys.readouterr().out


def test_a_failure_is_the_exit_code_and_stands_in_the_record(double: Double, tmp_path: Path) -> None:
    double.verdicts[("trixie/s390x", "pool")] = Verdict.FAIL
    assert measure(double) == 1
    assert measure(double) == 1
    told = json.loads((tmp_path / "docs" / "kernels" / "trixie-s390x.json").read_text())
    assert told["differences"] == [
        {"case": "/pool/case", "verdict": "fail", "reason": "why pool", "evidence": ["last words"]}
    ]


@pytest.mark.parametrize("text", ["no JSON", "{}", '{"name": "trixie/s390x"}'])
def test_a_record_that_cannot_be_read_ends_it_before_anything_is_run(
    double: Double, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    file = tmp_path / "docs" / "kernels" / "trixie-s390x.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert measure(double) == 3
    told = capsys.readouterr()
    assert told.err.startswith(f"make survey: {file}: ")
    assert (len(told.err.splitlines()), told.out, double.ran) == (1, "", [])


@pytest.mark.parametrize("text", ["[", '[{"name": "/a", "verdict": "good", "reasons": [], "seconds": 1}]'])
def test_kept_results_that_cannot_be_read_are_one_line(
    double: Double, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    measure(double, "trixie/s390x")
    (tmp_path / "docs" / "kernels" / "trixie-s390x.json").unlink()
    (results,) = (tmp_path / "build" / "survey").glob("*/cgroup-*/results.json")
    results.write_text(text)
    capsys.readouterr()
    assert measure(double, "trixie/s390x") == 3
    told = capsys.readouterr().err
    assert told.startswith(f"make survey: {results}: ")
    assert (f"remove {results.parent}, " in told, len(told.splitlines())) == (True, 1)


def test_a_choice_that_is_none_is_one_line(double: Double, capsys: pytest.CaptureFixture[str]) -> None:
    assert measure(double, "trixy/x86_64") == 3
    assert capsys.readouterr().err == (
        "make survey: trixy/x86_64: expected a kernel, a pattern of kernels or a suite, such as trixie/x86_64\n"
    )


# --- what throwaway machines are asked for ---


class FakeCheck:
    """Keeps what it is asked for, and gives one result."""

    made: ClassVar[list["FakeCheck"]] = []

    def __init__(
        self,
        architecture: str,
        settings: Settings,
        groups: tuple[str, ...],
        boots: int,
        live: LiveWanted,
        *_told: object,
    ) -> None:
        self.architecture, self.settings = architecture, settings
        self.groups, self.boots, self.live = groups, boots, live
        self.kernel = IMAGE
        self.expected_results = 1
        FakeCheck.made.append(self)

    def run(self) -> Generator[Result, None, None]:
        """Yield the result."""
        yield Result("/a", Verdict.PASS)

    def stop(self) -> None:
        """Stop."""


IMAGE = KernelImage(Path("vmlinuz"), "aarch64", "6.12.107", None)


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(survey, "KernelCheck", FakeCheck)
    FakeCheck.made.clear()
    return survey._throwaway_machines(Console(file=io.StringIO()), lambda _line: None)


@pytest.mark.parametrize("part", AREAS)
def test_each_part_is_asked_for_once_and_nothing_else_with_it(real: Machines, tmp_path: Path, part: str) -> None:
    real.run(DebianKernel("trixie", "aarch64", "16k"), IMAGE, part, tmp_path / part)
    (check,) = FakeCheck.made
    assert (check.settings.package, check.settings.suite) == ("linux-image-arm64-16k", "trixie")
    assert bool(check.groups) == (part == "boot")
    assert (check.boots, check.live.operations) == ((20, 400) if part == "random" else (0, 0))
    assert bool(check.live.areas) == (part not in ("boot", "random"))
    assert read_check(tmp_path / part) == [Result("/a", Verdict.PASS)]


def test_a_kernel_that_changed_meanwhile_is_not_mixed_with_the_one_before(real: Machines, tmp_path: Path) -> None:
    older = replace(IMAGE, path=Path("older"))
    with pytest.raises(InputError, match=r"^trixie has 6\.12\.107 now: make survey measures it$"):
        real.run(DebianKernel("trixie", "aarch64"), older, "boot", tmp_path / "boot")


def test_two_surveys_at_once_are_refused(double: Double, capsys: pytest.CaptureFixture[str]) -> None:
    double.before_part = lambda _kernel, _part: codes.append(measure(Double(double.directory)))
    codes: list[int] = []
    assert measure(double, "sid/s390x") == 0
    assert set(codes) == {3}
    assert "another survey is under way" in capsys.readouterr().err
