"""Write down what live cases take, for runs that are short of time (check-kernel --within).

    hugepage-qa check-kernel --suite trixie-backports --output checks/7.3
    python -m ci.case_seconds checks/7.3

The check is one of all live cases on x86_64, on a machine that does nothing else.
"""

import json
import sys
from pathlib import Path

from hugepage_qa.cache import write_atomically
from hugepage_qa.cases.area_files import LIVE, live_areas
from hugepage_qa.cases.boot.boot_case import CPU_MARK
from hugepage_qa.cases.result import ExitCode, Result, Verdict
from hugepage_qa.errors import InputError
from hugepage_qa.report.check_report import read_check

TABLE = Path(__file__).parents[1] / "libs" / "hugepage_qa" / "cases" / "case_seconds.json"


def main(arguments: list[str]) -> int:
    """Write the table from a directory of check-kernel --output and return the exit code."""
    if len(arguments) != 1:
        print("usage: python -m ci.case_seconds DIRECTORY", file=sys.stderr)
        return ExitCode.BROKEN
    cases = {f"/{area.name}/{case.name}" for area in live_areas(LIVE) for case in area.cases}
    try:
        table = seconds_of(read_check(Path(arguments[0])), cases)
    except InputError as error:
        print(f"case-seconds: {error}", file=sys.stderr)
        return ExitCode.BROKEN
    write_atomically(TABLE, f"{json.dumps(table, indent=0)}\n".encode())
    print(f"{TABLE}: {len(table)} results, {sum(table.values()):.0f} s of one machine")
    return ExitCode.GOOD


def seconds_of(results: list[Result], cases: set[str]) -> dict[str, float]:
    """Return name -> seconds of the ``results`` of ``cases`` on the default CPU, but for those that were skipped."""
    return {
        result.name: round(result.seconds, 1)
        for result in sorted(results, key=lambda one: one.name)
        if result.verdict is not Verdict.SKIP
        and CPU_MARK not in result.name
        and not cases.isdisjoint((result.name, result.name.rpartition("/")[0]))
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
