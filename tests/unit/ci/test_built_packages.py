"""What is installed is what tmt discovers, and the packages agree on what they are."""

import re
import subprocess
import sys
from pathlib import Path

from tests.unit.forked_tmt import run_tmt

ROOT = Path(__file__).resolve().parents[3]


def run(*arguments: str) -> str:
    return subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def tmt(root: Path, *arguments: str) -> set[str]:
    done = run_tmt(ROOT, "--root", str(root), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(done.stdout.split())


def test_an_installed_suite_has_the_plans_and_tests_of_the_tree(tmp_path: Path) -> None:
    build = ["build", "--build-base", str(tmp_path / "build"), "egg_info", "--egg-base", str(tmp_path)]
    run(sys.executable, "setup.py", "--quiet", *build, "install_data", "--install-dir", str(tmp_path / "usr"))
    installed = tmp_path / "usr" / "share" / "hugepage-qa"
    assert tmt(installed, "plans", "ls") == tmt(ROOT, "plans", "ls")
    assert tmt(installed, "tests", "ls") == {test for test in tmt(ROOT, "tests", "ls") if "/unit" not in test}
    # plans run the one, tests the other
    for script in ("ci/install.sh", "tests/run.sh"):
        assert (installed / script).stat().st_mode & 0o111


def test_the_packages_are_of_one_version() -> None:
    version = run(sys.executable, "setup.py", "--version").split()[-1]
    spec = (ROOT / "ci" / "hugepage-qa.spec").read_text(encoding="utf-8")
    assert re.search(r"^Version: +(\S+)$", spec, re.MULTILINE)[1] == version  # type: ignore[index]
    assert f" - {version}-1\n" in spec
