"""The short page on the gate has the figures of the long one."""

from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
SHORT = " ".join((DOCS / "gate-in-short.md").read_text(encoding="utf-8").split())


def figures(data: str, rule: str) -> list[str]:
    """Return what docs/gate.md says of a ``rule`` on ``data``: the percentages of its row behind these two."""
    name = ""
    for line in (DOCS / "gate.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip(" *") for cell in line.split("|")[1:-1]]
        # data are named in the first of their rows
        name = cells[0] or name if cells else ""
        if [name, *cells[1:2]] == [data, rule]:
            return [f"{cell} %" for cell in cells[2:]]
    raise AssertionError(f"docs/gate.md has no row of {rule} on {data}")


def test_the_gate_in_short_has_the_figures_of_the_gate() -> None:
    alarms, one, two, five, some, few, passes, _undecided, blind, runs, whole = figures("5 + 3 nights", "gate")
    assert f"| false alarms | {alarms} of metrics, {runs} of whole runs |" in SHORT
    assert f"| found in {one}, {two}, {five} |" in SHORT
    assert f"| found in {some}, {few} |" in SHORT
    assert f"as much as the margin | passes in {passes} |" in SHORT
    assert f"in which nothing changed | passes in {whole} |" in SHORT
    assert f"| metrics that are blind at 1 % | {blind} |" in SHORT


def test_the_gate_in_short_has_the_figures_of_the_usual_test() -> None:
    quiet, cloud = (figures(data, "Mann-Whitney")[0] for data in ("5 + 3 nights", "cloud VMs"))
    assert f"raised a false alarm in {quiet} of comparisons in which nothing had changed" in SHORT
    assert f"between cloud machines in {cloud}." in SHORT
