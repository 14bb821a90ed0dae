"""The same cases in several runs: differences with the reasons of each, what was left out and why, and wrong input."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from click.testing import Result as Done
from tests.bench.made_up_runs import KERNELS, MadeUpRun

from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.commands.report import report
from hugepage_qa.errors import InputError
from hugepage_qa.report.check_report import write_kernels, write_results
from hugepage_qa.report.compared_runs import Comparison, compare, headline
from hugepage_qa.report.merged_runs import merge, read_runs
from hugepage_qa.report.run_directory import read_run_directory

PASS, SKIP, KNOWN, FAIL = Verdict.PASS, Verdict.SKIP, Verdict.KNOWN, Verdict.FAIL
#: name -> how it ended, and why
Told = dict[str, tuple[Verdict, str]]


def check(directory: Path, told: Told, **kernels: str) -> Path:
    """Write what check-kernel --output keeps."""
    directory.mkdir()
    write_kernels(directory, kernels or {"x86_64": "6.1.0"})
    write_results(directory, [Result(name, verdict, (why,) * bool(why)) for name, (verdict, why) in told.items()])
    return directory


def compared(tmp_path: Path, *runs: Told) -> Comparison:
    return compare(read_runs([check(tmp_path / f"run{number}", told) for number, told in enumerate(runs)]))


def test_a_difference_has_the_reason_of_each_run(tmp_path: Path) -> None:
    found = compared(
        tmp_path, {"/a/b/2M": (PASS, "9 blocks")}, {"/a/b/2M": (FAIL, "1 page")}, {"/a/b/2M": (SKIP, "no")}
    )
    assert found.differences == {"/a/b/2M": ("pass: 9 blocks", "fail: 1 page", "skip: no")}
    assert (found.exit_code, found.skipped, found.alike) == (1, {}, {})


def test_numbers_in_a_reason_are_no_difference_and_another_bug_is(tmp_path: Path) -> None:
    one: Told = {"/a/b": (PASS, "9 blocks"), "/a/c": (KNOWN, "one-bug: x"), "/a/d": (KNOWN, "one-bug: x")}
    other: Told = {"/a/b": (PASS, "8 blocks"), "/a/c": (KNOWN, "one-bug: x"), "/a/d": (KNOWN, "other-bug: y")}
    found = compared(tmp_path, one, other)
    assert found.differences == {"/a/d": ("known: one-bug: x", "known: other-bug: y")}
    assert found.alike == {PASS: 1, KNOWN: 1}
    assert headline(found) == (
        "1 ended differently, 2 alike (1 pass, 1 known), 0 skipped by some, 0 run by none, 0 not in all runs"
    )


def test_what_was_left_out_is_told_by_cause(tmp_path: Path) -> None:
    one: Told = {
        **{f"/a/{case}/{size}": (PASS, "") for case in "bc" for size in ("2M", "1G")},
        "/a/b/2M@old": (PASS, ""),
        "/g/start/2M": (KNOWN, "bug"),
        "/a/d/2M": (PASS, ""),
        "/a/only/2M": (PASS, ""),
        "/a/none": (SKIP, "no node"),
    }
    other: Told = {
        "/a/b/2M": (PASS, ""),
        "/a/c/2M": (SKIP, "no memory"),
        "/a/d": (SKIP, "for gigantic pages alone"),
        "/a/none": (SKIP, "no disk"),
    }
    found = compared(tmp_path, one, other)
    assert found.skipped == {
        ("ran: pass", "skip: no memory"): ("/a/c/2M",),
        ("ran: pass", "skip: for gigantic pages alone"): ("/a/d/2M",),
    }
    assert found.absent == {
        ("ran: pass", "no case on pages of 1G"): ("/a/b/1G", "/a/c/1G"),
        ("ran: pass", "no case with CPU old"): ("/a/b/2M@old",),
        ("ran: pass", "no such case"): ("/a/only/2M",),
        ("ran: known", "no case of the area"): ("/g/start/2M",),
    }
    assert (found.exit_code, found.alike, found.untried) == (0, {PASS: 1}, 1)


def test_runs_with_no_case_in_common_are_undecided(tmp_path: Path) -> None:
    assert compared(tmp_path, {"/a/b": (PASS, "")}, {"/a/c": (PASS, ""), "/a/b": (SKIP, "no")}).exit_code == 2


def renamed(run: Path, old: str, new: str) -> None:
    """Give a result of the made-up ``run`` another name."""
    file = run / "plans/functional/execute/results.yaml"
    text = file.read_text(encoding="utf-8")
    assert f"{old}\n" in text
    file.write_text(text.replace(f"{old}\n", f"{new}\n"), encoding="utf-8")


def test_a_case_of_tmt_and_of_a_check_are_the_same(tmp_path: Path) -> None:
    bad = {"/tests/pool/resize/case-1/2M": ("fail", "1 page")}
    run = MadeUpRun(1, cases=8, bad=bad).write(tmp_path / "tmt")
    told: Told = {"/case-1/2M": (PASS, ""), "/case-2/2M": (PASS, "")}
    for number, test in enumerate(("reservation/mappings", "memory/fork", "cgroup")):
        size = "2M" if test == "memory/fork" else "1G"
        renamed(run, f"/tests/{test}/case-1/{size}", f"/tests/{test}/other-{number}/{size}")
    both = read_runs([run, check(tmp_path / "check", told, x86_64=KERNELS["x86_64"])])
    assert compare(both).differences == {"/case-1/2M": ("fail: 1 page", "pass")}
    (disagreement,) = merge(both).disagreements
    assert (disagreement.name, set(disagreement.runs)) == ("/case-1/2M", {PASS, FAIL})


def test_two_tests_that_run_the_same_cases_are_told_apart(tmp_path: Path) -> None:
    run = MadeUpRun(1, cases=8).write(tmp_path / "tmt")
    names = {one.case for one in read_run_directory(run).cases}
    assert {"/tests/pool/resize/case-0/2M", "/tests/memory/fork/case-0/2M"} <= names


def test_a_run_says_on_what_machines_it_was(tmp_path: Path) -> None:
    run = MadeUpRun(1, cases=8).write(tmp_path / "tmt")
    guest = f"Red Hat Enterprise Linux 10, local, x86_64, {KERNELS['x86_64']}"
    assert read_run_directory(run).machine == guest
    renamed(run, "/tests/cgroup/case-0/1G", "/tests/kernel/aarch64/pool/case-0/1G")
    assert read_run_directory(run).machine == f"{guest}; throwaway machines, aarch64, unknown"
    told: Told = {"/aarch64/a/b/64K": (PASS, ""), "/x86_64/a/b/2M@qemu64": (PASS, "")}
    both = read_run_directory(check(tmp_path / "check", told, x86_64="6.1", aarch64="6.2"))
    assert both.machine == "throwaway machines, aarch64, 6.2; throwaway machines, x86_64, 6.1"
    assert [(one.page_size, one.architecture) for one in both.cases] == [("64K", "aarch64"), ("2M", "x86_64")]


def command(*arguments: str | Path) -> Done:
    return CliRunner().invoke(report, ["compare", *map(str, arguments)])


def test_the_command_prints_and_writes_the_comparison(tmp_path: Path) -> None:
    one = check(tmp_path / "one", {"/a/b": (PASS, ""), "/a/c": (FAIL, "<b> | [x](y)")})
    other = check(tmp_path / "other", {"/a/b": (PASS, ""), "/a/c": (PASS, "")}, x86_64="6.12")
    done = command(one, other, "--output", tmp_path / "report", "--about", "two kernels")
    assert done.exit_code == 1, done.output
    assert done.output.splitlines()[-1] == (
        "1 ended differently, 1 alike (1 pass), 0 skipped by some, 0 run by none, 0 not in all runs"
    )
    assert "  case   /a/c\n  run 1  fail: <b> | [x](y)\n  run 2  pass\n" in done.output
    assert "  machines   throwaway machines, x86_64, 6.12\n" in done.output
    markdown, page = ((tmp_path / "report" / f"report.{kind}").read_text(encoding="utf-8") for kind in ("md", "html"))
    assert "| /a/c | fail: &lt;b> \\| \\[x\\](y) | pass |" in markdown
    assert "<td>fail: &lt;b&gt; | [x](y)</td>" in page
    assert "two kernels" in markdown


def spoil(name: str, text: str) -> Callable[[Path], object]:
    return lambda directory: (directory / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (spoil("kernels.json", "["), "kernels.json: cannot be read"),
        (spoil("kernels.json", "{}"), "kernels.json: .* check that kernel again"),
        (spoil("kernels.json", '{"x86_64": 6}'), "kernels.json: .*check that kernel again"),
        (spoil("results.json", '[{"name": "/a"}]'), "results.json: .* check that kernel again"),
        (lambda directory: (directory / "results.json").unlink(), "results.json: cannot be read"),
        (lambda directory: (directory / "kernels.json").unlink(), "no run in it .*; expected what tmt run"),
    ],
)
def test_what_is_no_check_is_refused(wrong: Callable[[Path], object], why: str, tmp_path: Path) -> None:
    paths = [check(tmp_path / name, {"/a/b": (PASS, name)}) for name in ("one", "other")]
    wrong(paths[1])
    done = command(*paths, "--output", tmp_path / "report")
    with pytest.raises(InputError, match=why):
        raise done.exception or AssertionError(done.output)
    assert str(paths[1]) in str(done.exception)
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(("file", "text"), [("provision/step.yaml", "data: []"), ("discover/tests.yaml", "")])
def test_a_run_that_does_not_tell_its_machine_or_its_tests_is_refused(file: str, text: str, tmp_path: Path) -> None:
    run = MadeUpRun(1, cases=4).write(tmp_path / "run")
    (run / "plans/functional" / file).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="expected a finished run of tmt"):
        read_run_directory(run)


def test_one_run_cannot_be_compared(tmp_path: Path) -> None:
    done = command(check(tmp_path / "one", {"/a/b": (PASS, "")}))
    assert isinstance(done.exception, InputError)
    assert "expected two runs or more, found one" in str(done.exception)
