"""What the plan ``gate`` tells fits one screen: verdicts, what became worse, the sum of the others, the next step."""

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.unit.gate.documents import MACHINE, levels_of, rows_of, sample_set, series_of

from hugepage_gate.compare_suites import Terms, baseline_from_samples, compare
from hugepage_gate.comparison import Comparison, as_json, read_comparison
from hugepage_gate.environment import Difference
from hugepage_gate.gate_policy import Policy
from hugepage_gate.samples import Verdict
from hugepage_qa.cases.result import Result
from hugepage_qa.cases.result import Verdict as Outcome
from hugepage_qa.errors import InputError
from hugepage_qa.report.comparison_screen import print_screen
from hugepage_qa.report.gate_run import GateUser, print_gate_run
from hugepage_qa.report.gate_tables import render_markdown
from hugepage_qa.report.next_step import Ways, next_step

WAYS = Ways("ACCEPT=WHY", "BLOCKS=4", "samples")


def suite(name: str, metrics: int, noise: float, worse: Sequence[int] = ()) -> Comparison:
    """Return the comparison of ``metrics`` whose blocks differ by ``noise``; those that are ``worse`` are 50 % so.

    Nobody recorded a host, of which there is a long note.
    """
    terms = Terms(Policy())

    def side(blocks: int, day: int, change: float) -> Any:
        series = []
        for place in range(metrics):
            levels = levels_of(blocks, change * (place in worse), 1000 * day + place, noise)
            rows = rows_of(levels, place + day, samples=5)
            series.append(series_of(rows, f"{name}-first-touch-{place:02} [shp-2M]", day, unit="ms/GiB"))
        return sample_set(*series, suite=name, environment={**MACHINE, "load": 0.4204 + day, "uptime": day})

    return compare(baseline_from_samples(side(10, 0, 0.0), Policy()), side(3, 20, 0.5), terms)


@pytest.fixture(scope="module")
def noisy() -> list[Comparison]:
    """Three suites of a machine that is as noisy as they get."""
    return [suite("page-access", 33, 0.04, [7, 9]), suite("sysbench-memory", 7, 0.3), suite("pgbench", 7, 0.08)]


def screen(comparisons: Sequence[Comparison], width: int = 80, height: int = 24, step: str = "") -> list[str]:
    """Return the lines of the console, as a terminal folds them."""
    console = Console(width=width, height=height, file=io.StringIO())
    print_screen(console, comparisons, "build/*.html", step, 3)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def lines_on(shown: Sequence[str], width: int) -> int:
    return sum(max(1, -(-len(line) // width)) for line in shown)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 40), (200, 25)])
def test_a_noisy_machine_fits_one_screen(noisy: list[Comparison], width: int, height: int) -> None:
    shown = screen(noisy, width, height, "a step")
    assert lines_on(shown, width) <= height - 3
    text = "\n".join(shown)
    assert shown[0].startswith("regressed  page-access: 2 of 33: ")
    assert [line.split(":")[0] for line in shown[1:3]] == ["undecided  sysbench-memory", "undecided  pgbench"]
    rows = [line for line in shown if line.startswith("regressed ") and "[shp-2M]" in line and " ms/GiB  " in line]
    assert len(rows) == 2
    # a sum for all suites, and where each metric is
    assert text.count(" metrics are blind at 1.0%: the best sees ") == 1
    assert "every metric: build/*.html" in text
    assert shown[-1] == "next: a step"
    # what is the same of all suites is told once
    assert text.count("load: 0.4204 in the baseline") == 1


def test_the_worst_rows_stay_where_not_all_fit() -> None:
    many = [suite("page-access", 60, 0.001, range(50))]
    for height in (24, 40):
        shown = screen(many, height=height)
        assert lines_on(shown, 80) <= height - 3
        rows = sum(" ms/GiB  " in line for line in shown)
        assert rows >= 3
        assert f"and {50 - rows} more" in shown
    assert sum(" ms/GiB  " in line for line in screen(many, height=5)) == 3


def test_suites_of_which_the_same_is_true_have_one_line() -> None:
    one = Comparison("page-access", "b", "n", Verdict.NOT_COMPARABLE, "no baseline in b; " + "word " * 30)
    shown = screen([one, replace(one, suite="pgbench")])
    assert shown == [f"not-comparable  page-access, pgbench: {one.reason}"]


def test_nothing_is_lost_in_the_files(noisy: list[Comparison], tmp_path: Path) -> None:
    for one in noisy:
        markdown = render_markdown(one).replace("\\", "")
        assert all(result.name in markdown for result in one.results if result.verdict is not Verdict.PASS)
        assert all(note in markdown for note in one.notes)
        file = tmp_path / "one.json"
        file.write_text(json.dumps(as_json(one)))
        assert read_comparison(file) == one


def test_a_comparison_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    file.write_text("{}")
    with pytest.raises(InputError, match=r"one\.json: .*compare these samples again"):
        read_comparison(file)


def run_of(comparisons: Sequence[Comparison], data: Path) -> list[Result]:
    """Return the results of a check in ``data``, with a metric each that is blind."""
    (data / "logs").mkdir(parents=True)
    (data / "samples").mkdir()
    results = []
    for number, one in enumerate(comparisons):
        logs = tuple(data / "logs" / f"{number}-{one.suite}{suffix}" for suffix in (".md", ".json", ".html"))
        for log in logs:
            log.write_text(json.dumps(as_json(one)))
        results.append(Result(f"/gate/{one.suite}", Outcome.SKIP, logs=logs))
        results.append(Result(f"/gate/{one.suite}/m/level", Outcome.SKIP, ("blind",)))
    return results


def test_a_run_is_told_from_its_files(noisy: list[Comparison], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "build" / "qa" / "gate"
    results = run_of(noisy, kept / "run" / "data")
    missing = Result("/gate/pgbench-shp-1G/measured", Outcome.SKIP, ("not measured: no pages",))
    console = Console(width=80, height=24, file=io.StringIO())
    for _ in range(2):
        assert print_gate_run(console, [*results, missing], GateUser(kept, "a", "l", "here"), 4) == [missing]
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "every metric: build/qa/gate/*.html\n" in text
    assert " gate accept build/qa/gate/samples/page-access.json --baselines here --reason " in text
    assert (kept / "samples").resolve() == kept / "run" / "data" / "samples"
    assert {path.name for path in kept.glob("pgbench.*")} == {"pgbench.md", "pgbench.json", "pgbench.html"}


def test_a_run_without_a_comparison_is_told_by_its_results(tmp_path: Path) -> None:
    console = Console(file=io.StringIO())
    results = [Result("/gate", Outcome.ERROR, ("broken",))]
    assert print_gate_run(console, results, GateUser(tmp_path, "a", "l"), 4) is results
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]


def step(*comparisons: Comparison, look: str = WAYS.look) -> str:
    return next_step(comparisons, replace(WAYS, look=look))


@pytest.mark.parametrize(
    ("verdict", "kinds", "told"),
    [
        (Verdict.NOT_COMPARABLE, [], "ACCEPT=WHY measures a first baseline and accepts it"),
        (
            Verdict.NOT_COMPARABLE,
            ["soft", "hard"],
            "undo what differs; or ACCEPT=WHY measures a baseline of this set-up",
        ),
        (Verdict.NOT_COMPARABLE, ["subject"], "undo what differs, or measure it once and compare with gate compare"),
        (
            Verdict.REGRESSED,
            [],
            "look at the commit; to answer for it: hugepage-qa gate accept samples/walk.json --",
        ),
        (Verdict.DISTURBED, [], "measure again while nothing else uses the machine"),
        (
            Verdict.BASELINE_THIN,
            [],
            "add these blocks to the baseline and measure again: hugepage-qa gate accept ",
        ),
        (Verdict.BASELINE_STALE, [], "add these blocks to the baseline and measure again: "),
        (Verdict.PASS, ["soft"], ""),
        (Verdict.IMPROVED, [], ""),
    ],
)
def test_what_to_do_next(verdict: Verdict, kinds: list[str], told: str) -> None:
    differences = tuple(Difference("key", kind, 1, 2) for kind in kinds)
    found = step(Comparison("walk", "b", "n", verdict, "", differences=differences))
    assert found.startswith(told)
    assert bool(found) == bool(told)


def test_more_sessions_are_asked_for_only_where_they_can_decide(noisy: list[Comparison]) -> None:
    blind = noisy[1]
    assert blind.verdict is Verdict.UNDECIDED
    results = [replace(one, verdict=Verdict.BLIND, more_blocks=0, more_baseline=0) for one in blind.results]

    def of(few: int, **facts: Any) -> Comparison:
        return replace(blind, results=tuple(replace(one, **facts) for one in results[:few]) + tuple(results[few:]))

    assert step(of(0)).startswith("a quieter machine, or larger margins")
    assert step(of(3, more_blocks=1)).startswith("a quieter machine"), "four of seven stay blind"
    assert step(of(4, more_blocks=1)) == "BLOCKS=4 looks once more, at more sessions"
    assert step(of(4, more_blocks=1, more_baseline=9)).startswith("a larger baseline would decide; add to it")
    undecided = of(1, verdict=Verdict.UNDECIDED, more_blocks=1)
    assert step(undecided) == "BLOCKS=4 looks once more, at more sessions"
    assert step(undecided, look="").startswith("measure again: ")


def test_nothing_is_accepted_but_what_a_baseline_lacks(noisy: list[Comparison]) -> None:
    """What is undecided may be worse: it becomes no baseline by the way."""
    one = noisy[1]

    def of(suite: str, **facts: Any) -> Comparison:
        return replace(one, suite=suite, results=tuple(replace(each, **facts) for each in one.results))

    known = of("known", verdict=Verdict.UNDECIDED)
    lacking = of("new", verdict=Verdict.UNDECIDED, baseline_blocks=0)
    assert step(known, lacking) == (
        "accept a baseline of what has none and measure again: hugepage-qa gate accept samples/new.json --reason WHY"
    )
    noise = of("noise", verdict=Verdict.BLIND, more_blocks=0, more_baseline=0)
    small = of("small", verdict=Verdict.BLIND, more_blocks=1, more_baseline=9)
    assert step(noise, small).endswith(" measure again: hugepage-qa gate accept samples/small.json --reason WHY")


def test_one_suite_is_accepted_at_a_time() -> None:
    one = Comparison("walk", "b", "n", Verdict.BASELINE_THIN, "")
    told = step(one, replace(one, suite="run"), replace(one, suite="good", verdict=Verdict.PASS))
    assert told.endswith(": hugepage-qa gate accept samples/walk.json --reason WHY; likewise run")
