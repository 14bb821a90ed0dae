"""Change points, and the rules for metrics."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from hugepage_gate.change_points import find_change_points
from hugepage_gate.gate_policy import CountRule, MetricPolicy, parse_share, read_policy
from hugepage_qa.errors import InputError


def test_change_points_are_those_of_otava_that_are_large_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def point(index: int, before: float, after: float) -> SimpleNamespace:
        return SimpleNamespace(index=index, stats=SimpleNamespace(mean_1=before, mean_2=after, pvalue=1e-5))

    module = ModuleType("otava.analysis")
    found = [point(3, 4.0, 4.05), point(7, 4.05, 4.051)]
    vars(module)["compute_change_points"] = lambda *_, **__: (found, [])
    monkeypatch.setitem(sys.modules, "otava", ModuleType("otava"))
    monkeypatch.setitem(sys.modules, "otava.analysis", module)
    (change,) = find_change_points([50.0] * 10)
    assert change.place == 3
    assert change.change == pytest.approx(0.0513, abs=1e-3)
    assert find_change_points([50.0]) == []
    # a count of nothing has no logarithm
    assert find_change_points([0.0] * 10) == []


def test_change_points_need_otava(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "otava.analysis", None)
    with pytest.raises(InputError, match="apache-otava"):
        find_change_points([1.0, 2.0])


def test_the_first_pattern_that_fits_counts(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        "metrics:\n"
        "  - {match: 'pgbench*', margin: 2%, gates: false}\n"
        "  - {match: 'page-faults', absolute: 16, relative: 0.5%}\n"
        "  - {match: '*', margin: 3%, tail_margin: 10%}\n"
    )
    policy = read_policy(path)
    assert policy.of("pgbench-tps") == MetricPolicy(margin=0.02, gates=False)
    assert policy.of("page-faults").count == CountRule(16, 0.005)
    assert policy.of("other") == MetricPolicy(margin=0.03, tail_margin=0.1)


def test_without_a_file_every_metric_has_the_usual_rules(tmp_path: Path) -> None:
    assert read_policy(tmp_path / "none").of("any") == MetricPolicy(margin=0.01, tail_margin=0.05)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "metrics: 1",
        "metrics: [{margin: 1%}]",
        "metrics: [{match: a, margin: 0%}]",
        "metrics: [{match: a, x: 1}]",
        "a: [",
    ],
)
def test_a_wrong_policy_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"policy\.yaml"):
        read_policy(path)


@pytest.mark.parametrize("text", ["1", "0%", "-1%", "101%", "x%", "nan%", ""])
def test_wrong_shares(text: str) -> None:
    with pytest.raises(InputError, match="percentage"):
        parse_share(text)


def test_shares() -> None:
    assert parse_share("0.5%") == 0.005
