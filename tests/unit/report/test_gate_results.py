"""Comparisons as results for tmt, and the variables that say what is measured."""

from dataclasses import replace
from pathlib import Path

import pytest

from hugepage_gate.comparison import Comparison, Interval, MetricResult
from hugepage_gate.samples import Direction
from hugepage_gate.samples import Verdict as GateVerdict
from hugepage_qa.bench.gate_settings import GateSettings
from hugepage_qa.cases.result import Verdict
from hugepage_qa.commands.gate_check import is_decided
from hugepage_qa.errors import InputError
from hugepage_qa.report.gate_results import comparison_results, outcome_of, skipped_results


def result(
    verdict: GateVerdict, *, estimand: str = "level", configuration: str = "thp", gates: bool = True
) -> MetricResult:
    return MetricResult(
        metric="pgbench-tps",
        configuration=configuration,
        estimand=estimand,
        unit="tps",
        direction=Direction.HIGHER,
        verdict=verdict,
        reason="because",
        gates=gates,
        margin=0.02,
        baseline_blocks=10,
        new_blocks=3,
        samples=3,
        effective=3.0,
        levels=(1.0, 1.0),
        change=Interval(0.031, 0.025, 0.037),
    )


def comparison(*results: MetricResult, verdict: GateVerdict = GateVerdict.REGRESSED) -> Comparison:
    return Comparison("pgbench", "baseline", "new", verdict, "1 of 4", tuple(results), (), ("one boot",))


def test_every_verdict_has_an_outcome() -> None:
    outcomes = {verdict: outcome_of(verdict) for verdict in GateVerdict}
    assert {verdict for verdict, outcome in outcomes.items() if outcome is Verdict.PASS} == {
        GateVerdict.PASS,
        GateVerdict.IMPROVED,
    }
    assert {verdict for verdict, outcome in outcomes.items() if outcome is Verdict.FAIL} == {GateVerdict.REGRESSED}
    assert {outcomes[verdict] for verdict in outcomes if verdict not in (GateVerdict.PASS, GateVerdict.IMPROVED)} == {
        Verdict.FAIL,
        Verdict.SKIP,
    }


def test_a_result_for_each_metric() -> None:
    logs = (Path("pgbench.html"),)
    passed = result(GateVerdict.PASS, estimand="advantage", configuration="shp-2M over thp")
    suite, one, other = comparison_results(comparison(result(GateVerdict.REGRESSED), passed), logs)
    assert (suite.name, suite.verdict, suite.logs) == ("/pgbench", Verdict.FAIL, logs)
    assert suite.reasons == ("regressed: 1 of 4", "one boot")
    assert (one.name, one.verdict) == ("/pgbench/pgbench-tps/thp/level", Verdict.FAIL)
    assert one.reasons[0].startswith("regressed: pgbench-tps [thp]: -3.01% (-3.57% to -2.44%), margin 2.0%")
    assert (other.name, other.verdict) == ("/pgbench/pgbench-tps/shp-2M-over-thp/advantage", Verdict.PASS)


def test_what_has_no_say_is_no_result() -> None:
    found = list(
        comparison_results(
            comparison(
                result(GateVerdict.REGRESSED, gates=False),
                result(GateVerdict.REGRESSED, estimand="slow runs"),
                verdict=GateVerdict.REGRESSED,
            ),
            (),
        )
    )
    assert [one.name for one in found] == ["/pgbench", "/pgbench/pgbench-tps/thp/slow-runs"]


def test_it_is_looked_once_more_where_that_makes_a_margin_visible() -> None:
    passed, blind = result(GateVerdict.PASS), result(GateVerdict.BLIND)
    good = comparison(passed, blind, verdict=GateVerdict.PASS)
    assert is_decided(good)
    assert not is_decided(comparison(passed, replace(blind, more_blocks=2), verdict=GateVerdict.PASS))
    assert is_decided(comparison(passed, replace(blind, more_blocks=2, gates=False), verdict=GateVerdict.PASS))
    assert is_decided(comparison(replace(blind, more_blocks=2), verdict=GateVerdict.REGRESSED))
    assert not is_decided(comparison(passed, verdict=GateVerdict.UNDECIDED))


def test_what_was_not_measured() -> None:
    (one,) = skipped_results({"pgbench [shp-1G]": "no\npages"})
    assert (one.name, one.verdict, one.reasons) == (
        "/pgbench-shp-1G/measured",
        Verdict.SKIP,
        ("not measured: no pages",),
    )


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({}, "/tree/baselines"),
        ({"HUGEPAGE_QA_BASELINES": "mine"}, "/tree/mine"),
        ({"HUGEPAGE_QA_BASELINES": "/a"}, "/a"),
    ],
)
def test_baselines_are_those_of_the_tree(told: dict[str, str], found: str) -> None:
    assert GateSettings.from_environment({"TMT_TREE": "/tree", **told}).baselines == Path(found)


def test_settings() -> None:
    settings = GateSettings.from_environment({})
    assert (settings.profile, settings.looks, settings.min_boots, settings.accept) == ("quick", (1, 2, 3), 1, "")
    settings = GateSettings.from_environment(
        {"HUGEPAGE_QA_PROFILE": "reference", "HUGEPAGE_QA_BLOCKS": "5", "HUGEPAGE_QA_WORKLOADS": "pgbench  page-access"}
    )
    assert (settings.looks, settings.min_boots, settings.workloads) == ((1, 2, 3, 4, 5), 2, ("pgbench", "page-access"))


@pytest.mark.parametrize(
    "environment",
    [
        {"HUGEPAGE_QA_PROFILE": "long"},
        {"HUGEPAGE_QA_BLOCKS": "6"},
        {"HUGEPAGE_QA_BLOCKS": "-1"},
        {"HUGEPAGE_QA_MIN_BOOTS": "0"},
        {"HUGEPAGE_QA_ACCEPT": "first", "HUGEPAGE_QA_STAND_IN": "thp=4k"},
    ],
)
def test_settings_that_make_no_sense(environment: dict[str, str]) -> None:
    with pytest.raises(InputError, match="HUGEPAGE_QA"):
        GateSettings.from_environment(environment)
