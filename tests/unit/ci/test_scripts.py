"""Make and the shell scripts: values stay values, and what is missing is said."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MAKE = shutil.which("make") or "make"
BASH = "/bin/bash"


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command with nothing of our environment but what is needed."""
    base = {"PATH": os.defpath, "HOME": os.environ.get("HOME", "/")}
    return subprocess.run(command, cwd=ROOT, env=base | environment, capture_output=True, text=True, check=False)


def test_make_alone_prints_what_there_is() -> None:
    done = run(MAKE, "--no-print-directory")
    assert done.returncode == 0
    assert all(f"make {target} " in done.stdout for target in ("qa", "test", "lint", "bench", "clean"))


@pytest.mark.parametrize("given_as", ["argument", "environment"])
def test_a_value_is_not_expanded_by_make_or_a_shell(given_as: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    value = f"$(shell touch {mark}) $$x `touch {mark}` \"; touch {mark}; ' #"
    script = tmp_path / "print.mk"
    script.write_text(f"include {ROOT}/Makefile\nshow:\n\t@printenv APPEND\n", encoding="utf-8")
    arguments = [f"APPEND={value}"] if given_as == "argument" else []
    done = run(MAKE, "-f", str(script), "show", *arguments, **({} if arguments else {"APPEND": value}))
    assert done.stdout == f"{value}\n"
    assert not mark.exists()


def test_a_wrong_request_is_one_line_and_exit_code_3() -> None:
    done = run(str(ROOT / ".venv" / "bin" / "python"), "ci/qa.py", ARCH="sparc64")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("make qa: ")
    assert done.stderr.count("\n") == 1


def test_no_emulator_at_all() -> None:
    done = run(str(ROOT / ".venv" / "bin" / "python"), "ci/qa.py", ARCH="s390x", PATH="/nowhere")
    assert done.returncode == 3
    assert "qemu-system-s390x is not installed" in done.stderr


def test_a_test_says_what_to_do_where_the_suite_cannot_be_installed(tmp_path: Path) -> None:
    (tmp_path / "ci").mkdir()
    shutil.copy(ROOT / "ci" / "install.sh", tmp_path / "ci")
    done = run(BASH, "tests/run.sh", "hugepage-qa", "run", TMT_TREE=str(tmp_path))
    assert (done.returncode, done.stdout) == (3, "")
    what, why, hint = done.stderr.splitlines()
    assert what.endswith(f": running {tmp_path}/ci/install.sh")
    assert "has tests without the library" in why
    assert hint.startswith("hugepage-qa cannot be installed, for the reason above: ")


def test_a_test_without_a_plan_installs_the_suite(tmp_path: Path) -> None:
    """As for a worker that only discovers: what ci/install.sh names runs, and it is told what the test needs."""
    program = tmp_path / "installed" / "bin" / "hugepage-qa"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!{BASH}\necho "$(command -v hugepage-qa) $*"\n', encoding="utf-8")
    installer = tmp_path / "tree" / "ci" / "install.sh"
    installer.parent.mkdir(parents=True)
    installer.write_text(
        f'#!{BASH}\necho "with $HUGEPAGE_QA_EXTRAS"\necho "hugepage-qa is installed: {program}"\n', encoding="utf-8"
    )
    for script in (program, installer):
        script.chmod(0o755)
    tree = str(tmp_path / "tree")
    done = run(BASH, "tests/run.sh", "hugepage-qa", "a b", TMT_TREE=tree, HUGEPAGE_QA_EXTRAS="guest")
    assert (done.returncode, done.stdout) == (0, f"{program} a b\n")
    assert done.stderr.splitlines()[1:] == ["with guest", f"hugepage-qa is installed: {program}"]


def test_tests_without_the_library_are_not_installed(tmp_path: Path) -> None:
    done = run(BASH, "ci/install.sh", TMT_TREE=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == (
        f"hugepage-qa is not installed, and {tmp_path} has tests without the library: "
        "install the package python3-hugepage-qa\n"
    )


def test_a_test_finds_the_suite_in_the_tree(tmp_path: Path) -> None:
    program = tmp_path / "a tree" / ".venv" / "bin" / "hugepage-qa"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/bash\necho "$HOME" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    done = subprocess.run(
        [BASH, "tests/run.sh", "hugepage-qa", "a b"],
        cwd=ROOT,
        env={"PATH": os.defpath, "TMT_TREE": str(tmp_path / "a tree")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.endswith(" a b\n")
    assert done.stdout.startswith("/")


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A directory for PATH with a package manager that only writes down its arguments."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in ("bash", "id", "python3"):
        (directory / name).symlink_to(shutil.which(name) or name)
    fake = directory / "apt-get"
    fake.write_text(f'#!{BASH}\necho "$DEBIAN_FRONTEND: $*" >>"{tmp_path}/asked"\n', encoding="utf-8")
    fake.chmod(0o755)
    return directory


def pretend_user(tools: Path, number: int) -> None:
    (tools / "id").unlink()
    (tools / "id").write_text(f"#!{BASH}\necho {number}\n", encoding="utf-8")
    (tools / "id").chmod(0o755)


def test_root_installs_what_is_missing(tools: Path, tmp_path: Path) -> None:
    pretend_user(tools, 0)
    done = run(BASH, "ci/system-packages.sh", "no-such-qemu", "deb", "rpm", "bash", "bash", "bash", PATH=str(tools))
    assert done.returncode == 0
    assert "installing deb (for no-such-qemu)" in done.stdout
    asked = (tmp_path / "asked").read_text(encoding="utf-8")
    assert asked.splitlines()[-1] == "noninteractive: -q -y --no-install-recommends install deb"


def test_others_are_told_what_to_install(tools: Path, tmp_path: Path) -> None:
    pretend_user(tools, 1000)
    done = run(BASH, "ci/system-packages.sh", "no-such-qemu", "deb", "rpm", PATH=str(tools))
    assert done.returncode == 0
    assert "missing: no-such-qemu; install with: sudo apt-get" in done.stderr
    assert not (tmp_path / "asked").exists()


def test_nothing_missing_nothing_done(tools: Path, tmp_path: Path) -> None:
    done = run(BASH, "ci/system-packages.sh", "bash", "deb", "rpm", PATH=str(tools))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (tmp_path / "asked").exists()


def test_a_file_that_is_there_is_not_installed(tools: Path, tmp_path: Path) -> None:
    firmware = tmp_path / "firmware.fd"
    firmware.touch()
    done = run(BASH, "ci/system-packages.sh", str(firmware), "deb", "rpm", PATH=str(tools))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("provision", "expected"), [("lab", {"mmdebstrap", "qemu-system-x86_64"}), ("local", {"cc"})])
def test_a_plan_asks_for_the_programs_of_its_machines(provision: str, expected: set[str], tmp_path: Path) -> None:
    python = str(ROOT / ".venv" / "bin" / "python")
    done = run(python, "ci/programs.py", PLAN="functional", PROVISION=provision, PATH=str(tmp_path))
    assert expected <= set(done.stdout.split())
    assert ("cc" in done.stdout.split()) == (provision == "local")


@pytest.mark.parametrize(("plan", "asked"), [("vt", True), ("guest", False)])
def test_what_avocado_vt_insists_on_is_installed_for_its_plan_alone(plan: str, asked: bool, tmp_path: Path) -> None:
    python = str(ROOT / ".venv" / "bin" / "python")
    done = run(python, "ci/programs.py", PLAN=plan, PATH=str(tmp_path))
    assert ("tcpdump" in done.stdout.split()) == asked


@pytest.mark.parametrize(("plan", "environment"), [("vt", ".venv-vt"), ("guest", ".venv"), ("", ".venv")])
def test_avocado_vt_has_an_environment_of_its_own(plan: str, environment: str) -> None:
    done = run(MAKE, "--dry-run", "qa", PLAN=plan)
    assert f" {environment}/bin/python ci/qa.py" in done.stdout


def test_an_environment_is_made_again_when_the_suite_is_another(tmp_path: Path) -> None:
    """pip is a script that counts: the environment is quick while nothing changed, wherever tmt put the tree."""
    environment = tmp_path / "venv"
    (environment / "bin").mkdir(parents=True)
    for name in ("hugepage-qa", "python"):
        program = environment / "bin" / name
        program.write_text(f"#!/bin/sh\necho installed >>{tmp_path}/count\n")
        program.chmod(0o755)
    trees = [_made_up_tree(tmp_path / name, text) for name, text in (("one", "a"), ("same", "a"), ("other", "b"))]
    counts = []
    for tree in trees:
        done = run(BASH, f"{tree}/ci/venv.sh", str(environment), f"{tree}[avocado]")
        assert done.returncode == 0, done.stderr
        counts.append((tmp_path / "count").read_text().count("installed"))
    assert counts == [1, 1, 2]


def _made_up_tree(directory: Path, module: str) -> Path:
    (directory / "libs" / "hugepage_qa").mkdir(parents=True)
    (directory / "ci").mkdir()
    shutil.copy(ROOT / "ci" / "venv.sh", directory / "ci")
    for name in ("setup.py", "pyproject.toml"):
        (directory / name).touch()
    (directory / "libs" / "hugepage_qa" / "cli.py").write_text(module)
    return directory


def test_guests_are_prepared_whatever_kernel_is_asked_for(tmp_path: Path) -> None:
    """The programs that guests need are those of plan guest on this machine."""
    environment = tmp_path / "venv"
    (environment / "bin").mkdir(parents=True)
    python = environment / "bin" / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *programs.py) exec {ROOT}/.venv/bin/python "$@" ;; esac\n')
    python.chmod(0o755)
    (tmp_path / "bin").mkdir()
    asked = {"PLAN": "functional", "PROVISION": "lab", "APPEND": "hugepages=48", "KERNEL": "/no/such/kernel"}
    # without apt-get and dnf nothing is installed
    for program in ("realpath", "dirname", "id", "cat"):
        (tmp_path / "bin" / program).symlink_to(shutil.which(program) or program)
    done = run(BASH, "ci/guest-packages.sh", str(environment), PATH=str(tmp_path / "bin"), **asked)
    assert done.returncode == 0, done.stderr
    assert "make qa:" not in done.stderr
