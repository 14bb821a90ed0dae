"""Planning, and the figures of the study: which margin of error."""

import math

import numpy as np
import pytest
from tests.unit.gate.documents import levels_of, rows_of, sample_set, series_of

from hugepage_gate.block_summary import summarise
from hugepage_gate.classic_table import classic_table
from hugepage_gate.study_plan import (
    Pilot,
    pilot_from,
    plan_layout,
    runs_per_block,
    smallest_change,
    useful_runs,
)

WORKSTATION = Pilot(0.0018, 0.012)


@pytest.mark.parametrize(
    ("blocks", "runs", "change"), [(1, 6000, 0.0083), (5, 10, 0.0086), (20, 10, 0.0043), (1, 10, 0.0193)]
)
def test_smallest_change(blocks: int, runs: int, change: float) -> None:
    assert smallest_change(WORKSTATION, blocks, runs) == pytest.approx(change, abs=5e-5)


def test_fifty_runs_in_five_boots_are_worth_six_thousand_in_one() -> None:
    assert smallest_change(WORKSTATION, 5, 10) == pytest.approx(smallest_change(WORKSTATION, 1, 6000), rel=0.05)


def test_more_runs_stop_helping() -> None:
    assert useful_runs(WORKSTATION) == math.ceil((1.2 / 0.18) ** 2)
    assert useful_runs(Pilot(0.021, 0.046)) == 5


def test_dear_blocks_get_more_runs() -> None:
    cheap, dear = (runs_per_block(Pilot(0.0018, 0.012, cost, 1)) for cost in (0, 100))
    assert dear == pytest.approx(10 * cheap, rel=0.1)
    assert runs_per_block(Pilot(0.0, 0.01)) == 10_000


def test_a_layout_shows_what_was_asked_for() -> None:
    layout = plan_layout(WORKSTATION, 0.005, runs=10)
    assert layout is not None
    assert layout.change <= 0.005 < smallest_change(WORKSTATION, layout.blocks - 1, 10)
    assert plan_layout(Pilot(1.0, 1.0), 0.0001) is None


@pytest.mark.parametrize(
    ("deviation", "samples", "margin"),
    [(4.38, 5000, 0.24), (4.2, 5000, 0.23), (1.58, 37_000, 0.03), (14.53, 24_000, 0.36)],
)
def test_margins_of_error_of_the_study(deviation: float, samples: int, margin: float) -> None:
    noise = np.random.default_rng(1).normal(0, 1, samples)
    noise = 147 + deviation * (noise - noise.mean()) / noise.std(ddof=1)
    table = classic_table([noise])
    assert table.margin == pytest.approx(margin, abs=0.006)
    assert table.honest_margin == pytest.approx(table.margin, rel=0.1)


def test_the_table_counts_what_is_far_off() -> None:
    samples = np.append(np.random.default_rng(1).normal(147, 1.4, 10_000), [592.0, 240.0])
    table = classic_table([samples[:5000], samples[5000:]])
    assert table.samples == 10_002
    assert table.highest == 592
    assert table.beyond_3_sigma == 2
    assert table.beyond_6_sigma == 2
    assert sum(table.histogram) == table.samples
    assert len(table.edges) == len(table.histogram) + 1


def test_samples_that_hang_together_widen_the_honest_margin() -> None:
    wandering = 100 + np.cumsum(np.random.default_rng(1).normal(0, 0.1, 1000))
    table = classic_table([wandering])
    assert table.effective < 50
    assert table.honest_margin > 4 * table.margin


def test_constant_and_single_samples_have_a_table() -> None:
    assert classic_table([np.ones(3)]).histogram == (3,)
    assert classic_table([np.ones(1)]).margin == 0


def test_a_pilot_tells_how_much_blocks_and_runs_vary() -> None:
    rows = rows_of(levels_of(200, between=0.01), samples=50, within=0.02)
    rows_pilot = pilot_from(summarise(sample_set(series_of(rows)).series[0], 0.5, {}, None))
    assert rows_pilot.between == pytest.approx(0.01, rel=0.15)
    assert rows_pilot.within == pytest.approx(0.02, rel=0.1)


def test_a_pilot_of_five_blocks_is_not_taken_for_more_than_it_tells() -> None:
    random = np.random.default_rng(1)
    found = []
    for _ in range(200):
        rows = [(level * np.exp(random.normal(0, 0.01, 10))).tolist() for level in np.exp(random.normal(0, 0.01, 5))]
        found.append(pilot_from(summarise(sample_set(series_of(rows)).series[0], 0.5, {}, None)).between)
    assert np.mean(np.array(found) >= 0.01) > 0.7
    assert min(found) > 0.0005


def test_a_plan_is_never_of_fewer_blocks_than_a_verdict_takes() -> None:
    layout = plan_layout(Pilot(1e-5, 0.001), 0.5)
    assert layout is not None
    assert layout.blocks == 5
