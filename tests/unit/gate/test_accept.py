"""Accepting a baseline: with a reason, and not downhill in small steps."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from tests.unit.gate.documents import MACHINE, levels_of, measured, rows_of, sample_set, series_of

from hugepage_gate.accept import FORMAT, VERSION, Accepted, Outcome, Request, accept, write
from hugepage_gate.baseline_store import BaselineStore
from hugepage_gate.gate_policy import Policy
from hugepage_gate.input_file import check_document, read_json
from hugepage_gate.sample_files import join
from hugepage_gate.samples import SampleSet
from hugepage_qa.errors import InputError

REQUEST = Request("somebody", "because", "10", date(2026, 2, 1))


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    """A store with a baseline of ten blocks."""
    store = BaselineStore(tmp_path)
    take(store, sample_set(measured(10)))
    return store


def take(store: BaselineStore, samples: SampleSet, request: Request = REQUEST) -> Accepted:
    accepted = accept(store, samples, request, Policy())
    list(write(store, accepted, samples, request, None))
    return accepted[0]


def current_of(accepted: Accepted) -> int:
    """Return how many blocks the baseline of today has."""
    assert accepted.baseline is not None
    return len(accepted.baseline.current.blocks)


ANSWER = replace(REQUEST, commit="abc123", metrics=("walk",))


def step(number: int, change: float) -> SampleSet:
    """Return five blocks, ``number`` weeks after the baseline."""
    return sample_set(measured(5, change, 10 + number, day=10 + 5 * number))


def test_a_reason_is_needed(store: BaselineStore) -> None:
    with pytest.raises(InputError, match="--reason"):
        take(store, step(0, 0), replace(REQUEST, reason=" "))


def test_blocks_that_pass_extend_the_baseline(store: BaselineStore) -> None:
    accepted = take(store, step(0, 0))
    assert accepted.outcome is Outcome.EXTENDS
    assert current_of(accepted) == 15
    assert not accepted.is_thin


def test_better_blocks_start_a_new_baseline(store: BaselineStore) -> None:
    accepted = take(store, step(0, -0.05))
    assert accepted.outcome is Outcome.STARTS
    assert current_of(accepted) == 5
    assert accepted.baseline is not None
    assert len(accepted.baseline.series.blocks) == 15


def test_few_better_blocks_wait_for_others_and_leave_the_baseline_as_it_is(store: BaselineStore) -> None:
    few = sample_set(measured(3, -0.05, 4, day=30))
    waiting = take(store, few)
    assert waiting.outcome is Outcome.WAITS
    assert "2 more" in waiting.reason
    more = join([few, sample_set(measured(2, -0.05, 5, day=40), source="more")])
    accepted = take(store, more)
    assert accepted.outcome is Outcome.STARTS
    assert (current_of(accepted), accepted.is_thin) == (5, False)


def test_sessions_and_not_blocks_start_a_baseline(store: BaselineStore) -> None:
    series = measured(6, -0.05, 4, day=30)
    for place, block in enumerate(series["blocks"]):
        block["session"] = f"s{place // 3}"
    assert take(store, sample_set(series)).outcome is Outcome.WAITS


def test_worse_blocks_are_refused_and_nothing_is_written(store: BaselineStore, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    refused = take(store, step(0, 0.03))
    assert refused.outcome is Outcome.REFUSED
    assert "--acknowledge" in refused.reason
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before


def test_a_metric_that_is_refused_keeps_no_other_from_being_accepted(tmp_path: Path) -> None:
    store = BaselineStore(tmp_path)
    take(store, sample_set(measured(10), measured(10, seed=2, metric="other")))
    worse = sample_set(measured(5, 0.05, 3, day=20), measured(5, 0.0, 4, day=20, metric="other"))
    accepted = accept(store, worse, REQUEST, Policy())
    assert [one.outcome for one in accepted] == [Outcome.REFUSED, Outcome.EXTENDS]


def noisy(blocks: int, seed: int, day: int) -> SampleSet:
    return sample_set(series_of(rows_of(levels_of(blocks, 0.0, seed, 0.05), seed), day=day))


def test_what_is_too_noisy_to_pass_extends_its_baseline(tmp_path: Path) -> None:
    store = BaselineStore(tmp_path)
    take(store, noisy(6, 1, 0))
    for night in range(5):
        accepted = take(store, noisy(1, 2 + night, 20 + night))
        assert accepted.outcome is Outcome.EXTENDS
    assert current_of(accepted) == 11


def test_a_slow_ratchet_is_refused(store: BaselineStore) -> None:
    taken = [take(store, step(number, 0.002 * (number + 1))) for number in range(5)]
    # a step of 0.2 % passes, and all of them together do not get far beyond the margin of 1 %
    refused = [one for one in taken if one.outcome is Outcome.REFUSED]
    assert taken.index(refused[0]) in (1, 2, 3)
    assert "oldest baseline of 10" in refused[0].reason


def test_a_ratchet_of_improvements_and_steps_back_is_measured_from_the_oldest(store: BaselineStore) -> None:
    take(store, step(0, -0.02))
    take(store, step(1, -0.017))
    assert take(store, step(2, 0.012)).outcome is Outcome.REFUSED


def test_a_change_that_somebody_answers_for_is_a_file(store: BaselineStore, tmp_path: Path) -> None:
    accepted = take(store, step(0, 0.03), ANSWER)
    assert accepted.outcome is Outcome.STARTS
    (path,) = tmp_path.rglob("walk.*-abc123.ack.json")
    found = read_json(path)
    check_document(found, path, FORMAT, VERSION, "acknowledgement")
    assert (found["by"], found["reason"], found["commit"]) == ("somebody", "because", "abc123")
    assert found["change"] == pytest.approx(0.03, abs=0.003)
    # from there on it is the oldest
    assert take(store, step(1, 0.03)).outcome is Outcome.EXTENDS
    assert take(store, step(2, 0.05)).outcome is Outcome.REFUSED


def test_only_what_is_named_is_answered_for(tmp_path: Path) -> None:
    store = BaselineStore(tmp_path)
    take(store, sample_set(measured(10), measured(10, seed=2, metric="other")))
    worse = sample_set(measured(5, 0.05, 3, day=20), measured(5, 0.05, 4, day=20, metric="other"))
    with pytest.raises(InputError, match="--metric"):
        accept(store, worse, replace(REQUEST, commit="abc123"), Policy())
    accepted = accept(store, worse, ANSWER, Policy())
    assert [(one.name, one.outcome) for one in accepted] == [("walk", Outcome.STARTS)]
    with pytest.raises(InputError, match="no metric"):
        accept(store, worse, replace(ANSWER, metrics=("x*",)), Policy())


def test_nothing_is_answered_for_where_nothing_changed(store: BaselineStore, tmp_path: Path) -> None:
    accepted = take(store, step(0, 0.0), ANSWER)
    assert (accepted.outcome, accepted.change) == (Outcome.EXTENDS, None)
    assert not list(tmp_path.rglob("*.ack.json"))


def test_a_new_release_may_begin_where_the_last_one_ended(store: BaselineStore) -> None:
    take(store, step(0, 0.003))
    take(store, step(1, 0.003), replace(REQUEST, release="11"))
    assert take(store, step(2, 0.03), replace(REQUEST, release="11")).outcome is Outcome.REFUSED


def test_blocks_are_accepted_once(store: BaselineStore) -> None:
    assert take(store, sample_set(measured(10))).outcome is Outcome.KNOWN
    again = join([sample_set(measured(10)), sample_set(measured(2, seed=8, day=30), source="new")])
    accepted = take(store, again)
    assert (accepted.blocks, current_of(accepted)) == (2, 12)


def test_few_blocks_make_a_thin_baseline_that_grows(tmp_path: Path) -> None:
    store = BaselineStore(tmp_path)
    thin = [take(store, sample_set(measured(1, seed=night, day=night))).is_thin for night in range(1, 7)]
    assert thin == [True] * 4 + [False] * 2


def test_a_machine_that_was_updated_carries_its_baseline_on(store: BaselineStore, tmp_path: Path) -> None:
    before = next(iter(tmp_path.rglob("walk.json")))
    updated = sample_set(measured(3, seed=5, day=30), environment={**MACHINE, "cores": 9})
    request = replace(REQUEST, waivers={"cores": "one was broken"})
    accepted = take(store, updated, request)
    assert (accepted.outcome, current_of(accepted)) == (Outcome.EXTENDS, 13)
    assert accepted.baseline is not None
    assert "cores waived: one was broken" in accepted.baseline.acceptances[-1].reason
    assert len(list(tmp_path.rglob("walk.json"))) == 2
    assert before.exists()
    # without a word nothing is carried on
    other = sample_set(measured(3, seed=6, day=40), environment={**MACHINE, "cores": 7})
    assert current_of(take(store, other)) == 3


def test_a_machine_that_became_slower_by_its_update_carries_on_what_it_was(store: BaselineStore) -> None:
    updated = sample_set(measured(5, 0.05, 5, day=30), environment={**MACHINE, "cores": 9})
    refused = take(store, updated, replace(REQUEST, waivers={"cores": "x"}))
    assert (refused.outcome, current_of(refused)) == (Outcome.REFUSED, 10)
    assert store.read(updated.environment, "memory", updated.series[0]) is not None


def test_raw_samples_are_kept_where_wanted(tmp_path: Path) -> None:
    store, samples = BaselineStore(tmp_path / "baselines"), sample_set(measured(2))
    list(write(store, accept(store, samples, REQUEST, Policy()), samples, REQUEST, tmp_path / "raw"))
    assert len(list((tmp_path / "raw").iterdir())) == 2
