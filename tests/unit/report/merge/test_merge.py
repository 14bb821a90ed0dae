"""Many runs become one report, and what is no finished run is refused."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.bench.made_up_runs import KERNELS, MadeUpRun

from hugepage_gate.sample_files import read_samples
from hugepage_qa.cases.result import Verdict
from hugepage_qa.cli import COMMANDS
from hugepage_qa.commands.report import report
from hugepage_qa.errors import InputError
from hugepage_qa.report.merged_runs import Subject, as_json, headline, merge, read_runs, render_html, render_markdown
from hugepage_qa.report.run_directory import find_runs, read_run_directory
from hugepage_qa.schema import find_violation

NAME = "/tests/pool/resize/case-0/2M"
KERNEL = KERNELS["x86_64"]


def write(directory: Path, *runs: MadeUpRun) -> list[Path]:
    return [run.write(directory / f"run{run.number}") for run in runs]


def test_counts_by_kernel_architecture_page_size_and_area(tmp_path: Path) -> None:
    merged = merge(read_runs(write(tmp_path, MadeUpRun(1, cases=8), MadeUpRun(2, cases=8), MadeUpRun(3, "s390x", 4))))
    assert merged.counts[Subject(KERNEL, "x86_64", "2M", "pool")] == {Verdict.PASS: 4}
    assert merged.counts[Subject(KERNELS["s390x"], "s390x", "1M", "cgroup")] == {Verdict.PASS: 1}
    assert (sum(merged.totals.values()), merged.exit_code) == (20, 0)
    assert not merged.disagreements


def test_a_machine_that_does_not_agree_is_named(tmp_path: Path) -> None:
    bad = MadeUpRun(2, cases=4, bad={NAME: ("fail", "nr_hugepages: expected 2, found 1: pool-size")})
    merged = merge(read_runs(write(tmp_path, MadeUpRun(1, cases=4), bad)))
    (one,) = merged.disagreements
    assert one.name == NAME
    assert one.runs == {Verdict.FAIL: (str(tmp_path / "run2"),), Verdict.PASS: (str(tmp_path / "run1"),)}
    (failure,) = merged.failures
    assert (failure.reason, failure.kernel) == ("nr_hugepages: expected 2, found 1: pool-size", KERNEL)
    assert merged.exit_code == 1


def test_a_machine_that_skips_a_case_disagrees_with_nobody(tmp_path: Path) -> None:
    skips = MadeUpRun(2, cases=4, bad={NAME: ("skip", "no memory")})
    merged = merge(read_runs(write(tmp_path, MadeUpRun(1, cases=4), skips)))
    assert not merged.disagreements
    assert merged.skips == {"no memory": 1}
    assert merged.untested == {}


def test_several_processes_see_the_same(tmp_path: Path) -> None:
    paths = write(tmp_path, *(MadeUpRun(number, cases=4) for number in range(20)))
    assert read_runs(paths, 2) == read_runs(paths, 1)


def test_boot_cases_are_about_the_kernel_and_architecture_that_booted(tmp_path: Path) -> None:
    (run,) = write(tmp_path, MadeUpRun(1, cases=1))
    execute = run / "plans" / "functional" / "execute"
    results = (execute / "results.yaml").read_text(encoding="utf-8")
    results = results.replace(NAME, "/tests/boot/named/aarch64/pair").replace("log: []", "log:\n  - serial.log")
    (execute / "results.yaml").write_text(results, encoding="utf-8")
    (execute / "serial.log").write_bytes(b"\xff\n[    0.000000] Linux version 7.0.0-rc1 (x)\n")
    (case,) = read_run_directory(run).cases
    assert (case.kernel, case.architecture, case.area, case.page_size) == ("7.0.0-rc1", "aarch64", "boot", "any")


def test_documents(tmp_path: Path) -> None:
    reason = "<b> | [x](y)"
    bad = MadeUpRun(2, cases=4, bad={NAME: ("fail", reason)})
    merged = merge(read_runs(write(tmp_path, MadeUpRun(1, cases=4), bad)))
    document = json.loads(json.dumps(as_json(merged, [])))
    assert find_violation(document, "hugepage_qa.report", "merged-report") is None
    assert document["failures"][0]["reason"] == reason
    assert reason not in render_html(merged, []) + render_markdown(merged, [])
    assert "&lt;b&gt; | [x](y)" in render_html(merged, [])
    assert "&lt;b> \\| \\[x\\](y)" in render_markdown(merged, [])


def spoil_results(run: Path) -> None:
    file = run / "plans/functional/execute/results.yaml"
    file.write_text(file.read_text(encoding="utf-8")[:-200] + "\n  result: [", encoding="utf-8")


def remove_results(run: Path) -> None:
    (run / "plans/functional/execute/results.yaml").unlink()


def empty_results(run: Path) -> None:
    (run / "plans/functional/execute/results.yaml").write_text("[]", encoding="utf-8")


def leave_a_test_pending(run: Path) -> None:
    file = run / "plans/functional/execute/results.yaml"
    file.write_text(
        file.read_text(encoding="utf-8").replace("  result: pass", "  result: pending", 1), encoding="utf-8"
    )


def remove_guests(run: Path) -> None:
    (run / "plans/functional/provision/guests.yaml").unlink()


def forget_the_kernel(run: Path) -> None:
    (run / "plans/functional/provision/guests.yaml").write_text("default-0: {facts: {arch: x86_64}}", encoding="utf-8")


def name_a_later_format(run: Path) -> None:
    (run / "state-format").write_text("yaml-2", encoding="utf-8")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (spoil_results, "expected a finished run"),
        (remove_results, "results.yaml is missing"),
        (empty_results, "has no result"),
        (leave_a_test_pending, "tmt did not execute /tests/"),
        (remove_guests, "guests.yaml is missing"),
        (forget_the_kernel, "kernel-release"),
        (name_a_later_format, "install a later one"),
    ],
)
def test_what_is_no_finished_run_is_refused(spoil: "object", why: str, tmp_path: Path) -> None:
    paths = write(tmp_path, MadeUpRun(1, cases=4), MadeUpRun(2, cases=4))
    assert callable(spoil)
    spoil(paths[1])
    with pytest.raises(InputError, match=why) as caught:
        read_runs(paths)
    assert str(paths[1]) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_runs_that_are_there_twice_are_refused(tmp_path: Path) -> None:
    (path,) = write(tmp_path, MadeUpRun(1, cases=4))
    copy = MadeUpRun(1, cases=4).write(tmp_path / "copy")
    for pair in ([path, path], [path, tmp_path / "run1" / "."], [path, copy]):
        with pytest.raises(InputError, match="expected every run once"):
            read_runs(pair)


def test_runs_are_found_below_a_directory(tmp_path: Path) -> None:
    path = MadeUpRun(1, cases=4).write(tmp_path / "work" / "run")
    assert find_runs(tmp_path) == [path]
    for wrong in (tmp_path / "none", path / "plans"):
        with pytest.raises(InputError, match="expected what tmt run --id or check-kernel --output left"):
            find_runs(wrong)


def test_samples_are_joined_by_machine(tmp_path: Path) -> None:
    # numbers 1 and 5 ran on one machine, 2 on another
    paths = write(tmp_path, *(MadeUpRun(number, cases=4, samples=True) for number in (1, 5, 2)))
    done = CliRunner().invoke(report, ["merge", *map(str, paths), "--output", str(tmp_path / "report")])
    assert done.exit_code == 0, done.output
    document = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert find_violation(document, "hugepage_qa.report", "merged-report") is None
    assert sorted((one["blocks"], one["hosts"]) for one in document["samples"]) == [(1, ["lab2"]), (2, ["lab1"])]
    joined = read_samples([tmp_path / "report" / one["file"] for one in document["samples"] if one["blocks"] == 2])
    assert [block.session for block in joined.series[0].blocks] == ["s1", "s5"]


def test_samples_of_a_later_version_write_nothing(tmp_path: Path) -> None:
    (path,) = write(tmp_path, MadeUpRun(1, cases=4, samples=True))
    file = path / "plans/functional/execute/data/guest/default-0/samples.json"
    file.write_text(file.read_text(encoding="utf-8").replace('"version": 1', '"version": 2'), encoding="utf-8")
    done = CliRunner().invoke(report, ["merge", str(path), "--output", str(tmp_path / "report")])
    assert isinstance(done.exception, InputError)
    assert "install a later one" in str(done.exception)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["run1"]


def test_a_report_is_never_overwritten(tmp_path: Path) -> None:
    (path,) = write(tmp_path, MadeUpRun(1, cases=4))
    arguments = ["merge", str(path), "--output", str(tmp_path / "report")]
    assert CliRunner().invoke(report, arguments).exit_code == 0
    again = CliRunner().invoke(report, arguments)
    assert isinstance(again.exception, InputError)


def test_the_command_is_known() -> None:
    assert "report" in COMMANDS


def test_a_rule_that_every_run_skips_is_untested(tmp_path: Path) -> None:
    skips = [MadeUpRun(number, cases=4, bad={NAME: ("skip", "no memory")}) for number in (1, 2)]
    merged = merge(read_runs(write(tmp_path, *skips)))
    assert merged.untested == {NAME.removesuffix("/2M"): "no memory"}
    assert headline(merged).endswith("; rules that no run tested: 1")
