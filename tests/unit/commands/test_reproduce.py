"""The command "reproduce" without a machine: what it lists and refuses, what it hands on, and how it ends."""

from pathlib import Path

import pytest
from tests.unit.commands.run_command import Command

from hugepage_qa.cases.boot.boot_matrix import Settings
from hugepage_qa.cases.upstream.reproduction import DIRECTORY, Answer, BugReport, Reproduction, bug_reports
from hugepage_qa.commands import reproduce
from hugepage_qa.qemu.kernel_image import KernelImage

NAME = "fork-loses-pages"


class Cli(Command):
    """Runs the command; keeps its output, and what was handed on."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(capsys, monkeypatch, "reproduce")
        self.answer = Reproduction(Answer.RIGHT)
        self.asked: list[tuple[str, str, str | None, str]] = []
        monkeypatch.setattr(reproduce, "find_kernel", self._find)
        monkeypatch.setattr(reproduce, "reproduce", self._reproduce)

    def _find(self, architecture: str, settings: Settings) -> KernelImage:
        self._suite = settings.suite
        return KernelImage(Path("vmlinuz"), architecture, "7.3.4-amd64", None)

    def _reproduce(self, report: BugReport, kernel: KernelImage, _cache: Path, append: str) -> Reproduction:
        self.asked.append((report.name, kernel.architecture, self._suite, append))
        return self.answer


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return Cli(capsys, monkeypatch)


def test_without_a_name_all_are_listed(run: Cli) -> None:
    assert run() == 0
    *lines, last = run.output.splitlines()
    assert [line.split()[0] for line in lines] == list(bug_reports())
    assert all(report.subject in line for report, line in zip(bug_reports().values(), lines, strict=True))
    assert last == f"reports and reproducers: {DIRECTORY}"
    assert run.asked == []


@pytest.mark.parametrize(
    ("answer", "code", "last"),
    [
        (Reproduction(Answer.RIGHT, ("found: 1",)), 0, "is right"),
        (Reproduction(Answer.BUG, ("found: 1",)), 1, "has the bug"),
        (Reproduction(Answer.UNDECIDED, ("found: 1",), "no pages"), 2, "cannot be decided: no pages"),
    ],
)
def test_the_last_line_and_the_exit_code_say_whether_the_kernel_has_the_bug(
    run: Cli, answer: Reproduction, code: int, last: str
) -> None:
    run.answer = answer
    assert run(NAME) == code
    assert run.output.splitlines() == ["  found: 1", f"{NAME}: 7.3.4-amd64 (x86_64) {last}"]


def test_the_machine_asked_for_is_handed_on(run: Cli) -> None:
    run(NAME)
    run(NAME, "--suite", "sid", "--arch", "ppc64le", "--append", "quiet hugepages=1")
    assert run.asked == [(NAME, "x86_64", None, ""), (NAME, "ppc64le", "sid", "quiet hugepages=1")]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["no-such-bug"], "no-such-bug"),
        ([NAME, "--arch", "vax"], "vax"),
        ([NAME, "--kernel", "none"], "none: no such file"),
        ([NAME, "--kernel", "none", "--suite", "sid"], "--kernel and --package or --suite"),
        ([NAME, NAME], NAME),
    ],
    ids=" ".join,
)
def test_wrong_input_is_one_line_and_exit_code_3(run: Cli, arguments: list[str], named: str) -> None:
    assert run(*arguments) == 3
    assert named in run.errors
    assert (len(run.errors.splitlines()), run.output, run.asked) == (1, "", [])
