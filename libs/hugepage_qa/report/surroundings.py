"""What no test tells of a run: that tmt broke, or that the host is not as it was before. Kept in the run as results."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from hugepage_qa.machine.durable import write_durably
from hugepage_qa.report.case_result import CaseResult, Outcome
from hugepage_qa.report.summary import read_results

_FILE = "surroundings.yaml"
_READABLE = 0o644

#: passed, failed, errors, all skipped: what the results tell, too; 3 is "no results"
_TMT_EXIT_CODES = {0, 1, 2, 4}


def write_surroundings(run: Path, tmt_exit_code: int, changes: Sequence[str]) -> None:
    """Keep in the run directory ``run`` what is wrong with how tmt ended, and ``changes`` of the host, a line each.

    Nothing is written where nothing is wrong.
    """
    wrong = dict(_wrong(tmt_exit_code, changes))
    if wrong:
        entries = [{"name": name, "result": Outcome.ERROR.value, "note": reasons} for name, reasons in wrong.items()]
        text = yaml.safe_dump(entries, allow_unicode=True, sort_keys=False)
        write_durably(run / _FILE, text.encode(), mode=_READABLE)


def _wrong(tmt_exit_code: int, changes: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    if tmt_exit_code not in _TMT_EXIT_CODES:
        yield "/surroundings/tmt", [f"tmt ended with exit code {tmt_exit_code}"]
    if changes:
        yield "/surroundings/host", [f"the host has changed: {change}" for change in changes]


def read_surroundings(run: Path) -> list[CaseResult]:
    """Return what was wrong around ``run``. Raises OSError, and ValueError for a file that is not ours."""
    file = run / _FILE
    return read_results(file) if file.is_file() else []
