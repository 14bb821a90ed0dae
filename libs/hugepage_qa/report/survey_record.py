"""What a survey found on one kernel, as docs/kernels keeps it: a file for each, with a line for each difference.

The file is read in a diff: nothing in it changes that was not measured anew.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from hugepage_qa.cases.result import Result, Verdict, one_line
from hugepage_qa.durable import write_durably
from hugepage_qa.errors import InputError
from hugepage_qa.oracle.issue_tables import ALL_ISSUES
from hugepage_qa.schema import build, read_document

#: lines at the end of an evidence that are kept, and characters of each: a machine's last words tell why it ended
_EVIDENCE_LINES, _EVIDENCE_WIDTH = 40, 160


@dataclass(frozen=True)
class Amounts:
    """How much is random: command lines for each CPU, operations on the pool of each page size, drawn with a seed."""

    boots: int
    operations: int
    seed: int


@dataclass(frozen=True)
class Measured:
    """Which kernel was measured by which cases; what is equal in all of it need not be measured again.

    ``image`` is the digest of its image, ``cases`` the version of the cases.
    """

    release: str
    image: str
    cases: str
    amounts: Amounts


@dataclass(frozen=True)
class Difference:
    """A case that was not as the documents say: the known ``issues`` that explain it, else why, and the evidence."""

    case: str
    verdict: Verdict
    issues: tuple[str, ...] = ()
    reason: str = ""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class SurveyRecord:
    """What came of the kernel ``name``, as it is chosen by: cases by verdict, and the differences, by name of case."""

    name: str
    measured: Measured
    day: date
    counts: dict[Verdict, int]
    differences: tuple[Difference, ...]

    @property
    def ran(self) -> int:
        """How many cases were decided, or broke."""
        return sum(self.counts.values()) - self.counts[Verdict.SKIP]

    @property
    def anchor(self) -> str:
        """What its part of the page and its file are called."""
        return self.name.replace("/", "-")


def make_record(name: str, measured: Measured, day: date, results: Sequence[Result]) -> SurveyRecord:
    """Return the record of ``results``, in the order of the names of the cases."""
    count = Counter(result.verdict for result in results)
    told = [_difference(one) for one in results if one.verdict not in (Verdict.PASS, Verdict.SKIP)]
    ordered = tuple(sorted(told, key=lambda one: (one.case, one.reason)))
    return SurveyRecord(name, measured, day, {verdict: count[verdict] for verdict in Verdict}, ordered)


def _difference(result: Result) -> Difference:
    reason = one_line(result.reason)
    if result.verdict is Verdict.KNOWN and (issues := tuple(_issues_in(reason))):
        # what else it says, such as how many operations there were, differs from run to run
        return Difference(result.name, result.verdict, issues)
    last = result.evidence.splitlines()[-_EVIDENCE_LINES:]
    evidence = tuple(one_line(line)[:_EVIDENCE_WIDTH] for line in last)
    return Difference(result.name, result.verdict, (), reason, evidence)


def _issues_in(reason: str) -> Iterator[str]:
    """Yield the known issues that ``reason`` tells of, by name or in their own words."""
    for issue in ALL_ISSUES.values():
        name = issue.quirk.value
        if one_line(issue.summary) in reason or re.search(rf"(?<![\w-]){name}(?![\w-])", reason):
            yield name


def write_record(directory: Path, record: SurveyRecord) -> None:
    """Write ``record`` into its file in ``directory``. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    counts = {verdict.value: record.counts[verdict] for verdict in Verdict}
    head = {"name": record.name, "measured": asdict(record.measured), "day": record.day.isoformat(), "counts": counts}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    told = [{key: value for key, value in asdict(one).items() if value} for one in record.differences]
    differences = ",\n".join(f"  {json.dumps(one)}" for one in told)
    text = "\n".join(["{", *lines, ' "differences": [', *([differences] if told else []), " ]", "}", ""])
    write_durably(_file(directory, record.anchor), text)


def read_record(directory: Path, name: str) -> SurveyRecord | None:
    """Return what ``directory`` has of the kernel ``name``, None for nothing. Raises InputError for a bad file."""
    file = _file(directory, name.replace("/", "-"))
    return _read(file) if file.is_file() else None


def read_records(directory: Path) -> list[SurveyRecord]:
    """Return all that ``directory`` has, by name. Raises InputError for a bad file."""
    return sorted(map(_read, directory.glob("*.json")), key=lambda record: record.name)


def _read(file: Path) -> SurveyRecord:
    advice = "take it out of git again, or remove it and run make survey"
    document = read_document(file, __package__, "survey-record", advice)
    try:
        record = build(SurveyRecord, document)
    except ValueError as error:
        raise InputError(f"{file}: cannot be read ({error}): {advice}") from error
    if file.stem != record.anchor:
        raise InputError(f"{file}: is about {record.name}: expected it in {record.anchor}.json, rename or remove it")
    return record


def _file(directory: Path, anchor: str) -> Path:
    return directory / f"{anchor}.json"
