"""ci/gate-kernel: which plans fit, one line as verdict, and input that is none."""

import json
from pathlib import Path

import pytest
from ci import gate_kernel
from ci.gate_kernel import Step, choose, main
from tests.bench.made_up_runs import MadeUpRun

from hugepage_qa.cases.result import ExitCode
from hugepage_qa.errors import InputError
from hugepage_qa.qemu import packages
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.report.run_directory import write_surroundings

NAME = "/tests/pool/resize/case-0/2M"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "bzImage"
    path.write_bytes(b"kernel")
    is_for(monkeypatch, "x86_64")
    return path


def is_for(monkeypatch: pytest.MonkeyPatch, architecture: str) -> None:
    """Have every kernel be one for ``architecture``."""
    image = KernelImage(Path("vmlinuz"), architecture, "6.12.0", None)
    monkeypatch.setattr(gate_kernel, "open_kernel", lambda _path, _cache: image)


def run_good(step: Step, kept: Path) -> int:
    MadeUpRun(len(step.plan), cases=4).write(kept)
    return 0


def run_bad(_step: Step, kept: Path) -> int:
    MadeUpRun(1, cases=4, bad={NAME: ("fail", "nr_hugepages: expected 2, found 1: pool-size")}).write(kept)
    return 1


def run_without_end(step: Step, kept: Path) -> int:
    run_good(step, kept)
    (kept / "plans" / "functional" / "execute" / "results.yaml").unlink()
    return 3


def run_that_changed_the_host(step: Step, kept: Path) -> int:
    run_good(step, kept)
    write_surroundings(kept, 0, ["/var/tmp/left: absent before, directory after"])
    return 3


def run_undecided(step: Step, kept: Path) -> int:
    return run_good(step, kept) or 2


def test_plans_by_what_was_given(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(kernel)
    assert choose(kernel, "", []) == [Step("kernel", {"KERNEL": path})]
    in_system = Step("functional", {"KERNEL": path, "PROVISION": "lab"})
    assert choose(kernel, "", [], thorough=True) == [Step("kernel", {"KERNEL": path}), in_system]
    assert in_system.name == "functional-lab"
    is_for(monkeypatch, "s390x")
    assert choose(kernel, "", []) == [Step("kernel", {"KERNEL": path})]
    with pytest.raises(InputError, match="functional needs a whole system"):
        choose(kernel, "", [], thorough=True)


def test_a_package_is_tested_with_its_modules_and_debian_s_can_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_for(monkeypatch, "x86_64")
    deb, rpm = (tmp_path / f"linux.{suffix}" for suffix in ("deb", "rpm"))
    for package in (deb, rpm):
        package.touch()
        assert choose(package, "", []) == [Step("kernel", {"KERNEL": str(package)})]
    assert choose(deb, "", ["functional"]) == [Step("functional", {"KERNEL": str(deb), "PROVISION": "lab"})]
    with pytest.raises(InputError, match="functional needs a whole system"):
        choose(rpm, "", ["functional"])


def test_a_package_without_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "unpack", lambda _package, _directory: None)
    (tmp_path / "linux-doc.deb").touch()
    with pytest.raises(InputError, match="found 0 images"):
        choose(tmp_path / "linux-doc.deb", "", [])


@pytest.mark.parametrize(("run", "word", "code"), [(run_good, "good", 0), (run_bad, "bad", 1)])
def test_the_last_line_is_the_verdict(
    run: gate_kernel.Runner, word: str, code: int, kernel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(kernel), "--output", str(tmp_path / "report")], run) == code
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"{kernel}: {word}: 1 runs, ")
    assert f"(exit code {code})" in last
    document = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert document["exit_code"] == code


def test_the_summary_names_kernel_rule_expected_and_found(kernel: Path, tmp_path: Path) -> None:
    main([str(kernel), "--output", str(tmp_path / "report")], run_bad)
    summary = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    line = (
        "| 6.12.0-55.el10.x86\\_64 | x86\\_64 | fail | nr\\_hugepages: expected 2, found 1: pool-size | runs/kernel |"
    )
    assert line in summary
    assert (tmp_path / "report" / "runs" / "kernel" / "run.yaml").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {"bzImage", "report"}


@pytest.mark.parametrize(
    ("run", "code", "line"),
    [
        (run_that_changed_the_host, 3, "the host has changed: /var/tmp/left: absent before, directory after"),
        (run_undecided, 2, "plan kernel: undecided"),
    ],
)
def test_what_no_case_tells_is_in_verdict_and_summary(
    run: gate_kernel.Runner, code: int, line: str, kernel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(kernel), "--output", str(tmp_path / "report")], run) == code
    assert f"(exit code {code}); plan kernel: {ExitCode(code).word}; report: " in capsys.readouterr().out
    assert line in (tmp_path / "report" / "report.md").read_text(encoding="utf-8").replace("\\", "")
    document = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert document["about"] == f"{kernel}: plan kernel: {ExitCode(code).word}"
    assert line in str(document)


@pytest.mark.parametrize(("code", "word"), [(0, "good"), (1, "bad"), (2, "undecided")])
def test_paths_are_compared_with_those_of_another_kernel(
    code: int, word: str, kernel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"another kernel")

    def compare(new: Path, against: Path, directory: Path) -> int:
        assert (new, against) == (kernel, other)
        directory.mkdir()
        (directory / "report.md").write_text("what was counted")
        return code

    arguments = [str(kernel), "--against", str(other), "--output", str(tmp_path / "report")]
    assert main(arguments, run_good, compare) == code
    assert f"(exit code {code}); plan kernel: good, path length: {word}; report: " in capsys.readouterr().out
    assert (tmp_path / "report" / "path-length" / "report.md").read_text() == "what was counted"
    document = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert document["about"] == f"{kernel}: plan kernel: good, path length: {word}"


def test_a_kernel_of_another_architecture_has_no_paths_to_compare(
    kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.touch()

    def open_either(path: Path, _cache: Path) -> KernelImage:
        return KernelImage(path, "aarch64" if path == other else "x86_64", "6.12.0", None)

    monkeypatch.setattr(gate_kernel, "open_kernel", open_either)
    assert main([str(kernel), "--against", str(other), "--output", str(tmp_path / "report")], run_good) == 3
    assert f"--against {other}: is for aarch64, and {kernel} for x86_64" in capsys.readouterr().err


def test_a_run_without_end_leaves_no_report(kernel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(kernel), "--output", str(tmp_path / "report")], run_without_end) == 3
    assert "expected a finished run" in capsys.readouterr().err
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("end", [SystemExit(143), KeyboardInterrupt()])
def test_a_gate_that_is_stopped_leaves_nothing(end: BaseException, kernel: Path, tmp_path: Path) -> None:
    def run_until_told_to_stop(step: Step, kept: Path) -> int:
        run_good(step, kept)
        raise end

    before = sorted(tmp_path.iterdir())
    with pytest.raises(type(end)):
        main([str(kernel), "--output", str(tmp_path / "report")], run_until_told_to_stop)
    assert sorted(tmp_path.iterdir()) == before


def test_two_gates_of_one_output_have_a_directory_each(
    kernel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(kernel), "--output", str(tmp_path / "report")]
    places = list[Path]()

    def run_beside_another_gate(step: Step, kept: Path) -> int:
        places.append(kept)
        if len(places) == 1:
            assert main(arguments, run_beside_another_gate) == 0
        return run_good(step, kept)

    assert main(arguments, run_beside_another_gate) == 3
    assert "report: Directory not empty; the report lies in " in capsys.readouterr().err
    assert len(set(places)) == 2
    assert (tmp_path / "report" / "report.md").is_file()


def test_what_a_gate_left_that_was_killed_goes_with_the_next_one(kernel: Path, tmp_path: Path) -> None:
    left, of_others, linked = (tmp_path / f".{name}" for name in ("report.gate-1", "report2.gate-1", "report.gate-2"))
    for directory in (left, of_others):
        directory.mkdir(mode=0o700)
        (directory / "runs").mkdir()
    linked.symlink_to(of_others)

    assert main([str(kernel), "--output", str(tmp_path / "report")], run_good) == 0

    assert not left.exists()
    assert (of_others / "runs").is_dir()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["none"],
        ["bzImage", "--compose", "fedora-42"],
        ["Makefile"],
        ["kernel.rpm"],
        ["kernel.deb"],
        ["bzImage", "--plan", "none"],
        ["--compose", "fedora-42"],
        ["bzImage", "--against", "none"],
        ["--compose", "fedora-42", "--against", "bzImage"],
    ],
)
def test_wrong_input_is_one_line_and_exit_code_3(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("Makefile", "kernel.rpm", "kernel.deb", "bzImage"):
        Path(name).write_text("no kernel", encoding="utf-8")
    assert main([*arguments, "--output", "report"], run_good) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not Path("report").exists()


def test_a_report_is_never_overwritten(kernel: Path, tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    assert main([str(kernel), "--output", str(tmp_path / "report")], run_good) == 3


def test_a_wrong_option_has_the_exit_code_of_wrong_input() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--bogus"], run_good)
    assert caught.value.code == 3
