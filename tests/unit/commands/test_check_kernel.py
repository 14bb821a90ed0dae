"""The command "check-kernel" without a machine: what it refuses, what it hands on, and how it ends."""

import io
import shutil
import subprocess
import tarfile
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.unit.commands.run_command import Command
from tests.unit.conftest import x86_image

from hugepage_qa.cases.area_files import live_areas
from hugepage_qa.cases.boot.boot_matrix import Settings, find_kernel
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.cases.throwaway_run import LiveWanted
from hugepage_qa.commands import check_kernel
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.report.run_directory import read_run_directory
from hugepage_qa.sizes import GIB, MIB

RELEASE = "6.1.0-9-amd64"
#: what a package can have besides the image
MODULE = f"./lib/modules/{RELEASE}/kernel/fs/ext4/ext4.ko"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    file = tmp_path / "bzImage"
    file.write_bytes(x86_image(RELEASE))
    return file


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return Command(capsys, monkeypatch, "check-kernel")


# --- wrong input ---


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["none"], "none: no such file"),
        (["none.deb"], "none.deb: no such file"),
        (["none.rpm"], "none.rpm: no such file"),
        (["text"], "text: expected a kernel image"),
        (["text.deb"], "text.deb: "),
        (["folder"], "folder: not a file"),
        (["bzImage", "--area", "nosuch"], "area nosuch: expected one of"),
        (["bzImage", "--area", "pool/nosuch"], "area pool/nosuch: expected one of"),
        (["bzImage", "--area", "../pool"], "area ../pool: expected one of"),
        (["bzImage", "--area", "guest"], "area guest: expected one of"),
        (["bzImage", "--case", "nosuch"], "--case nosuch: expected the name of a case"),
        (["bzImage", "--area", "memory", "--case", "/pool/*"], "--case /pool/*: expected the name of a case"),
        (["bzImage", "--area", "boot", "--case", "*"], "--case *: expected the name of a case"),
        (["bzImage", "--size", "3M"], "--size 3M: expected a page size of the machine"),
        (["bzImage", "--size", "large"], "'large'"),
        (["bzImage", "--output", "folder"], "--output folder: is there already"),
        (["bzImage", "--suite", "sid"], "KERNEL and --package or --suite"),
        (["bzImage", "--package", "linux-image-amd64"], "KERNEL and --package or --suite"),
        (["bzImage", "--arch", "vax"], "vax"),
        (["bzImage", "--arch", "x86_64", "--arch", "s390x"], "a kernel for x86_64: expected one for s390x"),
        (["bzImage", "--machines", "0"], "--machines"),
        (["bzImage", "--cpus", "0"], "--cpus"),
        (["bzImage", "--node", "large"], "'large'"),
        (["bzImage", "--seed", "-1"], "--seed"),
        (["bzImage", "bzImage"], "bzImage"),
    ],
    ids=" ".join,
)
def test_wrong_input_is_one_line_and_exit_code_3_and_nothing_is_done(
    run: Command, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], named: str
) -> None:
    (tmp_path / "text").write_text("no kernel")
    (tmp_path / "text.deb").write_text("no package")
    (tmp_path / "folder").mkdir()
    before = set(tmp_path.iterdir()) | {tmp_path / "cache"}
    monkeypatch.setattr(check_kernel, "run_check", lambda *_, **_options: pytest.fail("it went on"))
    output = [] if "--output" in arguments else ["--output", "output"]
    assert image.is_file()
    assert run(*arguments, *output) == 3
    assert named in run.errors
    assert (len(run.errors.splitlines()), run.output) == (1, "")
    assert set(tmp_path.iterdir()) <= before


# --- packages ---


def package(directory: Path, *members: str, images: int = 1) -> Path:
    """Return a tiny package of a kernel with ``members`` and ``images``."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not installed")
    root = directory / "root"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN" / "control").write_text(
        "Package: tiny\nVersion: 1\nArchitecture: amd64\nMaintainer: nobody <nobody@localhost>\nDescription: tiny\n"
    )
    names = [*members, *(f"./boot/vmlinuz-{RELEASE}{'x' * number}" for number in range(images))]
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(x86_image(RELEASE) if "vmlinuz" in name else b"CONFIG_HUGETLBFS=y\n")
    subprocess.run(["/usr/bin/dpkg-deb", "--build", root, directory / "tiny.deb"], capture_output=True, check=True)
    return directory / "tiny.deb"


class FakeCheck:
    """Gives the results that it is told to; ``made`` are those that there are."""

    made: list["FakeCheck"]
    results: list[Result]

    def __init__(
        self,
        architecture: str,
        settings: Settings,
        groups: tuple[str, ...],
        random_boots: int,
        live: LiveWanted,
        *_told: object,
    ) -> None:
        self.architecture, self.settings, self.groups = architecture, settings, groups
        self.random_boots, self.live = random_boots, live
        self.kernel = KernelImage(Path("vmlinuz"), "x86_64", RELEASE, None)
        self.expected_results = 9
        self.told: list[str] = []
        FakeCheck.made.append(self)

    def run(self) -> Generator[Result, None, None]:
        """Yield the results."""
        try:
            for result in self.results:
                self.told.append(result.name)
                yield result
        finally:
            self.told.append("closed")

    def stop(self) -> None:
        """Stop."""
        self.told.append("stopped")


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[FakeCheck]:
    """Return the checks that were made; they pass."""
    FakeCheck.made = []
    FakeCheck.results = [Result("/a", Verdict.PASS)]
    monkeypatch.setattr(check_kernel, "KernelCheck", FakeCheck)
    return FakeCheck.made


def test_a_package_is_taken_apart_into_image_and_modules(run: Command, tmp_path: Path, checks: list[FakeCheck]) -> None:
    assert run(package(tmp_path, f"./boot/config-{RELEASE}", MODULE)) == 0, run.errors
    (check,) = checks
    assert check.architecture == "x86_64"
    kernel = find_kernel("x86_64", check.settings)
    assert kernel.path.read_bytes() == x86_image(RELEASE)
    assert [module.name for module in kernel.modules] == ["ext4.ko"]


def test_an_architecture_that_is_named_twice_is_checked_once(run: Command, checks: list[FakeCheck]) -> None:
    words = [word for name in ("s390x", "x86_64", "s390x") for word in ("--arch", name)]
    assert run(*words) == 0, run.errors
    assert [check.architecture for check in checks] == ["s390x", "x86_64"]


@pytest.mark.parametrize("images", [0, 2])
def test_a_package_without_one_image_is_refused(
    run: Command, tmp_path: Path, checks: list[FakeCheck], images: int
) -> None:
    assert run(package(tmp_path, images=images)) == 3
    assert f"expected a package with a kernel image, found {images} images in it" in run.errors
    assert checks == []


def test_an_archive_of_another_kind_is_refused(run: Command, tmp_path: Path, checks: list[FakeCheck]) -> None:
    with tarfile.open(tmp_path / "kernel.deb", "w") as archive:
        archive.addfile(tarfile.TarInfo("a"), io.BytesIO())
    assert run(tmp_path / "kernel.deb") == 3
    assert "kernel.deb: dpkg-deb cannot unpack it" in run.errors
    assert checks == []


# --- what is handed on ---


def wanted(run: Command, checks: list[FakeCheck], *arguments: str | Path) -> FakeCheck:
    assert run(*arguments) == 0, run.errors
    return checks[-1]


def test_without_a_choice_all_is_wanted(run: Command, image: Path, checks: list[FakeCheck]) -> None:
    check = wanted(run, checks, image)
    assert [area.name for area in check.live.areas] == [area.name for area in live_areas()]
    assert check.groups
    assert (check.live.operations, check.random_boots) == (0, 0)


def test_a_choice_of_cases_or_sizes_leaves_boots_out(run: Command, image: Path, checks: list[FakeCheck]) -> None:
    for arguments in (["--case", "*"], ["--size", "2M", "--size", "1G"], ["--area", "pool"]):
        assert wanted(run, checks, image, *arguments).groups == (), arguments
    assert checks[1].live.selection.sizes == (2 * MIB, GIB)
    assert (
        {"pool/pool", "pool/demote"}
        <= {area.name for area in checks[2].live.areas}
        < {area.name for area in live_areas()}
    )
    assert wanted(run, checks, image, "--area", "boot", "--area", "pool/demote").groups
    assert [area.name for area in checks[3].live.areas] == ["pool/demote"]
    assert wanted(run, checks, image, "--area", "boot").live.areas == ()


def test_what_is_random_can_be_all_there_is(run: Command, image: Path, checks: list[FakeCheck]) -> None:
    check = wanted(run, checks, image, "--area", "random", "--operations", "40")
    assert (check.groups, check.live.areas, check.live.operations) == ((), (), 40)
    check = wanted(run, checks, image, "--area", "random", "--minutes", "3", "--seed", "5")
    assert (check.groups, check.live.areas, check.live.minutes, check.live.seed) == ((), (), 3, 5)
    assert "random with --seed 5" in run.output
    assert run(image, "--area", "random") == 3
    assert "--area random: expected how much of it" in run.errors


def test_the_rest_is_handed_on_as_it_is(run: Command, image: Path, checks: list[FakeCheck]) -> None:
    options = ["--append", "a=b quiet", "--random", "3", "--operations", "40", "--seed", "7", "--machines", "2"]
    check = wanted(run, checks, image, *options)
    assert (check.settings.append, check.settings.machines, check.settings.kernel) == ("a=b quiet", 2, image)
    assert (check.random_boots, check.live.operations, check.live.seed) == (3, 40, 7)
    assert f"x86_64: kernel {RELEASE}, random with --seed 7\n" in run.output


def test_without_a_kernel_it_is_that_of_the_distribution(run: Command, checks: list[FakeCheck]) -> None:
    check = wanted(run, checks, "--suite", "sid", "--package", "linux-image-amd64")
    assert (check.settings.kernel, check.settings.suite) == (None, "sid")
    assert (check.architecture, check.settings.package) == ("x86_64", "linux-image-amd64")
    wanted(run, checks, "--arch", "aarch64", "--arch", "s390x")
    assert [one.architecture for one in checks[1:]] == ["aarch64", "s390x"]


def test_what_is_kept_says_of_which_kernel_it_is(
    run: Command, image: Path, checks: list[FakeCheck], tmp_path: Path
) -> None:
    wanted(run, checks, image, "--output", "output")
    assert read_run_directory(tmp_path / "output").machine == f"throwaway machines, x86_64, {RELEASE}"


# --- how it ends ---


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["pass"], 0),
        (["known", "skip"], 0),
        (["pass", "fail", "error"], 1),
        (["skip"], 2),
        (["pass", "error"], 3),
        ([], 3),
    ],
)
def test_the_exit_code_is_that_of_the_results(
    run: Command, image: Path, checks: list[FakeCheck], verdicts: list[str], code: int
) -> None:
    FakeCheck.results = [Result(f"/{verdict}", Verdict(verdict), ("why",)) for verdict in verdicts]
    assert run(image) == code
    assert checks[0].told[-1] == "stopped"
    assert " cases ran: " in run.output or " case ran: " in run.output


@pytest.mark.parametrize("bad", [Verdict.FAIL, Verdict.ERROR])
def test_the_first_failure_ends_it_if_asked(run: Command, image: Path, checks: list[FakeCheck], bad: Verdict) -> None:
    FakeCheck.results = [Result("/a", Verdict.KNOWN), Result("/b", bad), Result("/c", Verdict.PASS)]
    arguments = [str(image), "--arch", "x86_64", "--arch", "s390x"]
    run(*arguments)
    assert [check.told for check in checks] == [["/a", "/b", "/c", "closed", "stopped"]] * 2
    checks.clear()
    run("-x", *arguments)
    assert [check.told for check in checks] == [["/a", "/b", "closed", "stopped"], []]


def test_what_can_never_boot_is_one_line(
    run: Command, image: Path, checks: list[FakeCheck], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(_check: FakeCheck) -> Generator[Result, None, None]:
        raise InputError("qemu-system-x86_64 is not installed")
        yield

    monkeypatch.setattr(FakeCheck, "run", cannot)
    assert run(image) == 3
    assert run.errors == "hugepage-qa: qemu-system-x86_64 is not installed\n"
    assert checks[0].told == ["stopped"]


def test_the_help_names_all_areas(run: Command) -> None:
    with suppress(SystemExit):
        run("--help")
    assert "boot, accounting, cgroup" in " ".join(run.output.split())
