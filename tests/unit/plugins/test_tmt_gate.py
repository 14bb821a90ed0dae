"""tmt's ``report: how: hugepage-gate``: schema, and a run of tmt that gathers reports."""

from pathlib import Path

import pytest
from tests.unit.forked_tmt import run_tmt

pytest.importorskip("tmt")

TEST = r"""
test: |
    printf '## regressed\n\n| metric |\n' >"$TMT_TEST_DATA/pgbench.md"
    echo '<html>' >"$TMT_TEST_DATA/pgbench.html"
    cat >"$TMT_TEST_DATA/results.yaml" <<END
    - {name: /, result: fail, note: ["regressed: 1 of 4"], log: [pgbench.md, pgbench.html]}
    END
framework: shell
result: custom
"""
PLAN = """
provision: {how: local}
discover: {how: fmf}
execute: {how: tmt}
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree with a test that leaves reports."""
    tree = tmp_path / "tree"
    (tree / ".fmf").mkdir(parents=True)
    (tree / ".fmf" / "version").write_text("1\n")
    (tree / "test.fmf").write_text(TEST)
    return tree


def test_reports_are_gathered(tree: Path, tmp_path: Path) -> None:
    (tree / "plan.fmf").write_text(f"{PLAN}report: {{how: hugepage-gate, file: {tmp_path / 'copy.md'}}}\n")
    steps = ("discover", "provision", "execute", "report", "cleanup")
    done = run_tmt(tree, "--feeling-safe", "run", "--id", str(tmp_path / "run"), *steps)
    # the test failed, and nothing else did
    assert done.returncode == 1, done.stdout + done.stderr
    assert "regressed: 1 of 4" in done.stderr
    (summary,) = (tmp_path / "run").glob("**/gate.md")
    assert "## regressed" in summary.read_text()
    assert (tmp_path / "copy.md").read_text() == summary.read_text()
    (page,) = summary.parent.glob("pages/*.html")
    assert page.read_text() == "<html>\n"


@pytest.mark.parametrize(("keys", "code"), [("", 0), (", file: gate.md", 0), (", bogus: 1", 1), (", file: 7", 1)])
def test_lint(tree: Path, keys: str, code: int) -> None:
    (tree / "plan.fmf").write_text(f"summary: A plan\n{PLAN}report: {{how: hugepage-gate{keys}}}\n")
    done = run_tmt(tree, "--feeling-safe", "lint", "--enforce-check", "C000", "plan")
    assert done.returncode == code, done.stdout + done.stderr
