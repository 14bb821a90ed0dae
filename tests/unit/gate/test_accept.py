"""Accepting a baseline: with a reason, and not downhill in small steps."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from tests.unit.gate.documents import measured, sample_set

from hugepage_gate.accept import FORMAT, VERSION, Accepted, Request, accept, write
from hugepage_gate.baseline_store import BaselineStore
from hugepage_gate.gate_policy import Policy
from hugepage_gate.input_file import check_document, read_json
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


def step(number: int, change: float) -> SampleSet:
    """Return five blocks, ``number`` weeks after the baseline."""
    return sample_set(measured(5, change, 10 + number, day=10 + 5 * number))


def test_a_reason_is_needed(store: BaselineStore) -> None:
    with pytest.raises(InputError, match="--reason"):
        take(store, step(0, 0), replace(REQUEST, reason=" "))


def test_blocks_that_pass_extend_the_baseline(store: BaselineStore) -> None:
    accepted = take(store, step(0, 0))
    assert not accepted.starts
    assert len(accepted.baseline.current.blocks) == 15
    assert not accepted.is_thin


def test_better_blocks_start_a_new_baseline(store: BaselineStore) -> None:
    accepted = take(store, step(0, -0.05))
    assert accepted.starts
    assert len(accepted.baseline.current.blocks) == 5
    assert len(accepted.baseline.series.blocks) == 15


def test_worse_blocks_are_refused_and_nothing_is_written(store: BaselineStore, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    with pytest.raises(InputError, match="regressed against the oldest baseline of 10"):
        take(store, step(0, 0.03))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before


def test_a_slow_ratchet_is_refused(store: BaselineStore) -> None:
    taken = 0
    with pytest.raises(InputError, match="oldest"):
        for number in range(10):
            take(store, step(number, 0.003 * (number + 1)))
            taken += 1
    # a step of 0.3 % passes, and all of them together do not get beyond the margin of 1 %
    assert 1 <= taken <= 3


def test_a_ratchet_of_improvements_and_steps_back_is_measured_from_the_oldest(store: BaselineStore) -> None:
    take(store, step(0, -0.02))
    take(store, step(1, -0.017))
    with pytest.raises(InputError, match="oldest"):
        take(store, step(2, 0.012))


def test_a_change_that_somebody_answers_for_is_a_file(store: BaselineStore, tmp_path: Path) -> None:
    accepted = take(store, step(0, 0.03), replace(REQUEST, commit="abc123"))
    assert accepted.starts
    (path,) = tmp_path.rglob("walk.*-abc123.ack.json")
    found = read_json(path)
    check_document(found, path, FORMAT, VERSION, "acknowledgement")
    assert (found["by"], found["reason"], found["commit"]) == ("somebody", "because", "abc123")
    assert found["change"] == pytest.approx(0.03, abs=0.003)
    # from there on it is the oldest
    take(store, step(1, 0.03))
    with pytest.raises(InputError, match="oldest"):
        take(store, step(2, 0.05))


def test_a_new_release_may_begin_where_the_last_one_ended(store: BaselineStore) -> None:
    take(store, step(0, 0.003))
    take(store, step(1, 0.003), replace(REQUEST, release="11"))
    with pytest.raises(InputError, match="oldest baseline of 11"):
        take(store, step(2, 0.03), replace(REQUEST, release="11"))


def test_blocks_are_accepted_once(store: BaselineStore) -> None:
    with pytest.raises(InputError, match="in the baseline, too"):
        take(store, sample_set(measured(10)))


def test_few_blocks_make_a_thin_baseline(tmp_path: Path) -> None:
    assert take(BaselineStore(tmp_path), sample_set(measured(4))).is_thin


def test_raw_samples_are_kept_where_wanted(tmp_path: Path) -> None:
    store, samples = BaselineStore(tmp_path / "baselines"), sample_set(measured(2))
    list(write(store, accept(store, samples, REQUEST, Policy()), samples, REQUEST, tmp_path / "raw"))
    assert len(list((tmp_path / "raw").iterdir())) == 2
