"""Configurations set against each other: the advantage, and the 2x2."""

from typing import Any

import numpy as np
import pytest
from tests.unit.gate.documents import START, sample_set

from hugepage_gate.compare_suites import Terms, baseline_from_samples, compare
from hugepage_gate.comparison import Comparison
from hugepage_gate.contrasts import find_contrasts
from hugepage_gate.gate_policy import Policy
from hugepage_gate.samples import SampleSet, Verdict

ABBA = (0, 1, 1, 0)
CELLS = ("host=4k,guest=4k", "host=4k,guest=huge", "host=huge,guest=4k", "host=huge,guest=huge")


def interleaved(
    factors: dict[str, float],
    reference: str,
    sessions: int,
    first: int,
    order: tuple[int, ...],
    seed: int = 1,
    between: float = 0.02,
) -> SampleSet:
    """Return sessions that differ by ``between``; configurations run in ``order``, and each run is 0.1 % slower."""
    random = np.random.default_rng(seed)
    names = list(factors)
    blocks: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for session in range(first, first + sessions):
        level = 100 * np.exp(random.normal(0, between))
        for place, which in enumerate(order):
            drift = np.exp(0.004 * place)
            samples = level * drift * factors[names[which]] * np.exp(random.normal(0, 0.002, 20))
            blocks[names[which]].append(
                {
                    "started": START.replace(day=session + 1).isoformat(),
                    "session": f"s{session}",
                    "boot": f"b{session}",
                    "order": place,
                    "samples": samples.tolist(),
                }
            )
    series = [
        {"metric": "walk", "unit": "s", "direction": "lower", "configuration": name, "blocks": found}
        for name, found in blocks.items()
    ]
    return sample_set(*series, reference=reference, source=str(first))


def judge(baseline: SampleSet, new: SampleSet) -> Comparison:
    return compare(baseline_from_samples(baseline, Policy()), new, Terms())


def test_an_advantage_is_found_where_levels_vary_too_much() -> None:
    baseline = interleaved({"thp": 1.0, "shp": 0.97}, "thp", 8, 0, ABBA)
    same = judge(baseline, interleaved({"thp": 1.0, "shp": 0.97}, "thp", 3, 10, ABBA, seed=2))
    advantage = next(one for one in same.results if one.estimand == "advantage")
    assert advantage.verdict is Verdict.PASS
    assert advantage.claim == "better"
    assert advantage.claimed is not None
    assert advantage.claimed.estimate == pytest.approx(-0.03, abs=0.004)
    assert {one.verdict for one in same.results if one.estimand == "level"} == {Verdict.BLIND}


def test_an_advantage_that_shrinks_is_a_regression() -> None:
    baseline = interleaved({"thp": 1.0, "shp": 0.97}, "thp", 8, 0, ABBA)
    shrunk = judge(baseline, interleaved({"thp": 1.0, "shp": 0.99}, "thp", 3, 10, ABBA, seed=2))
    assert next(one for one in shrunk.results if one.estimand == "advantage").verdict is Verdict.REGRESSED
    assert shrunk.verdict is Verdict.REGRESSED


@pytest.mark.parametrize("order", [(0, 0, 1, 1), (0, 1, 0, 1)])
def test_an_order_that_drift_shows_through_decides_nothing(order: tuple[int, ...]) -> None:
    baseline = interleaved({"thp": 1.0, "shp": 1.0}, "thp", 8, 0, ABBA)
    comparison = judge(baseline, interleaved({"thp": 1.0, "shp": 1.0}, "thp", 3, 10, order, seed=2))
    advantage = next(one for one in comparison.results if one.estimand == "advantage")
    assert advantage.verdict is Verdict.UNDECIDED
    assert "ABBA" in advantage.reason


def test_an_advantage_needs_a_baseline_of_both() -> None:
    baseline = interleaved({"thp": 1.0}, "thp", 8, 0, (0,))
    comparison = judge(baseline, interleaved({"thp": 1.0, "shp": 0.97}, "thp", 3, 10, ABBA, seed=2))
    advantage = next(one for one in comparison.results if one.estimand == "advantage")
    assert advantage.verdict is Verdict.UNDECIDED
    assert advantage.claim == "better"


def test_of_many_contrasts_none_is_claimed_by_chance() -> None:
    """Forty configurations that are all the same, in three sessions: one in twenty would seem better or worse."""
    names = {"thp": 1.0, **{f"shp{place}": 1.0 for place in range(40)}}
    order = (*range(41), *reversed(range(41)))
    comparison = judge(interleaved(names, "thp", 5, 0, order), interleaved(names, "thp", 3, 10, order, seed=3))
    claims = [one.claim for one in comparison.results if one.estimand == "advantage"]
    assert claims == ["unknown"] * 40


def test_main_effects_and_interaction_of_two_by_two() -> None:
    order = (0, 1, 2, 3, 3, 2, 1, 0)
    factors = dict(zip(CELLS, (1.0, 0.95, 0.92, 0.92 * 0.95 * 1.02), strict=True))
    baseline = interleaved(factors, CELLS[0], 8, 0, order)
    comparison = judge(baseline, interleaved(factors, CELLS[0], 5, 10, order, seed=2))
    effects = {one.configuration: one for one in comparison.results if one.estimand != "level"}
    assert effects.keys() == {"host", "guest", "guest x host"}
    expected = {"host": 0.92 * np.sqrt(1.02), "guest": 0.95 * np.sqrt(1.02), "guest x host": 1.02}
    for name, effect in effects.items():
        assert effect.claimed is not None
        assert effect.claimed.estimate == pytest.approx(expected[name] - 1, abs=0.004)
        assert effect.verdict is Verdict.PASS


def test_three_configurations_are_each_set_against_the_usual() -> None:
    assert [one.name for one in find_contrasts(["4k", "thp", "1g"], "thp")] == ["4k over thp", "1g over thp"]
    assert find_contrasts(["thp"], None) == []
    assert len(find_contrasts(CELLS[:3], CELLS[0])) == 2


def test_an_advantage_that_grew_because_the_reference_got_worse_is_no_improvement() -> None:
    baseline = interleaved({"thp": 1.0, "shp": 0.97}, "thp", 8, 0, ABBA, between=0.002)
    slower = interleaved({"thp": 1.03, "shp": 0.97}, "thp", 3, 10, ABBA, seed=2, between=0.002)
    found = next(one for one in judge(baseline, slower).results if one.estimand == "advantage")
    assert found.verdict is Verdict.PASS
    assert "got worse" in found.reason
    faster = interleaved({"thp": 1.0, "shp": 0.94}, "thp", 3, 10, ABBA, seed=2, between=0.002)
    found = next(one for one in judge(baseline, faster).results if one.estimand == "advantage")
    assert found.verdict is Verdict.IMPROVED
