"""Files for CI systems are checked, and a wrong one is found."""

import shutil
from pathlib import Path

import pytest
from ci.check_ci_files import ROOT, main

FILES = (".fmf", ".packit.yaml", "plans", "ci")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in FILES:
        source = ROOT / name
        shutil.copytree(source, tmp_path / name) if source.is_dir() else shutil.copy(source, tmp_path / name)
    return tmp_path


def test_the_files_are_good(tree: Path) -> None:
    assert main(tree) == 0


@pytest.mark.parametrize(
    ("file", "good", "bad"),
    [
        (".packit.yaml", "trigger: pull_request", "trigger: pull-request"),
        (".packit.yaml", "identifier: machine", "identifier: smoke"),
        (".packit.yaml", "^/plans/smoke$", "^/plans/smok$"),
        ("ci/testing-farm/smoke.json", '"compose"', '"composes"'),
        ("ci/testing-farm/smoke.json", '"arch": "s390x",\n      "os"', '"arch": "s390",\n      "os"'),
        ("ci/testing-farm/smoke.json", '"arch": "s390x",\n      "os"', '"arch": "ppc64le",\n      "os"'),
        ("ci/testing-farm/boot.json", "^/plans/boot$", "^/plans/boots$"),
        ("ci/fedora/gating.yaml", "decision_contexts", "decision_context"),
        ("ci/fedora/gating.yaml", "!PassingTestCaseRule", "!PassingTestRule"),
        ("ci/fedora/hugepages.fmf.in", "import:", "imports:"),
        ("ci/github/kernel.yml", "runs-on:", "run-on:"),
        ("ci/gitlab/kernel.yml", "script:", "scripts:"),
    ],
)
def test_a_wrong_file_is_found(file: str, good: str, bad: str, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (tree / file).read_text(encoding="utf-8")
    assert good in text
    (tree / file).write_text(text.replace(good, bad), encoding="utf-8")
    assert main(tree) == 1
    assert Path(file).suffix in capsys.readouterr().err
