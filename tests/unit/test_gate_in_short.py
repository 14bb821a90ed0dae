"""The short page on the gate has the figures of the long one."""

from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
# columns of the table of error rates
_MACHINE, _ALARMS, _FINDS_1, _FINDS_5, _PASSES, _UNDECIDED = 1, 4, 5, 7, 8, 9


def test_the_gate_in_short_has_the_figures_of_the_gate() -> None:
    rows = [line.split("|") for line in (DOCS / "gate.md").read_text(encoding="utf-8").splitlines()]
    measured = {}
    machine = ""
    for row in (row for row in rows if len(row) > _UNDECIDED):
        machine = row[_MACHINE].strip() or machine
        if [cell.strip() for cell in row[2:4]] == ["gate", "5"]:
            columns = (_ALARMS, _FINDS_1, _FINDS_5, _PASSES, _UNDECIDED)
            measured[machine] = [row[column].strip(" *") for column in columns]
    short = (DOCS / "gate-in-short.md").read_text(encoding="utf-8")
    assert len(measured) > 2
    for name in ("very quiet", "quiet"):
        assert f"| {name} | {' | '.join(measured[f'{name} machine'])} |" in short
    assert f"| cloud VMs | {' | '.join(measured['cloud VMs'])} |" in short
