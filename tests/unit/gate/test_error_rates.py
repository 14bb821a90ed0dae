"""How often the gate is wrong, on made-up measurements in which nothing changes, and that the count can fail."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ci import gate_error_rates
from ci.gate_error_rates import go_sessions, main
from ci.gate_worlds import WORLDS, World, cloud, jvm_forks, very_quiet_machine

from hugepage_gate import error_rates
from hugepage_gate.error_rates import (
    FEW_RUNS,
    SOME_RUNS,
    UNCHANGED,
    Plan,
    Rates,
    fixed_threshold,
    mann_whitney,
    measure_rates,
    welch,
)
from hugepage_gate.looks import Decision
from hugepage_gate.samples import Verdict
from hugepage_qa.errors import InputError

PLAN = Plan(splits=6)


@pytest.fixture(scope="module")
def quiet() -> Rates:
    """The rates on a quiet machine."""
    return measure_rates(World("quiet", very_quiet_machine).sample_set(1, 25), PLAN)


def test_a_quiet_machine(quiet: Rates) -> None:
    assert quiet.share(UNCHANGED, Verdict.REGRESSED) <= 0.01
    assert quiet.share("+1%", Verdict.REGRESSED) >= 0.85
    assert quiet.share("+2%", Verdict.REGRESSED) >= 0.97
    assert quiet.share("margin", Verdict.PASS, Verdict.IMPROVED) <= 0.02
    assert np.mean(quiet.blocks_used) < 2


def test_the_usual_rules_are_wrong_more_often(quiet: Rates) -> None:
    assert quiet.usual_share("Mann-Whitney", UNCHANGED) > quiet.share(UNCHANGED, Verdict.REGRESSED)
    assert quiet.usual_share("fixed 5 %", "+2%") == 0


@pytest.mark.parametrize("draw", [cloud, jvm_forks])
def test_machines_and_processes_that_differ(draw: object) -> None:
    rates = measure_rates(World("different", draw).sample_set(1, 25), replace(PLAN, new=5))  # type: ignore[arg-type]
    assert rates.share(UNCHANGED, Verdict.REGRESSED) <= 0.06
    assert rates.share("margin", Verdict.PASS, Verdict.IMPROVED) <= 0.02
    assert rates.usual_share("Mann-Whitney", UNCHANGED) > 0.2


def test_slow_runs_are_found_and_do_not_pass() -> None:
    samples = World("quiet", very_quiet_machine, samples=25).sample_set(1, 10)
    rates = measure_rates(samples, replace(PLAN, baseline=5))
    for name, _ in (SOME_RUNS, FEW_RUNS):
        assert rates.share(name, Verdict.REGRESSED) >= 0.7
        assert rates.share(name, Verdict.PASS, Verdict.IMPROVED) <= 0.05


def test_runs_in_which_nothing_changed_pass(quiet: Rates) -> None:
    assert quiet.run_share(Verdict.PASS, Verdict.IMPROVED) >= 0.6
    assert quiet.run_share(Verdict.REGRESSED) <= 0.1
    assert quiet.runs.total() == PLAN.splits


def test_a_gate_that_always_alarms_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_rates, "decide_one", lambda *_: Decision(Verdict.REGRESSED, ""))
    rates = measure_rates(World("quiet", very_quiet_machine).sample_set(1, 2), Plan(splits=2))
    assert rates.share(UNCHANGED, Verdict.REGRESSED) == 1
    assert rates.run_share(Verdict.REGRESSED) == 1


def test_short_series_are_split_at_random_and_single_blocks_refused() -> None:
    rates = measure_rates(World("short", very_quiet_machine, blocks=4).sample_set(1, 2), Plan(splits=5))
    assert rates.verdicts[UNCHANGED].total() == 10
    with pytest.raises(InputError, match="blocks"):
        measure_rates(World("one", very_quiet_machine, blocks=2).sample_set(1, 2), Plan())


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_worlds_come_from_their_seed(world: World) -> None:
    small = replace(world, blocks=2, samples=20)
    one, again, other = (small.sample_set(seed, 1).series[0].blocks[0].samples for seed in (1, 1, 2))
    assert (one == again).all()
    assert (one != other).any()


def test_usual_rules() -> None:
    random = np.random.default_rng(1)
    one, other = random.normal(100, 1, 50), random.normal(110, 1, 50)
    for rule in (mann_whitney, welch, fixed_threshold):
        assert rule(one, other)
        assert not rule(other, one)
        assert not rule(one, one + 1e-9)


def test_nights_of_go_are_read_in_their_order(tmp_path: Path) -> None:
    for folder, night, time in (("odd", "20220103T213211", 120), ("even", "20220102T213211", 100)):
        (tmp_path / folder).mkdir()
        lines = [f"BenchmarkWalk-12 1 {time + run} ns/op {time} MB/s" for run in range(15)]
        text = "\n".join([*lines, "BenchmarkShort-12 1 7 ns/op", "BenchmarkBuild 1 5 build-real-ns/op"])
        (tmp_path / folder / f"Go1.17-opt.{night}").write_text(text)
        (tmp_path / folder / f"1234abcd-opt.{night}").write_text("BenchmarkWalk-12 1 500 ns/op")
    (walk,) = go_sessions(tmp_path, "ns/op")
    assert (walk.metric, walk.unit) == ("BenchmarkWalk-12", "ns/op")
    assert [block.samples[0] for block in walk.blocks] == [100, 120]
    assert main(["--go"]) == 3


def test_nights_of_go_before_and_behind_the_step_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gate_error_rates, "SPLITS", 1)
    monkeypatch.setattr(gate_error_rates, "_print_made_up", lambda _console: None)
    noise = np.random.default_rng(1)
    for night in range(23):
        (tmp_path / str(night)).mkdir()
        times = {"Walk": 1000 * (1.03 if night >= gate_error_rates.STEP else 1.0), "Run": 1000}
        lines = [
            f"Benchmark{name}-12 1 {time * (1 + noise.normal(0, 0.001)):.3f} ns/op 512 B/op {night % 2 + 9} allocs/op"
            for name, time in times.items()
            for _run in range(15)
        ]
        (tmp_path / str(night) / f"Go1.17-opt.202201{night + 1:02}T210000").write_text("\n".join(lines))
    assert main(["--go", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^regressed at the step: BenchmarkWalk-12 \+[23]\.\d\d%$", shown, re.MULTILINE)
    assert "counts: 4, comparisons: 16, regressed: 0" in shown
