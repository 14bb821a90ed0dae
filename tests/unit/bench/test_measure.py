"""A measurement goes on where it was killed, and never mixes what does not belong together."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.bench.made_up import BACKINGS, ENVIRONMENT, MadeUp, make_plan, run

from hugepage_gate.block_summary import summarise_set
from hugepage_gate.contrasts import find_contrasts, is_balanced
from hugepage_gate.sample_format import parse_samples
from hugepage_qa.bench.backing import Backing
from hugepage_qa.bench.measurement import Measurement, sample_document
from hugepage_qa.bench.workload import Cell, Metric, Unavailable
from hugepage_qa.errors import InputError


def kill_after(blocks: int) -> MadeUp:
    """Return a workload that is killed in the block after so many."""

    def act(_backing: Backing) -> None:
        if len(workload.ran) == blocks:
            raise KeyboardInterrupt

    workload = MadeUp(act)
    return workload


def test_a_killed_measurement_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed, second, whole = kill_after(4), MadeUp(), MadeUp()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "m", killed, make_plan(), monkeypatch)
    assert len(Measurement(tmp_path / "m").blocks()) == 4
    run(tmp_path / "m", second, make_plan(), monkeypatch)
    run(tmp_path / "whole", whole, make_plan(), monkeypatch)
    assert killed.ran + second.ran == whole.ran
    assert len(whole.ran) == 2 * 2 * len(BACKINGS)


def test_more_sessions_may_be_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, whole = MadeUp(), MadeUp(), MadeUp()
    run(tmp_path / "m", first, make_plan(sessions=1), monkeypatch)
    run(tmp_path / "m", second, make_plan(sessions=3), monkeypatch)
    run(tmp_path / "whole", whole, make_plan(sessions=3), monkeypatch)
    assert first.ran + second.ran == whole.ran


def test_a_session_that_a_reboot_cut_in_two_is_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, kill_after(8), make_plan(), monkeypatch)
    after = MadeUp()
    measurement, _ = run(tmp_path, after, make_plan(), monkeypatch, boot="boot-2")
    boots = {cell.session: {block.boot} for cell, block in measurement.blocks().items()}
    assert boots == {1: {"boot-1"}, 2: {"boot-2"}}
    assert len(after.ran) == 2 * len(BACKINGS)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"profile": "reference"}, "profile"),
        ({"configurations": {"made-up": ("thp",)}}, "configurations"),
        ({"stand_ins": {"thp": "4k"}}, "stand_ins"),
        ({"environment": {**ENVIRONMENT, "cpu_model": "other"}}, "cpu_model"),
        ({"environment": {**ENVIRONMENT, "nr_hugepages.2M": 4}}, "nr_hugepages"),
        ({"subject": {"kernel": "6.12.2"}}, "the kernel"),
    ],
)
def test_another_measurement_in_the_same_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], named: str
) -> None:
    run(tmp_path, MadeUp(), make_plan(), monkeypatch)
    with pytest.raises(InputError, match=f"{named}.*name another directory"):
        run(tmp_path, MadeUp(), make_plan(**changes), monkeypatch)


def test_soft_facts_may_change_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, MadeUp(), make_plan(), monkeypatch)
    again = MadeUp()
    run(tmp_path, again, make_plan(environment={**ENVIRONMENT, "load": 7.0}), monkeypatch)
    assert again.ran == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda text: text.replace('"boot-1"', "7"),
        lambda text: text.replace("5.0", "NaN"),
        lambda text: text.replace("5.0", "-5.0"),
    ],
)
def test_a_damaged_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: "object") -> None:
    measurement, _ = run(tmp_path, MadeUp(), make_plan(), monkeypatch)
    file = sorted(tmp_path.glob("blocks/*.json"))[0]
    file.write_text(damage(file.read_text()))  # type: ignore[operator]
    with pytest.raises(InputError, match="remove the file"):
        measurement.blocks()


def test_a_plan_of_the_future(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, MadeUp(), make_plan(), monkeypatch)
    plan = tmp_path / "plan.json"
    plan.write_text(plan.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(InputError, match="version"):
        run(tmp_path, MadeUp(), make_plan(), monkeypatch)


def test_the_gate_understands_the_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = MadeUp()
    measurement, plan = run(tmp_path, workload, make_plan(), monkeypatch)
    document = sample_document(plan, workload, measurement.blocks().values())
    samples = parse_samples(json.loads(json.dumps(document)), "m")
    assert (samples.suite, samples.reference) == ("made-up", "thp")
    assert samples.environment["benchmark.parameters.size"] == 1
    assert samples.environment["benchmark.version"] == "1"
    assert samples.subject == {"kernel": "6.12.1", "database": "3"}
    assert {one.name for one in samples} == {
        f"{metric} [{one.name}]" for metric in ("made-up-time", "made-up-faults") for one in BACKINGS
    }
    assert {len(one.blocks) for one in samples} == {4}
    assert {len({block.session for block in one.blocks}) for one in samples} == {2}
    margins = {one.metric: 0.01 for one in samples}
    series = {key: one for key, one in summarise_set(samples, margins).items() if key[0] == "made-up-time"}
    by_name = {name: one for (_, name), one in series.items()}
    assert all(is_balanced(one, by_name) for one in find_contrasts(list(by_name), "thp"))


def test_only_whole_sessions_become_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = kill_after(8)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, workload, make_plan(), monkeypatch)
    measurement = Measurement(tmp_path)
    blocks = list(measurement.blocks().values())
    document = sample_document(make_plan(), workload, blocks)
    assert document is not None
    assert {block["session"][-2:] for one in document["series"] for block in one["blocks"]} == {"-1"}
    assert sample_document(make_plan(), workload, blocks[:5]) is None


def test_a_configuration_that_cannot_be_measured_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(backing: Backing) -> None:
        if backing.name == "shp-2M":
            raise Unavailable("no pages")

    workload = MadeUp(act)
    measurement, plan = run(tmp_path, workload, make_plan(), monkeypatch)
    assert plan.skipped == {"made-up [shp-2M]": "no pages"}
    document = sample_document(plan, workload, measurement.blocks().values())
    assert document is not None
    assert {one["configuration"] for one in document["series"]} == {"4k", "thp"}


def test_a_stand_in_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = MadeUp()
    measurement, plan = run(tmp_path, workload, make_plan(stand_ins={"thp": "4k"}), monkeypatch)
    assert "thp" not in workload.ran
    assert workload.ran.count("4k") == 2 * workload.ran.count("shp-2M")
    document = sample_document(plan, workload, measurement.blocks().values())
    assert document is not None
    assert document["subject"]["stand_ins"] == "thp on 4k"


def test_a_metric_that_this_machine_cannot_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = MadeUp()
    measurement, plan = run(tmp_path, workload, make_plan(), monkeypatch)
    workload.metrics = (*workload.metrics, Metric("made-up-misses", "misses", "lower"))
    document = sample_document(plan, workload, measurement.blocks().values())
    assert document is not None
    assert {one["metric"] for one in document["series"]} == {"made-up-time", "made-up-faults"}


def test_what_runs_beside_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside: list[str] = []

    @contextmanager
    def disturb(cell: Cell) -> Iterator[None]:
        beside.append(f"{cell.order} begins")
        yield
        beside.append(f"{cell.order} ends")

    workload = MadeUp(lambda _backing: beside.append("runs"))
    run(tmp_path, workload, make_plan(sessions=1), monkeypatch, beside=disturb)
    assert beside[:3] == ["0 begins", "runs", "0 ends"]
    assert beside.count("runs") == 2 * len(BACKINGS)


def test_the_sentinel_runs_before_and_after_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    workload = MadeUp(lambda _backing: ran.append("block"))
    times = iter(range(1, 1000))

    def sentinel() -> float:
        ran.append("sentinel")
        return next(times)

    measurement, _plan = run(tmp_path, workload, make_plan(sessions=1), monkeypatch, sentinel=sentinel)
    assert ran[:3] == ["sentinel", "block", "sentinel"]
    first = min(measurement.blocks().values(), key=lambda block: block.cell.order)
    assert (first.sentinel, first.sentinel_after) == (1, 2)


def test_a_program_that_changed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = MadeUp()
    run(tmp_path, workload, make_plan(sessions=1), monkeypatch)
    workload.version = "2"
    measurement, plan = run(tmp_path, workload, make_plan(), monkeypatch)
    with pytest.raises(InputError, match="has changed"):
        sample_document(plan, workload, measurement.blocks().values())
