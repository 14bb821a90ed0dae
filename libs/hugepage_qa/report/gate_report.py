"""A comparison as one HTML file that needs nothing else: verdict first, then why. Needs matplotlib for its pictures."""

from markupsafe import Markup

from hugepage_qa.report.fill_template import fill_template
from hugepage_qa.report.gate_figures import intervals_figure, metric_figure
from hugepage_qa.report.gate_page import GatePage
from hugepage_qa.report.gate_tables import MEANINGS, percent, why


def render_html(page: GatePage) -> str:
    """Return the report as a text of HTML."""
    comparison = page.comparison
    has_changes = any(one.change is not None for one in comparison.results)
    return fill_template(
        "comparison.html.j2",
        comparison=comparison,
        meaning=MEANINGS[comparison.verdict],
        # matplotlib escapes the texts in its pictures
        intervals=Markup(intervals_figure(comparison.results)) if has_changes else "",  # noqa: S704
        metrics=[(one, Markup(metric_figure(one))) for one in page.metrics if comparison.results],  # noqa: S704
        environment=page.environment,
        subject=page.subject,
        percent=percent,
        why=why,
    )
