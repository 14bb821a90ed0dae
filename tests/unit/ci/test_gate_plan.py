"""What make qa makes of the results of the gate: blind metrics have no say, what was not measured has."""

import io
import json
from pathlib import Path

import pytest
from ci import qa
from ci.qa import Finding
from rich.console import Console

from hugepage_gate.comparison import Comparison, as_json
from hugepage_gate.samples import Verdict as GateVerdict
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.commands.qa_request import QaRequest

LOGS = (Path("page-access.json"),)


@pytest.mark.parametrize(
    ("suite", "further", "code"),
    [
        (Verdict.PASS, [], 0),
        (Verdict.PASS, [Result("/gate/page-access/walk/level", Verdict.SKIP, ("blind",))], 0),
        (Verdict.SKIP, [Result("/gate/page-access/walk/level", Verdict.PASS)], 2),
        (Verdict.PASS, [Result("/gate/page-access-shp-1G/measured", Verdict.SKIP)], 2),
        (Verdict.FAIL, [Result("/gate/page-access/walk/level", Verdict.SKIP)], 1),
    ],
)
def test_the_verdict_is_that_of_the_suites(suite: Verdict, further: list[Result], code: int) -> None:
    results = [Result("/gate/page-access", suite, logs=LOGS), *further]
    assert Finding(results, host_is_as_before=True, needs_all=True).exit_code == code


@pytest.mark.parametrize(
    ("verdict", "step"),
    [
        (GateVerdict.NOT_COMPARABLE, 'make qa PLAN=gate ACCEPT="first baseline" measures a first baseline'),
        (GateVerdict.BASELINE_THIN, "gate accept gate/samples/pgbench.json --reason"),
    ],
)
def test_the_report_ends_with_the_next_step_and_the_verdict(
    verdict: GateVerdict, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qa, "BUILD", tmp_path)
    monkeypatch.chdir(tmp_path)
    logs = tmp_path / "gate" / "run" / "data" / "logs"
    logs.mkdir(parents=True)
    logs.with_name("samples").mkdir()
    log = logs / "0001-pgbench.json"
    log.write_text(json.dumps(as_json(Comparison("pgbench", "b", "n", verdict, "why"))))
    results = [
        Result("/gate/pgbench", Verdict.SKIP, logs=(log,)),
        *(Result(f"/gate/pgbench/{metric}/level", Verdict.SKIP, ("blind",)) for metric in "abc"),
        Result("/gate/page-access/measured", Verdict.SKIP, ("not measured: no gcc",)),
    ]
    console = Console(width=200, file=io.StringIO())
    request = QaRequest.from_environment({"PLAN": "gate"})
    qa._report(console, request, Finding(results, host_is_as_before=True, needs_all=True), [])
    shown = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert shown[0] == f"{verdict}  pgbench: why"
    assert shown[1].startswith("next: ")
    assert step in shown[1]
    assert shown[2:] == [
        "  skipped 1: not measured: no gcc; untested: /gate/page-access/measured",
        "the host is as it was before",
        f"logs: {tmp_path}/gate",
        "plan gate: undecided (exit code 2)",
    ]
