"""The command "find-change" without a machine: what it refuses, what it tells on the way, and how it ends."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.commands.run_command import Command

from hugepage_qa.cases.outcome_change import Candidate, Trial
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.commands import find_change

NAME = "fork-loses-pages"
PASS, SKIP, ERROR = (Verdict.PASS, ()), (Verdict.SKIP, ("no pages",)), (Verdict.ERROR, ("lost",))
FAIL = (Verdict.FAIL, ("it lost\n2 pages", "booted again"))


class Cli(Command):
    """Runs the command on kernels that have the ``outcomes`` that they are told; keeps its output, and their words."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(capsys, monkeypatch, "find-change")
        self.appended: list[str] = []

    def with_outcomes(self, outcomes: list[tuple[Verdict, tuple[str, ...]]], *arguments: str) -> int:
        """Run it on kernels 6.0, 6.1 and so on, of which each has one of ``outcomes``."""
        by_release = {f"6.{number}": outcome for number, outcome in enumerate(outcomes)}

        def outcome(candidate: Candidate, _trial: Trial) -> Result:
            self.appended.append(candidate.settings.append)
            return Result("/case", *by_release[candidate.label])

        self._monkeypatch.setattr(Candidate, "outcome", outcome)
        self._monkeypatch.setattr(
            find_change,
            "kernels_of_suite",
            lambda _suite, architecture, settings: [Candidate(name, architecture, settings) for name in by_release],
        )
        return self(NAME, "--suite", "sid", *arguments)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return Cli(capsys, monkeypatch)


def test_a_line_for_each_kernel_and_one_for_the_change(run: Cli) -> None:
    assert run.with_outcomes([PASS, PASS, FAIL, FAIL, FAIL]) == 0
    assert run.output.splitlines() == [
        "5 kernels from 6.0 to 6.4",
        "6.0: pass, 0 s",
        "6.4: fail: it lost 2 pages; booted again, 0 s",
        "6.2: fail: it lost 2 pages; booted again, 0 s",
        "6.1: pass, 0 s",
        "changed between 6.1 (pass) and 6.2 (fail: it lost 2 pages)",
    ]
    assert run.errors.splitlines() == [f"trying 6.{number}" for number in (0, 4, 2, 1)]


@pytest.mark.parametrize(
    ("outcomes", "options", "code", "last"),
    [
        (
            [PASS, SKIP, ERROR, FAIL],
            [],
            0,
            "changed between 6.0 (pass) and 6.3 (fail: it lost 2 pages); not decided between them: 6.1, 6.2",
        ),
        (
            [PASS, FAIL, PASS],
            [],
            0,
            "no change between 6.0 (pass) and 6.2 (pass); not tried between them: 1 (see --all)",
        ),
        ([PASS, PASS, PASS], ["--all"], 0, "no change between 6.0 (pass) and 6.2 (pass)"),
        ([PASS, FAIL, PASS], ["--all"], 0, "changed between 6.1 (fail: it lost 2 pages) and 6.2 (pass)"),
        ([SKIP, PASS, ERROR], [], 2, "nothing can be said: 1 of 3 kernels could be decided"),
        ([SKIP, SKIP], [], 2, "nothing can be said: 0 of 2 kernels could be decided"),
    ],
)
def test_the_last_line_and_the_exit_code_tell_what_was_found(
    run: Cli, outcomes: list[tuple[Verdict, tuple[str, ...]]], options: list[str], code: int, last: str
) -> None:
    assert run.with_outcomes(outcomes, *options) == code
    assert run.output.splitlines()[-1] == last


def test_further_arguments_are_those_of_every_kernel(run: Cli) -> None:
    assert run.with_outcomes([PASS, PASS], "--append", "a=1 b=2") == 0
    assert run.appended == ["a=1 b=2", "a=1 b=2"]


def test_kernels_of_a_directory(run: Cli, tmp_path: Path, bzimage: Callable[[str], bytes]) -> None:
    (tmp_path / "one").write_bytes(bzimage("6.12.5"))
    assert run(NAME, "--kernels", ".") == 3
    assert "--kernels .: expected two kernels or more, found 1" in run.errors
    (tmp_path / "two").write_bytes(bzimage("6.1.9"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Candidate, "outcome", lambda _candidate, _trial: Result("/case", Verdict.PASS))
        assert run(NAME, "--kernels", ".") == 0
    assert run.output.splitlines()[-1] == "no change between 6.1.9 (two) (pass) and 6.12.5 (one) (pass)"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([NAME], "--kernels and --suite: expected one of them"),
        ([NAME, "--kernels", ".", "--suite", "sid"], "--kernels and --suite: expected one of them"),
        ([NAME, "--kernels", "none"], "--kernels none: expected a directory"),
        ([NAME, "--kernels", ".", "--arch", "vax"], "vax"),
        ([NAME, "--kernels", "."], "expected two kernels or more, found 0"),
        ([], "NAME"),
    ],
    ids=" ".join,
)
def test_wrong_input_is_one_line_and_exit_code_3(run: Cli, arguments: list[str], named: str) -> None:
    assert run(*arguments) == 3
    assert named in run.errors
    assert (len(run.errors.splitlines()), run.output) == (1, "")


def test_a_wrong_name_is_told_before_a_kernel_is_tried(run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        find_change,
        "kernels_of_suite",
        lambda _suite, architecture, settings: [Candidate(name, architecture, settings) for name in ("6.1", "6.2")],
    )
    assert run("fork-loses-page", "--suite", "sid") == 3
    assert run.errors.strip().endswith("such as fork-loses-pages")
    assert run.output == ""
