"""The life of a baseline over thirty sessions, by the command line alone: there is always a way on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner, Result
from tests.unit.gate.documents import MACHINE, document, series_of

from hugepage_qa.commands.gate import gate

METRICS = tuple(f"m{place}" for place in range(6))
NOISY = "noisy"
IMPROVED, REGRESSED, UPDATED = 10, 16, 23
SESSIONS = 30


class Team:
    """A performance team: each night a session, which is compared, and accepted where nothing speaks against it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.baselines = directory / "baselines"

    def measure(self, night: int) -> Path:
        """Return the samples of one session."""
        random = np.random.default_rng(night)
        series = []
        for metric in (*METRICS, NOISY):
            level = 100.0
            if metric == "m1" and night >= IMPROVED:
                level *= 0.95
            if metric == "m2" and night >= REGRESSED:
                level *= 1.04
            between = 0.06 if metric == NOISY else 0.0015
            samples = level * np.exp(random.normal(0, between) + random.normal(0, 0.003, 10))
            block = {"session": f"night{night}", "host": "lab7"}
            series.append(series_of([samples.tolist()], metric, night, block))
        machine: dict[str, Any] = {**MACHINE, "hostname": "lab7", "microcode": "2" if night >= UPDATED else "1"}
        path = self._directory / f"night{night}.json"
        path.write_text(json.dumps(document(*series, environment=machine)))
        return path

    def gate(self, *words: object) -> Result:
        """Run a command of the gate on the baselines."""
        arguments = [str(word) for word in (*words, "--baselines", self.baselines)]
        return CliRunner(env={"COLUMNS": "200"}).invoke(gate, arguments, catch_exceptions=False)


def test_a_baseline_lives_through_thirty_sessions(tmp_path: Path) -> None:
    team = Team(tmp_path)
    verdicts: dict[int, int] = {}
    improved: list[Path] = []
    slower: list[Path] = []
    for night in range(SESSIONS):
        waive = ("--waive", "microcode=update of January") if night == UPDATED else ()
        session = team.measure(night)
        if night >= 5:
            verdicts[night] = team.gate("compare", *(slower if slower else []), session, *waive).exit_code
        accepted = team.gate("accept", session, "--reason", "nightly", *waive)
        assert accepted.exit_code in (0, 1, 2)
        improved += [session] * ("m1: not accepted yet" in accepted.stdout)
        slower += [session] * ("m2: refused" in accepted.stdout)
        if len(improved) == 5:
            done = team.gate("accept", *improved, "--reason", "faster since the fix", "--metric", "m1")
            assert "m1: 5 blocks, starts a baseline of 5" in done.stdout
            improved = []
        if len(slower) == 5:
            answered = ("--acknowledge", "abc123", "--metric", "m2")
            done = team.gate("accept", *slower, "--reason", "the price of a fix", *answered)
            assert "m2: 5 blocks, starts a baseline of 5" in done.stdout
            slower = []
    assert not improved
    assert not slower
    # quiet nights pass, or want one session more, and the noisy metric never stands in the way
    quiet = [verdicts[night] for night in verdicts if not REGRESSED <= night < REGRESSED + 5]
    assert set(quiet) <= {0, 2}
    assert quiet.count(0) > 2 * quiet.count(2)
    assert verdicts[REGRESSED + 1] == 1
    last = team.gate("compare", team.measure(SESSIONS), "--json")
    results = json.loads(last.stdout)["results"]
    assert min(one["baseline_blocks"] for one in results) >= 5
    assert len(list(team.baselines.rglob("*.ack.json"))) == 1
    assert len(team.gate("history", "m2").stdout.splitlines()) > SESSIONS
