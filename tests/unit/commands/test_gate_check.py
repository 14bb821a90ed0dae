"""``hugepage-qa gate check``: first baseline, looks, verdicts; samples are made up, nothing is measured."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result

pytest.importorskip("matplotlib")

from hugepage_qa.commands import gate_check
from hugepage_qa.commands.gate_judging import accept_command
from hugepage_qa.commands.gate_measure import Measured, MeasureOptions
from hugepage_qa.errors import InputError

CONFIGURATIONS = ("4k", "thp")


def document(sessions: int, name: str, slow: float) -> dict[str, Any]:
    """Return samples whose blocks vary by 0.1 %."""

    def block(session: int, order: int, configuration: str) -> dict[str, Any]:
        generator = np.random.default_rng([session, order, *name.encode()])
        level = slow if configuration == "thp" else 1.0
        return {
            "order": order,
            "session": f"{name}-{session}",
            "started": f"2026-11-22T10:{session:02}:{order:02}Z",
            "boot": "b1",
            "samples": (level * generator.normal(1, 0.001) * generator.normal(1, 0.0001, 5)).tolist(),
        }

    orders = {"4k": (0, 3), "thp": (1, 2)}
    return {
        "format": "hugepage-qa samples",
        "version": 1,
        "suite": "made-up",
        "environment": {"arch": "x86_64", "cpu_model": "made up"},
        "subject": {"kernel": "6.12.1"},
        "reference": "thp",
        "series": [
            {
                "metric": "time",
                "unit": "s",
                "direction": "lower",
                "configuration": one,
                "blocks": [block(session, order, one) for session in range(sessions) for order in orders[one]],
            }
            for one in CONFIGURATIONS
        ],
    }


Checked = tuple[Result, list[int]]
Check = Callable[..., Checked]


def run_check(place: Path, name: str, slow: float = 1.0, error: Exception | None = None, **environment: str) -> Checked:
    """Return the result of the check ``name`` in ``place``, and after how many sessions it was looked."""
    looked = []

    def take(options: MeasureOptions) -> Measured:
        if error is not None:
            raise error
        looked.append(options.sessions)
        options.output.mkdir(parents=True, exist_ok=True)
        file = options.output / "made-up.json"
        label = f"{name}-{options.output.name}"
        file.write_text(
            json.dumps(document(options.sessions, label, slow if options.output.name == "samples" else 1.0))
        )
        return Measured((file,), {"other": "missing"}, ())

    data = place / name
    data.mkdir(exist_ok=True)
    told = {"HUGEPAGE_QA_BASELINES": str(place / "baselines"), "TMT_TEST_DATA": str(data), **environment}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate_check, "take_samples", take)
        return CliRunner().invoke(gate_check.command, [], env=told, catch_exceptions=False), looked


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Checked]:
    """Return where a first baseline was accepted, and the check that did it."""
    place = tmp_path_factory.mktemp("accepted")
    return place, run_check(place, "first", HUGEPAGE_QA_ACCEPT="first baseline")


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Return check(name, slow=..., **environment) in ``tmp_path``."""
    return partial(run_check, tmp_path)


@pytest.fixture
def accepted(first: tuple[Path, Checked], tmp_path: Path) -> None:
    """Let ``tmp_path`` have the first baseline."""
    shutil.copytree(first[0] / "baselines", tmp_path / "baselines")


def results(directory: Path) -> dict[str, str]:
    entries = yaml.safe_load((directory / "results.yaml").read_text())
    return {entry["name"]: entry["result"] for entry in entries}


def test_a_first_baseline_then_a_verdict(first: tuple[Path, Checked]) -> None:
    place, (result, looked) = first
    assert (result.exit_code, looked) == (0, [1, 5, 1]), result.output
    assert results(place / "first")["/made-up"] == "pass"
    assert list((place / "baselines").glob("x86_64/*/made-up/*.json"))
    assert list((place / "first" / "baselines").glob("x86_64/*/made-up/*.json")), "what CI fetches"
    logs = {path.suffix for path in (place / "first" / "logs").iterdir()}
    assert logs == {".html", ".json", ".md"}


def test_without_a_baseline_nothing_is_decided(check: Check, tmp_path: Path) -> None:
    result, looked = check("none")
    assert (result.exit_code, looked) == (2, [1])
    assert results(tmp_path / "none") == {"/made-up": "skip", "/other/measured": "skip"}
    assert "HUGEPAGE_QA_ACCEPT" in (tmp_path / "none" / "results.yaml").read_text()
    assert 'next: HUGEPAGE_QA_ACCEPT="first baseline" measures a first baseline' in result.output
    assert not (tmp_path / "baselines").exists()


@pytest.mark.usefixtures("accepted")
def test_a_slow_down(check: Check, tmp_path: Path) -> None:
    result, looked = check("slow", slow=1.05)
    assert (result.exit_code, looked) == (1, [1, 2])
    found = results(tmp_path / "slow")
    assert (found["/made-up/time/thp/level"], found["/made-up/time/4k/level"]) == ("fail", "pass")
    # the next step can be done as it is told
    _, _, step = result.output.partition("to answer for it: hugepage-qa gate accept ")
    accepted = CliRunner().invoke(accept_command, step.replace("NAME", "time").split(), catch_exceptions=False)
    assert accepted.exit_code == 2, accepted.output
    assert "time [thp]" in accepted.output


@pytest.mark.usefixtures("accepted")
def test_what_is_undecided_tells_how_to_look_once_more(check: Check) -> None:
    result, looked = check("slow", slow=1.05, HUGEPAGE_QA_BLOCKS="1")
    assert (result.exit_code, looked) == (2, [1])
    assert "next: HUGEPAGE_QA_BLOCKS=2 looks once more" in result.output
    result, looked = check("slower", slow=1.05)
    assert "looks once more" not in result.output


@pytest.mark.usefixtures("accepted")
def test_a_baseline_is_not_accepted_twice(check: Check, tmp_path: Path) -> None:
    before = {path: path.read_text() for path in (tmp_path / "baselines").glob("**/*.json")}
    _, looked = check("second", slow=1.05, HUGEPAGE_QA_ACCEPT="whatever comes")
    assert looked == [1, 2]
    assert {path: path.read_text() for path in (tmp_path / "baselines").glob("**/*.json")} == before


@pytest.mark.usefixtures("accepted")
def test_more_boots_may_be_asked_for(check: Check) -> None:
    result, _ = check("second", HUGEPAGE_QA_MIN_BOOTS="2")
    assert result.exit_code == 2
    assert "baseline-thin" in result.output


def test_what_is_wrong_is_a_result(check: Check, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a machine in use"):
        check("wrong", error=InputError("a machine in use"))
    assert results(tmp_path / "wrong") == {"/": "error"}
    assert "a machine in use" in (tmp_path / "wrong" / "results.yaml").read_text()
