"""A comparison as one HTML file that needs nothing else: verdict first, then why. Needs matplotlib for its pictures.

The pictures are SVG inside the HTML.
"""

import io
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hugepage_gate.comparison import MetricResult
from hugepage_gate.samples import Verdict
from hugepage_qa.report.fill_template import fill_template
from hugepage_qa.report.gate_page import Configuration, GatePage, MetricPage
from hugepage_qa.report.gate_tables import MEANINGS, amount, percent, why


def render_html(page: GatePage) -> str:
    """Return the page as one HTML file."""
    comparison = page.comparison
    shown = [one for one in comparison.results if one.change is not None][:_MOST_INTERVALS]
    return fill_template(
        "comparison.html.j2",
        comparison=comparison,
        meaning=MEANINGS[comparison.verdict],
        # matplotlib escapes the texts in its pictures
        intervals=Markup(intervals_figure(shown)) if shown else "",  # noqa: S704
        metrics=[(one, Markup(metric_figure(one))) for one in page.metrics if comparison.results],  # noqa: S704
        environment=page.environment,
        subject=page.subject,
        percent=percent,
        amount=amount,
        why=why,
    )


#: colours that the colour-blind can tell apart
_COLOURS = {
    Verdict.PASS: "#117733",
    Verdict.IMPROVED: "#44aa99",
    Verdict.REGRESSED: "#cc3311",
}
_UNDECIDED = "#888888"
_CONFIGURATIONS = ("#0077bb", "#ee7733", "#009988", "#cc3311")

_MARGINS_SHOWN = 4
#: worst first
_MOST_INTERVALS = 40
_PERCENT = 100


def intervals_figure(results: Sequence[MetricResult]) -> str:
    """Return changes with their intervals against the margin, in margins, so that all fit on one axis."""
    figure = Figure(figsize=(8.5, 0.9 + 0.3 * len(results)), layout="constrained")
    axes = figure.add_subplot()
    axes.axvspan(1, _MARGINS_SHOWN, color="#cc3311", alpha=0.07)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.axvline(1, color="#cc3311", linewidth=0.8, linestyle="--")
    for place, one in enumerate(results):
        _draw_interval(axes, place, one)
    axes.set_yticks(range(len(results)), [one.name for one in results])
    axes.invert_yaxis()
    axes.set_xlim(-_MARGINS_SHOWN, _MARGINS_SHOWN)
    axes.set_xlabel("better  ←  change in margins (1 = the margin)  →  worse")
    _clean(axes)
    return _svg(figure)


def _draw_interval(axes: Axes, place: int, result: MetricResult) -> None:
    if result.change is None:
        return
    estimate, lower, upper = (
        float(np.clip(value / result.margin, -_MARGINS_SHOWN, _MARGINS_SHOWN))
        for value in (result.change.estimate, result.change.lower, result.change.upper)
    )
    colour = _COLOURS.get(result.verdict, _UNDECIDED)
    axes.plot([lower, upper], [place, place], color=colour, linewidth=2.5, solid_capstyle="round")
    axes.plot([estimate], [place], "o", color=colour, markersize=5)


def metric_figure(page: MetricPage) -> str:
    """Return means with their margins of error, blocks over time, histograms, and pairs of one session."""
    has_pairs = page.reference is not None and len(page.configurations) > 1
    panels = 4 if has_pairs else 3
    figure = Figure(figsize=(3.1 * panels, 2.9), layout="constrained")
    axes = figure.subplots(1, panels)
    _draw_means(axes[0], page)
    _draw_blocks(axes[1], page)
    _draw_histograms(axes[2], page)
    if has_pairs:
        _draw_pairs(axes[3], page)
    for one in axes:
        _clean(one)
    return _svg(figure)


def _draw_means(axes: Axes, page: MetricPage) -> None:
    tables = [one.table for one in page.configurations]
    places = range(len(tables))
    means, margins = [one.mean for one in tables], [one.honest_margin for one in tables]
    axes.bar(places, means, yerr=margins, color=_palette(len(tables)), capsize=4, width=0.6)
    axes.set_xticks(places, [_name(one) for one in page.configurations])
    # bars that start at 0 would hide a difference of 1 %
    reach = max([*margins, *(abs(mean - means[0]) for mean in means), means[0] / _PERCENT])
    axes.set_ylim(max(0.0, min(means) - 3 * reach), max(means) + 3 * reach)
    axes.set_title("mean, 99.99 % (axis cut)", fontsize=9)
    axes.set_ylabel(page.unit)


def _draw_blocks(axes: Axes, page: MetricPage) -> None:
    first = 0
    for one, colour in zip(page.configurations, _palette(len(page.configurations)), strict=True):
        first = max(first, len(one.baseline))
        axes.plot(range(len(one.baseline)), one.baseline, "o-", color=colour, markersize=3, linewidth=0.6, alpha=0.6)
    for one, colour in zip(page.configurations, _palette(len(page.configurations)), strict=True):
        axes.plot(range(first, first + len(one.new)), one.new, "D", color=colour, markersize=4, label=_name(one))
    axes.axvline(first - 0.5, color="black", linewidth=0.8, linestyle=":")
    axes.set_title("blocks: baseline, then new", fontsize=9)
    axes.set_xticks([])
    if len(page.configurations) > 1:
        axes.legend(fontsize=7, frameon=False)


def _draw_histograms(axes: Axes, page: MetricPage) -> None:
    for one, colour in zip(page.configurations, _palette(len(page.configurations)), strict=True):
        if len(one.table.edges) == len(one.table.histogram) + 1 and one.table.edges[0] < one.table.edges[-1]:
            axes.stairs(one.table.histogram, one.table.edges, color=colour, fill=True, alpha=0.45)
    axes.set_title("new samples", fontsize=9)
    axes.set_xlabel(page.unit, fontsize=8)


def _draw_pairs(axes: Axes, page: MetricPage) -> None:
    """Draw a line per session from the usual configuration to each other, as a change in percent."""
    usual = next(one for one in page.configurations if one.name == page.reference)
    others = [one for one in page.configurations if one is not usual]
    base = _by_session(usual)
    for place, other in enumerate(others, 1):
        for session, level in _by_session(other).items():
            # a count may be 0, and then nothing is a percentage of it
            if base.get(session):
                change = _PERCENT * (level / base[session] - 1)
                axes.plot([0, place], [0, change], "o-", color="#0077bb", markersize=3, linewidth=0.7, alpha=0.7)
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_xticks(range(len(others) + 1), [_name(one) for one in (usual, *others)])
    axes.set_title("pairs of one session", fontsize=9)
    axes.set_ylabel("difference, %", fontsize=8)


def _by_session(configuration: Configuration) -> dict[str, float]:
    levels: dict[str, list[float]] = {}
    for session, level in zip(configuration.sessions, configuration.new, strict=True):
        levels.setdefault(session, []).append(level)
    return {session: float(np.mean(found)) for session, found in levels.items()}


def _palette(count: int) -> list[str]:
    return [_CONFIGURATIONS[place % len(_CONFIGURATIONS)] for place in range(count)]


def _name(configuration: Configuration) -> str:
    return configuration.name.replace(",", "\n") or "new"


def _clean(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def _svg(figure: Figure) -> str:
    """Return ``figure`` as an SVG element that is the same for the same data."""
    stream = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "hugepage-qa", "svg.fonttype": "none"}):
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]
