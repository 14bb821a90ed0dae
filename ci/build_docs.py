"""Build the documentation: HTML and the manual page below build/docs. Warnings are errors.

The pages on cases are made from the metadata of the tests and from the code, that on kernels from docs/kernels.
A case without a rule, or whose source leads nowhere, is one line, and nothing is built.
"""

import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from hugepage_qa.cases.result import ExitCode, Verdict
from hugepage_qa.catalogue.catalogued_tests import catalogued_tests
from hugepage_qa.catalogue.pages import problems, render_pages
from hugepage_qa.catalogue.references import References
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.debian_kernels import all_kernels
from hugepage_qa.report.survey_record import Difference, SurveyRecord, read_records

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "docs"
BUILDERS = ("html", "man")


def main() -> int:
    """Return 0 when everything was built, 1 when a case or a page is not good enough, 3 for a tree that is none."""
    try:
        tests = list(catalogued_tests(ROOT))
        records = read_records(ROOT / "docs" / "kernels")
    except InputError as error:
        print(f"docs: {error}", file=sys.stderr)
        return ExitCode.BROKEN
    found = list(problems(tests, References.known()))
    if found:
        print("\n".join(f"docs: {problem}" for problem in found), file=sys.stderr)
        return ExitCode.BAD
    shutil.rmtree(BUILD, ignore_errors=True)
    source = BUILD / "source"
    shutil.copytree(ROOT / "docs", source)
    (source / "cases").mkdir()
    for name, text in render_pages(tests).items():
        (source / "cases" / name).write_text(text, encoding="utf-8")
    survey = render_survey(records, [kernel.name for kernel in all_kernels()])
    (source / "kernels.md").write_text(survey, encoding="utf-8")
    for builder in BUILDERS:
        sphinx = [sys.executable, "-m", "sphinx", "--nitpicky", "--fail-on-warning", "--keep-going", "--quiet"]
        code = subprocess.run([*sphinx, "-b", builder, str(source), str(BUILD / builder)], check=False).returncode
        if code:
            return ExitCode.BAD
    print(f"{len(tests)} tests and their cases: {BUILD / 'html' / 'index.html'}")
    return ExitCode.GOOD


_COLUMNS = (
    ("passed", Verdict.PASS),
    ("known", Verdict.KNOWN),
    ("failed", Verdict.FAIL),
    ("errors", Verdict.ERROR),
    ("skipped", Verdict.SKIP),
)
_ABOUT = """\
Debian's kernels, each with all boot parameters, all live cases and random programs on throwaway machines, as
[check-kernel](check-a-kernel.md) runs them. `make survey` measures what is missing here, and what older cases measured.
Kernels are those that a suite had on that day. *Random* is the seed, how many command lines each CPU got, and how many
operations the pool of each page size; *cases* tells versions of the cases apart: what two of them measured can differ
by the cases alone."""


def render_survey(records: Sequence[SurveyRecord], names: Sequence[str]) -> str:
    """Return the page on ``records``, in the order of ``names``, which are all kernels that there may be."""
    by_name = {record.name: record for record in records}
    ordered = [by_name.pop(name) for name in names if name in by_name] + list(by_name.values())
    missing = [name for name in names if name not in {record.name for record in ordered}]
    lines = ["# Kernels", "", _ABOUT, ""]
    if ordered:
        titles = ["kernel", "release", "ran", *(title for title, _ in _COLUMNS), "random", "cases", "date"]
        lines += [_row(titles), _row(["---"] * len(titles)), *map(_summary, ordered), ""]
    if missing:
        lines += [f"Not measured: {', '.join(missing)}.", ""]
    return "\n".join([*lines, *(line for record in ordered for line in _section(record))])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _summary(record: SurveyRecord) -> str:
    amounts = record.measured.amounts
    random = f"seed {amounts.seed}: {amounts.boots}, {amounts.operations}"
    counts = [str(record.counts[verdict]) for _, verdict in _COLUMNS]
    name = f"[{record.name}](#{_label(record)})" if record.differences else record.name
    release, cases = f"`{record.measured.release}`", f"`{record.measured.cases}`"
    return _row([name, release, str(record.ran), *counts, random, cases, record.day.isoformat()])


def _label(record: SurveyRecord) -> str:
    return f"kernel-{record.anchor}"


def _section(record: SurveyRecord) -> Iterator[str]:
    """Yield what differed on a kernel: first by known issue, then each that nothing explains with its evidence."""
    if not record.differences:
        return
    yield from (f"({_label(record)})=", f"## {record.name}", "")
    by_issues: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for one in record.differences:
        if one.issues:
            by_issues[one.issues].append(one.case)
    for issues, cases in sorted(by_issues.items()):
        links = ", ".join(f"[{issue}](known-issues.md#{issue})" for issue in issues)
        yield f"* known, {links}: {', '.join(map(_code, cases))}"
    if by_issues:
        yield ""
    for one in record.differences:
        if not one.issues:
            yield from _unexplained(one)


def _unexplained(difference: Difference) -> Iterator[str]:
    yield from (f"**{difference.verdict.value}** {_code(difference.case)}: {_code(difference.reason)}", "")
    if difference.evidence:
        fence = "`" * (3 + max(line.count("`") for line in difference.evidence))
        yield from (f"{fence}text", *difference.evidence, fence, "")


def _code(text: str) -> str:
    """Return ``text`` as it is: markup in a message of a kernel is none of the page's."""
    ticks = "`" * (1 + text.count("`"))
    return f"{ticks} {text} {ticks}" if "`" in text else f"`{text}`"


if __name__ == "__main__":
    sys.exit(main())
