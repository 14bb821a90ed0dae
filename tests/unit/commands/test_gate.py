"""``hugepage-qa gate``: what people type, what they get, and what they get wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.unit.gate.documents import MACHINE, document, measured, series_of

from hugepage_qa.commands.gate import gate
from hugepage_qa.errors import InputError
from hugepage_qa.schema import find_violation


def run(*arguments: object) -> Result:
    # tables fold where a terminal is narrow
    return CliRunner(env={"COLUMNS": "200"}).invoke(gate, [str(one) for one in arguments], catch_exceptions=False)


def write(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Ten blocks of two metrics."""
    return write(tmp_path / "old.json", document(measured(10), measured(10, seed=7, metric="build")))


def new(tmp_path: Path, change: float) -> Path:
    content = document(measured(3, change, 2, day=20), measured(3, 0.0, 8, day=20, metric="build"))
    return write(tmp_path / "new.json", content)


@pytest.mark.parametrize(
    ("change", "code", "verdict"), [(0.0, 0, "pass"), (0.03, 1, "regressed"), (-0.03, 0, "improved")]
)
def test_exit_codes(tmp_path: Path, old: Path, change: float, code: int, verdict: str) -> None:
    result = run("compare", new(tmp_path, change), "--against", old)
    assert result.exit_code == code
    assert result.stdout.startswith(verdict)


def test_json_follows_its_schema(tmp_path: Path, old: Path) -> None:
    result = run("compare", new(tmp_path, 0.03), "--against", old, "--json")
    found = json.loads(result.stdout)
    assert find_violation(found, "hugepage_gate", "comparison") is None
    assert (found["verdict"], found["exit_code"], result.exit_code) == ("regressed", 1, 1)
    verdicts = {one["metric"]: one["verdict"] for one in found["results"]}
    assert verdicts == {"walk": "regressed", "build": "pass"}


def test_another_machine_exits_2(tmp_path: Path, old: Path) -> None:
    other = write(
        tmp_path / "other.json", document(measured(3, 0, 2, day=20), environment={**MACHINE, "cpu_model": "x"})
    )
    result = run("compare", other, "--against", old)
    assert result.exit_code == 2
    assert result.stdout.startswith("not-comparable")
    assert "cpu_model" in result.stdout


def test_accept_then_compare_then_history(tmp_path: Path, old: Path) -> None:
    baselines = tmp_path / "baselines"
    accepted = run("accept", old, "--reason", "first", "--baselines", baselines, "--raw", tmp_path / "raw")
    assert accepted.exit_code == 0
    assert "starts a baseline of 10" in accepted.stdout
    assert run("compare", new(tmp_path, 0.0), "--baselines", baselines).exit_code == 0
    assert run("compare", new(tmp_path, 0.03), "--baselines", baselines).exit_code == 1
    assert "regressed" in run("compare", new(tmp_path, 0.03), "--baselines", baselines, "--margin", "1%").stdout
    (baselines / "policy.yaml").write_text("metrics: [{match: walk, margin: 8%}]")
    assert run("compare", new(tmp_path, 0.03), "--baselines", baselines).exit_code == 0
    history = run("history", "wal", "--baselines", baselines)
    assert "walk.json" in history.stdout
    assert "build" not in history.stdout


def test_a_baseline_that_lost_a_line_gives_no_verdict(tmp_path: Path, old: Path) -> None:
    baselines = tmp_path / "baselines"
    run("accept", old, "--reason", "first", "--baselines", baselines)
    (path,) = baselines.rglob("walk.json")
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if '"order"' not in line or line is lines[4]))
    with pytest.raises(InputError, match="restore"):
        run("compare", new(tmp_path, 0.0), "--baselines", baselines)


def test_every_run_is_kept_accepted_or_not(tmp_path: Path, old: Path) -> None:
    baselines = tmp_path / "baselines"
    run("accept", old, "--reason", "first", "--baselines", baselines)
    slower = new(tmp_path, 0.03)
    for _ in range(2):
        run("compare", slower, "--baselines", baselines)
    run("compare", new(tmp_path, 0.0), "--baselines", baselines)
    (kept,) = baselines.rglob("*.jsonl")
    walk = [one for one in map(json.loads, kept.read_text().splitlines()) if one["metric"] == "walk"]
    assert [(one["verdict"], len(one["blocks"])) for one in walk] == [("regressed", 3), ("pass", 3)]
    history = run("history", "walk", "--baselines", baselines).stdout
    assert history.count("accepted") == 10
    assert history.count("regressed") == 3
    run("accept", new(tmp_path, 0.0), "--reason", "more", "--baselines", baselines)
    assert run("history", "walk", "--baselines", baselines).stdout.count("accepted") == 13
    kept.write_text("{}\n")
    assert run("compare", new(tmp_path, -0.03), "--baselines", baselines).exit_code == 0
    with pytest.raises(InputError, match=r"jsonl:1"):
        run("history", "walk", "--baselines", baselines)


def test_nothing_is_kept_of_samples_that_are_compared_with_samples(tmp_path: Path, old: Path) -> None:
    run("compare", new(tmp_path, 0.0), "--against", old)
    assert not list(tmp_path.rglob("*.jsonl"))


def test_accept_says_what_became_of_each_metric(tmp_path: Path, old: Path) -> None:
    baselines = tmp_path / "baselines"
    run("accept", old, "--reason", "first", "--baselines", baselines)
    refused = run("accept", new(tmp_path, 0.03), "--reason", "more", "--baselines", baselines)
    assert refused.exit_code == 1
    assert "walk: refused: regressed" in refused.stdout
    assert "build: 3 blocks, extends the baseline of 13" in refused.stdout
    waits = run("accept", new(tmp_path, -0.03), "--reason", "more", "--baselines", baselines)
    assert waits.exit_code == 2
    assert "build: in the baseline already" in waits.stdout
    with pytest.raises(InputError, match="--metric"):
        run("accept", old, "--reason", "x", "--acknowledge", "abc", "--baselines", baselines)


def test_a_fact_is_waived_with_its_reason(tmp_path: Path, old: Path) -> None:
    other = write(tmp_path / "other.json", document(measured(3, 0, 2, day=20), environment={**MACHINE, "cores": 9}))
    result = run("compare", other, "--against", old, "--waive", "cores=one was broken")
    assert result.exit_code == 0
    assert "differs (waived): cores: 8 in the baseline, 9 now (one was broken)" in result.stdout
    with pytest.raises(InputError, match="KEY=REASON"):
        run("compare", other, "--against", old, "--waive", "cores")


def test_a_kernel_under_test_may_have_another_configuration(tmp_path: Path) -> None:
    def kernel(version: str) -> dict[str, object]:
        return {"environment": {**MACHINE, "kernel_config": version}, "subject": {"kernel": version}}

    old = write(tmp_path / "old.json", document(measured(10), **kernel("6.12")))
    new = write(tmp_path / "new.json", document(measured(3, seed=2, day=20), **kernel("6.13")))
    baselines = tmp_path / "baselines"
    run("accept", old, "--reason", "first", "--baselines", baselines)
    assert run("compare", new, "--baselines", baselines).exit_code == 2
    assert run("compare", new, "--baselines", baselines, "--subject", "kernel").exit_code == 0


def test_without_a_baseline_it_is_said_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gate accept"):
        run("compare", new(tmp_path, 0.0), "--baselines", tmp_path / "none")
    with pytest.raises(InputError, match="gate accept"):
        run("history", "--baselines", tmp_path / "none")


def test_import_writes_what_compare_reads(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    lines = [f"{block},{100 + (block * 7 + run * 3) % 5 / 10}" for block in range(6) for run in range(5)]
    table.write_text("block,value\n" + "\n".join(lines))
    facts = write(tmp_path / "machine.json", MACHINE)
    target = tmp_path / "samples.json"
    assert run("import", "csv", table, "--environment", facts, "--metric", "walk", "--output", target).exit_code == 0
    assert len(json.loads(target.read_text())["series"][0]["blocks"]) == 6
    with pytest.raises(InputError, match="cpu_model"):
        run("import", "csv", table, "--fact", "arch=s390x")
    with pytest.raises(InputError, match="KEY=VALUE"):
        run("import", "csv", table, "--fact", "s390x")


def test_files_of_several_sessions_are_blocks(tmp_path: Path) -> None:
    for day in ("monday", "tuesday"):
        content = {"results": [{"command": "true", "times": [1.0 + len(day) / 100, 1.1]}]}
        write(tmp_path / f"{day}.json", content)
    facts = ("--fact", "arch=x86_64", "--fact", "cpu_model=any")
    result = run("import", "hyperfine", tmp_path / "monday.json", tmp_path / "tuesday.json", *facts)
    (series,) = json.loads(result.stdout)["series"]
    assert [(block["session"], block["order"]) for block in series["blocks"]] == [("monday", 0), ("tuesday", 1)]


def test_plan_table_and_error_rates(old: Path) -> None:
    assert "0.86%" in run("plan", "--between", "0.18%", "--within", "1.2%").stdout
    assert "walk: blocks vary" in run("plan", old).stdout
    table = run("table", old)
    assert "beyond 6 sigma" in table.stdout
    assert json.loads(run("table", old, "--json").stdout)["walk"]["samples"] == 200
    rates = run("error-rates", old, "--baseline", "5", "--splits", "2")
    assert "Mann-Whitney" in rates.stdout
    with pytest.raises(InputError, match="--between"):
        run("plan")


def test_a_count_of_nothing_is_no_pilot(tmp_path: Path) -> None:
    nothing = series_of([[0.0] * 3] * 6, "faults", kind="count", unit="faults")
    old = write(tmp_path / "old.json", document(measured(6), nothing))
    planned = run("plan", old)
    assert planned.exit_code == 0
    assert "faults" not in planned.stdout


@pytest.mark.parametrize("name", ["accept", "compare", "error-rates", "history", "import", "plan", "table"])
def test_help_shows_an_example(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert "Example: " in result.stdout


BLOCKED = """
import sys
missing = sys.argv[1].split(",")
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from hugepage_qa.cli import main
sys.argv[1:] = sys.argv[2].split()
main()
"""


def run_without(modules: str, words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", BLOCKED, modules, words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_only_pictures_need_matplotlib() -> None:
    assert run_without("matplotlib", "gate compare --help").returncode == 0


@pytest.mark.parametrize(("words", "code"), [("predict hugepages=1", 0), ("gate --help", 3), ("gate compare x", 3)])
def test_everything_else_works_without_numpy_and_scipy(words: str, code: int) -> None:
    done = run_without("numpy,scipy", words)
    assert done.returncode == code, done.stderr
    if code:
        assert "install hugepage-qa[gate]" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
