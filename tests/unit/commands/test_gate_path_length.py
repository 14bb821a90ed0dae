"""The command "gate path-length" without a machine: what it finds, what it refuses, and how it ends."""

import errno
from pathlib import Path

import pytest
import yaml
from tests.unit.bench.counted_machines import USUAL, CountedMachines
from tests.unit.cases.fake_machines import lost
from tests.unit.commands.run_command import Command

from hugepage_gate.sample_files import read_one_machine
from hugepage_qa.bench import counted_kernels
from hugepage_qa.cases.boot.boot_matrix import Settings
from hugepage_qa.commands import gate_path_length
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.lost_machine import Loss

OLD, NEW = "6.1.0", "6.12.0"


class Cli(Command):
    """Runs the command on kernels that nobody boots: OLD and NEW are files, and the word is what they are."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        super().__init__(capsys, monkeypatch, "gate", "path-length")
        self.machines = CountedMachines(monkeypatch)
        self.new, self.old = directory / "new", directory / "old"
        self.new.write_text(NEW)
        self.old.write_text(OLD)

    def compare(self, *arguments: str) -> int:
        """Compare NEW with OLD."""
        return self(str(self.new), "--against", str(self.old), "--machines", "1", *arguments)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    def image(path: Path, *_: object) -> KernelImage:
        return KernelImage(path, "x86_64", path.read_text(), None)

    def find(_architecture: str, settings: Settings) -> KernelImage:
        return image(settings.kernel or tmp_path / "old")

    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(gate_path_length, "open_kernel", image)
    monkeypatch.setattr(gate_path_length, "find_kernel", find)
    monkeypatch.setattr(counted_kernels, "find_emulator", lambda _board: "/bin/true")
    return Cli(capsys, monkeypatch, tmp_path)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Let tmt have started us, and return where it looks for results."""
    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setenv("TMT_TEST_DATA", str(data))
    return data / "results.yaml"


def test_tmt_is_told_of_each_path(run: Cli, told: Path) -> None:
    run.machines.lengths[NEW] = {"unmap base 4096": USUAL * 11 // 10}
    assert run.compare() == 1
    results = {one["name"]: one["result"] for one in yaml.safe_load(told.read_text())}
    assert len(results) == 40
    assert [name for name, result in results.items() if result != "pass"] == [
        "/path-length",
        "/path-length/unmap-base-4K/level",
    ]
    assert (told.parent / "path-length" / "report.md").exists()


def test_tmt_is_told_of_a_panic(run: Cli, told: Path) -> None:
    run.machines.lengths[NEW] = lost(Loss.PANICKED)
    assert run.compare() == 1
    (result,) = yaml.safe_load(told.read_text())
    assert (result["name"], result["result"]) == ("/", "fail")


def test_without_another_kernel_a_test_of_tmt_is_skipped(run: Cli, told: Path) -> None:
    assert run(str(run.new)) == 2
    (result,) = yaml.safe_load(told.read_text())
    assert (result["result"], result["note"]) == ("skip", ["HUGEPAGE_QA_AGAINST: no kernel to compare with"])


def test_kernels_with_paths_as_long_pass(run: Cli) -> None:
    assert run.compare() == 0
    lines = run.output.splitlines()
    assert lines[0] == f"[1/6] {NEW}: 0 s"
    assert lines[6].startswith("pass  ")
    assert f"suite path-length: {NEW} against {OLD}" in lines


@pytest.mark.parametrize(
    "path", ["fault hugetlb 2097152", "unmap base 4096", "fault thp 2097152", "reserve hugetlb 1073741824"]
)
def test_a_path_that_is_a_tenth_longer_is_named(run: Cli, path: str) -> None:
    run.machines.lengths[NEW] = {path: USUAL * 11 // 10}
    assert run.compare() == 1
    operation, kind, _size = path.split()
    assert f"regressed  1 of 38: {operation}-{kind}-" in run.output


def test_moving_a_huge_page_like_base_pages_is_bad_though_no_other_kernel_is_better(run: Cli, told: Path) -> None:
    run.machines.lengths = {kernel: {"migrate thp 2097152": USUAL * 513} for kernel in (NEW, OLD)}
    assert run.compare() == 1
    (line,) = (line for line in run.output.splitlines() if line.startswith("no shorter on huge pages: "))
    assert line.endswith("migrate-thp-2M: 513,001 instructions for a page, and 512,003 for as many base pages")
    (bad,) = (one for one in yaml.safe_load(told.read_text()) if one["result"] == "fail")
    assert bad["name"] == "/path-length/shorter-on-huge-pages"


@pytest.mark.parametrize("path", ["migrate thp 65536", "collapse base 2097152", "copy thp 2097152"])
def test_what_is_not_done_to_a_huge_page_as_a_whole_may_be_as_long(run: Cli, path: str) -> None:
    run.machines.lengths = {kernel: {path: USUAL * 513} for kernel in (NEW, OLD)}
    assert run.compare() == 0


def test_what_is_longer_by_less_than_the_margin_passes(run: Cli) -> None:
    run.machines.lengths[NEW] = {"unmap base 4096": USUAL * 11 // 10}
    assert run.compare("--margin", "20%") == 0


def test_the_same_kernel_twice_passes(run: Cli) -> None:
    assert run(str(run.new), "--against", str(run.new), "--machines", "1") == 0
    assert f"{NEW} against {NEW}" in run.output


def test_further_words_are_for_the_kernel_alone(run: Cli) -> None:
    run.compare("--append", "init_on_alloc=1")
    lines = {one.machine.kernel.release: one.machine.command_line for one in run.machines.started}
    assert "init_on_alloc=1" in lines[NEW]
    assert "init_on_alloc=1" not in lines[OLD]


def test_what_only_the_other_kernel_does_decides_nothing(run: Cli) -> None:
    run.machines.lengths[NEW] = {"collapse base 2097152": OSError(errno.EINVAL, "")}
    assert run.compare() == 2
    assert f"{NEW} does not do what {OLD} does: collapse-thp-2M" in run.output
    assert f"not counted: collapse-thp-2M of {NEW}: Invalid argument" in run.output


def test_what_only_the_new_kernel_does_has_no_say(run: Cli) -> None:
    run.machines.lengths[OLD] = {"collapse base 2097152": OSError(errno.EINVAL, "")}
    assert run.compare() == 0


def test_a_kernel_that_panics_is_bad_and_one_that_is_lost_is_not(run: Cli) -> None:
    run.machines.lengths[NEW] = lost(Loss.PANICKED)
    assert run.compare() == 1
    assert f"regressed: {NEW}: the kernel panicked" in run.output
    run.machines.lengths[NEW] = lost(Loss.NO_ANSWER)
    assert run.compare() == 3
    assert run.errors == f"hugepage-qa: {NEW}: no answer came: what was seen of it\n"


def test_a_panic_of_the_other_kernel_says_nothing_of_this_one(run: Cli) -> None:
    run.machines.lengths[OLD] = lost(Loss.PANICKED)
    assert run.compare() == 3


def test_several_kernels_are_in_one_table(run: Cli, tmp_path: Path) -> None:
    run.machines.lengths[NEW] = {"unmap base 4096": USUAL * 2}
    output = tmp_path / "report"
    assert run.compare("--against-suite", "sid", "--output", str(output)) == 1
    report = (output / "report.md").read_text(encoding="utf-8")
    assert f"| instructions for a page | {NEW} | {OLD} | {OLD} |" in report
    (line,) = (line for line in report.splitlines() if line.startswith("| unmap-base-4K | 2,000 "))
    assert line == "| unmap-base-4K | 2,000 (+100.0%) | 1,000 (-0.0%) | 1,000 |"
    assert report.count(f"# {NEW} against {OLD}\n") == 2
    assert read_one_machine([output / "kernel-0.json"]).suite == "path-length"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "--against or --against-suite: expected a kernel to compare with"),
        (("--against", "{old}", "--package", "linux"), "KERNEL and --package or --suite: expected one kernel"),
        (("--against", "{old}", "--boots", "2"), "2 is not in the range 3<=x<=20"),
        (("--against", "{old}", "--margin", "a lot"), "'a lot': expected a percentage from 0.000001%"),
        (("--against", "{old}", "--output", "{old}"), "is there already; expected a new directory"),
        (("--against", "{old}", "--arch", "vax"), "'vax' is not one of"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_3(run: Cli, arguments: tuple[str, ...], told: str) -> None:
    assert run(str(run.new), *(word.format(old=run.old) for word in arguments)) == 3
    assert told in run.errors
    assert run.errors.count("\n") == 1
    assert not run.machines.started


def test_a_file_that_is_no_kernel(run: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path / "cache"))
    assert run.compare() == 3
    assert run.errors.startswith(f"hugepage-qa: {run.new}: ")
    assert run.errors.count("\n") == 1
