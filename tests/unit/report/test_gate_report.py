"""Reports on a comparison: the verdict comes first, and nothing that somebody wrote becomes markup."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console
from tests.unit.gate.documents import MACHINE, levels_of, measured, rows_of, sample_set, series_of
from tests.unit.gate.test_contrasts import ABBA, interleaved

from hugepage_gate.block_summary import summarise_set
from hugepage_gate.compare_suites import Terms, baseline_from_samples, compare, margins
from hugepage_gate.comparison import Interval
from hugepage_gate.gate_policy import Policy
from hugepage_gate.samples import SampleSet, Verdict
from hugepage_qa.report.comparison_screen import picture, print_comparison
from hugepage_qa.report.gate_page import GatePage, make_page
from hugepage_qa.report.gate_report import render_html
from hugepage_qa.report.gate_tables import render_markdown, sum_up

EVIL = "<script>alert(1)</script>|*x*"


def page(baseline: SampleSet, new: SampleSet) -> GatePage:
    old = baseline_from_samples(baseline, Policy())
    return make_page(compare(old, new, Terms()), old, new, summarise_set(new, margins(new, Policy())))


@pytest.fixture(scope="module")
def advantage() -> GatePage:
    """THP against 1 GiB pages, whose advantage has shrunk."""
    factors = {"thp": 1.0, "shp": 0.97}
    baseline = interleaved(factors, "thp", 8, 0, ABBA)
    return page(baseline, interleaved({**factors, "shp": 0.99}, "thp", 3, 10, ABBA, seed=2))


def text_of(shown: GatePage, width: int = 250) -> str:
    console = Console(width=width, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115 - as long as the console
    print_comparison(console, shown.comparison)
    return console.export_text()


def test_the_verdict_comes_first(advantage: GatePage) -> None:
    assert text_of(advantage).startswith("regressed")
    assert render_markdown(advantage.comparison).startswith("## regressed")
    html = render_html(advantage)
    body = re.sub(r"<[^>]*>", " ", html[html.index("<body>") :])
    assert body.split()[0] == "regressed"


def test_html_stands_alone_and_is_well_formed(advantage: GatePage) -> None:
    html = render_html(advantage)
    assert html.count("<svg") == 2
    assert "http" not in re.sub(r'(xmlns(:\w+)?|rdf:resource)="[^"]*"|<metadata>.*?</metadata>', "", html, flags=re.S)
    for figure in re.findall(r"<svg.*?</svg>", html, flags=re.S):
        ElementTree.fromstring(figure)  # noqa: S314 - our own
    assert render_html(advantage) == html


def test_every_metric_is_told_in_every_form(advantage: GatePage) -> None:
    for text in (text_of(advantage), render_html(advantage), render_markdown(advantage.comparison).replace("\\", "")):
        for one in advantage.comparison.results:
            assert one.name in text
        assert "better" in text


def test_names_are_no_markup() -> None:
    facts: dict[str, Any] = {"metric": f"a{EVIL.replace('/', '')}", "unit": "[red]s"}
    environment = {**MACHINE, "bios": EVIL}
    baseline = sample_set(measured(6, **facts), environment={**MACHINE, "bios": "1"})
    shown = page(baseline, sample_set(measured(3, seed=2, day=20, **facts), environment=environment))
    assert "<script" not in render_html(shown)
    assert "<script" not in render_markdown(shown.comparison)
    assert "|*" not in render_markdown(shown.comparison)
    assert EVIL in text_of(shown).replace("\n", "")


def test_what_was_not_compared_has_a_report_too() -> None:
    shown = page(sample_set(measured(6)), sample_set(measured(3, seed=2), environment={**MACHINE, "cores": 4}))
    html = render_html(shown)
    assert "not-comparable" in html
    assert "cores" in html
    assert "cores" in render_markdown(shown.comparison)
    assert "cores" in text_of(shown)


def test_constant_samples_and_a_missing_baseline_can_be_drawn() -> None:
    baseline = sample_set(measured(6))
    new = sample_set(measured(1, seed=2, day=9, samples=1), measured(3, seed=3, metric="new"))
    assert render_html(page(baseline, new)).count("<svg") == 3


def test_a_count_of_nothing_can_be_drawn() -> None:
    count: dict[str, Any] = {"kind": "count", "unit": "kB"}

    def huge(usual: float) -> SampleSet:
        rows = {"4k": usual, "thp": 1024.0}
        series = [series_of([[level]] * 6, configuration=name, **count) for name, level in rows.items()]
        return sample_set(*series, reference="4k")

    assert "<svg" in render_html(page(huge(0.0), huge(0.0)))


def test_the_picture_of_an_interval() -> None:
    line = picture(Interval(0.0, -0.005, 0.005), 0.01)
    assert len(line) == 31
    assert line.index("o") == 15
    assert line[20] == ")"
    assert line.strip().startswith("-")
    assert picture(Interval(9.0, -9.0, 99.0), 0.01).endswith("o")


@pytest.fixture(scope="module")
def hundred() -> GatePage:
    """A hundred metrics, of which one became slower and five cannot see their margin."""

    def samples(blocks: int, day: int, change: float) -> SampleSet:
        series = []
        for place in range(100):
            worse = change if place == 60 else 0.0
            between = 0.02 if place % 20 == 3 else 0.001
            levels = levels_of(blocks, worse, 1000 * day + place, between)
            series.append(series_of(rows_of(levels, place + day, samples=5), f"m{place:03}", day, unit="ms"))
        return sample_set(*series)

    return page(samples(8, 0, 0.0), samples(3, 20, 0.03))


@pytest.mark.parametrize("width", [80, 120, 250])
def test_a_hundred_metrics_fit_a_screen(hundred: GatePage, width: int) -> None:
    text = text_of(hundred, width)
    assert sum(1 + len(line) // width for line in text.splitlines()) <= 24
    verdict, row = (line for line in text.splitlines() if "m060" in line)
    assert verdict.startswith("regressed")
    assert re.match(r"regressed +\+2\.\d+% +\+2\.\d+% to \+3\.\d+% ", row)
    assert re.search(r" 100\.\d ms +102\.\d ms ", row)
    assert ("|" in row) == (width > 80)
    assert "pass: 9" in text
    assert re.search(r"blind at 1\.0% \(.*\): m\d+ sees \d+\.\d%, m\d+ sees ", text)


def test_a_hundred_metrics_are_few_lines_of_markdown(hundred: GatePage) -> None:
    assert len(render_markdown(hundred.comparison).splitlines()) <= 50


def test_all_of_them_are_shown_on_demand(hundred: GatePage) -> None:
    console = Console(width=250, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115 - as above
    print_comparison(console, hundred.comparison, shows_all=True)
    text = console.export_text()
    assert all(f"m{place:03}" in text for place in range(100))


def test_a_file_names_all_that_are_blind(hundred: GatePage) -> None:
    blind = [one for one in hundred.comparison.results if one.verdict is Verdict.BLIND]
    several = [replace(blind[0], metric=f"n{place}", reason=f"{place} more blocks") for place in range(30)]
    text = render_markdown(replace(hundred.comparison, results=tuple(several)))
    assert all(re.search(rf"\bn{place} sees ", text) for place in range(30))
    assert sum_up(several, "--all") == [
        "30 metrics are blind at 1.0%: the best sees "
        f"{blind[0].sees:.1%}, the worst {blind[0].sees:.1%}; more blocks would not help: larger margins, or less noise"
        "; see --all"
    ]


def test_what_helps_those_that_are_blind(hundred: GatePage) -> None:
    one = next(one for one in hundred.comparison.results if one.verdict is Verdict.BLIND)
    first = replace(one, sees=0.03, more_blocks=2, more_baseline=0)
    noisy = replace(one, sees=0.4, more_blocks=0, more_baseline=0)
    larger = replace(one, sees=0.05, more_blocks=1, more_baseline=12)
    told = {
        "2 more blocks would help it": [first],
        "2 more blocks would help 1 of them": [first, noisy],
        "2 more blocks and 12 more in the baseline would help all": [first, larger],
        "more blocks would not help: larger margins, or less noise": [noisy, noisy],
    }
    for help_, several in told.items():
        (line,) = sum_up(several, most_named=0)
        assert line.endswith(f"; {help_}")
    (line, other) = sum_up([first, noisy, replace(noisy, margin=0.02)], most_named=0)
    assert line.startswith("2 metrics are blind at 1.0%: the best sees 3.0%, the worst 40.0%; ")
    assert other.startswith("1 metric is blind at 2.0%: ")


def test_only_metrics_that_ask_for_a_look_have_pictures(hundred: GatePage) -> None:
    assert [one.metric for one in hundred.metrics] == ["m060"]
    assert render_html(hundred).count("<svg") == 2
