"""Results for tmt, and what a finished ``tmt run`` has to say.

A test with ``result: custom`` leaves ``$TMT_TEST_DATA/results.yaml``. tmt stops a whole plan at a key that it does not
know, so an entry has the five keys below and no other. The results.yaml of a run is read back into results of cases.

On a terminal tmt shows how far it is. Elsewhere it is silent from the first test to the last, which may take an hour:
``PlanProgress`` has a line for each test that has ended, and for one that runs.
"""

import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import yaml

from hugepage_qa.cases.result import BAD, Result, Verdict, one_line
from hugepage_qa.durable import write_durably
from hugepage_qa.report.avocado_results import JOB
from hugepage_qa.schema import find_violation

# tmt has no word for a known kernel issue; "info" is shown apart from a pass and is good in tmt's exit code
_RESULTS = {outcome: outcome.value for outcome in Verdict} | {Verdict.KNOWN: "info"}

_LOGS = "logs"

# tmt shows what is in a log of this name, a list of texts, as the reason in JUnit: notes do not get there
_FAILURES = "failures.yaml"


def write_results(results: Iterable[Result], data: Path) -> Path:
    """Write ``results`` into the directory ``data`` with copies of their logs; return the path of results.yaml."""
    entries = [_entry(result, number, data) for number, result in enumerate(results, start=1)]
    path = data / "results.yaml"
    # a reader sees the whole file or none: a test can be killed at any moment
    text = yaml.safe_dump(entries, allow_unicode=True, sort_keys=False)
    write_durably(path, text)
    return path


def _entry(result: Result, number: int, data: Path) -> dict[str, object]:
    entry: dict[str, object] = {"name": result.name, "result": _RESULTS[result.verdict]}
    if result.reasons:
        entry["note"] = list(result.reasons)
    logs = [_copy_log(log, result.name, number, data) for log in result.logs]
    if result.verdict in BAD and result.reasons:
        relative = Path(_LOGS) / f"{number:04}" / _FAILURES
        (data / relative).parent.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(list(result.reasons), allow_unicode=True)
        (data / relative).write_text(text, encoding="utf-8")
        logs.append(str(relative))
    if logs:
        entry["log"] = logs
    if result.name != JOB:  # tmt measures the test itself
        entry["duration"] = format_duration(result.seconds)
    return entry


def _copy_log(log: Path, name: str, number: int, data: Path) -> str:
    """Copy ``log`` below ``data``; the number keeps two cases apart whose names differ only in odd characters."""
    label = re.sub(r"[^\w.=+-]+", "-", name).strip(".-") or "test"
    relative = Path(_LOGS) / f"{number:04}-{label[:100]}{log.suffix}"
    (data / _LOGS).mkdir(exist_ok=True)
    shutil.copyfile(log, data / relative)
    return str(relative)


def format_duration(seconds: float) -> str:
    """Return ``seconds`` as tmt writes a duration: HH:MM:SS, rounded."""
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02}:{minute:02}:{second:02}"


def parse_duration(text: str) -> float:
    """Return the seconds in tmt's HH:MM:SS."""
    hours, minutes, seconds = (int(part) for part in text.split(":"))
    return 3600.0 * hours + 60 * minutes + seconds


#: of a test that tmt never came to
PENDING = "tmt did not execute it"

# a test that tmt never came to is an error: something stopped the plan before it
_OUTCOMES = {outcome.value: outcome for outcome in Verdict if outcome is not Verdict.KNOWN} | {
    "info": Verdict.KNOWN,
    "warn": Verdict.FAIL,
    "pending": Verdict.ERROR,
}

# libyaml's is ten times as fast, and is not there in every build of PyYAML
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)

# Keys that say nothing of a case, and the guest, differ between runs whose cases went alike. A line that is indented by
# two is a key of a result, never part of a text: that is indented more.
_NOT_OF_THE_CASE = re.compile(
    r"^  (?:check: \[\]|context: \{\}|data-path: null|end-time: null|fmf-id: \{\}|ids: \{\}|start-time: null"
    r"|subresult: \[\]|web-link: null|guest:\n(?:    .*\n)+)\n?",
    re.MULTILINE,
)
# tmt writes a list that begins at the start of a line; nothing else in it does
_ENTRY = re.compile(r"^(?=- )", re.MULTILINE)
_ENTRIES_KEPT = 20_000


def read_run(run: Path) -> list[Result]:
    """Return the results of every plan in the run directory ``run``; a file that cannot be read is one error."""
    files = sorted(run.glob("**/execute/results.yaml"))
    if not files:
        return [Result("/", Verdict.ERROR, ("tmt left no results.yaml: no test was executed",))]
    results: list[Result] = []
    for file in files:
        try:
            results += read_results(file)
        except (OSError, ValueError) as error:
            results.append(Result("/", Verdict.ERROR, (one_line(f"{file}: {error}"),)))
    return results


def read_results(file: Path) -> list[Result]:
    """Return the results in the results.yaml ``file``. Raises OSError, and ValueError for what tmt does not write."""
    text = file.read_text(encoding="utf-8")
    try:
        # a thousand runs of the same cases have few entries that differ
        entries = [_read_entry(entry) for entry in _ENTRY.split(_NOT_OF_THE_CASE.sub("", text)) if entry]
    except ValueError:
        entries = []
    if not entries:
        # what an entry alone is not, all together may be; if not, this error has the right line
        entries = parse_tmt_yaml(text, "tmt-results")
    return [_case_result(entry, file.parent) for entry in entries]


@lru_cache(_ENTRIES_KEPT)
def _read_entry(text: str) -> Mapping[str, Any]:
    (entry,) = parse_tmt_yaml(text, "tmt-results")
    return MappingProxyType(entry)


def parse_tmt_yaml(text: str, schema: str) -> Any:
    """Return the document in ``text``, every scalar as text. Raises ValueError where it breaks ``schema``.

    tmt writes YAML 1.2, in which 10:00:03 and yes are words; PyYAML reads 1.1.
    """
    try:
        document = yaml.load(text, Loader=_LOADER)  # noqa: S506 - builds no objects
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    violation = find_violation(document, __package__, schema)
    if violation:
        raise ValueError(violation)
    return document


def _case_result(entry: Mapping[str, Any], execute: Path) -> Result:
    reasons = list(entry.get("note") or [])
    duration = entry.get("duration", "null")
    if entry["result"] == "pending":
        reasons.append(PENDING)
    return Result(
        entry["name"],
        _OUTCOMES[entry["result"]],
        tuple(one_line(reason) for reason in reasons),
        0.0 if duration == "null" else parse_duration(duration),
        logs=tuple(execute / log for log in entry.get("log") or []),
    )


_LOOK_SECONDS = 1.0
#: without news
_SILENT_SECONDS = 60.0
#: what tmt writes for a test when that begins
_AT_THE_BEGINNING = "tmt-test-topology.sh"
_SERIAL_NUMBER = re.compile(r"-\d+$")


class PlanProgress:
    """Looks at the directory ``run`` of a run of tmt as long as the block lasts, and gives lines to ``say``."""

    def __init__(self, run: Path, say: Callable[[str], None]) -> None:
        self._run = run
        self._say = say
        self._told: set[Path] = set()
        self._last = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        # the last test has just ended
        with suppress(OSError):
            self.look(is_over=True)

    def look(self, *, is_over: bool = False) -> None:
        """Tell what has ended since the last look, or what runs if there was nothing to tell for a minute.

        Results may be there before a test has ended, such as those of a chain of reboots that goes on: a test has ended
        when another one has begun on its guest, or all of them are over.
        """
        files = self._run.glob(f"plans/**/execute/data/guest/**/{_AT_THE_BEGINNING}")
        begun = {file.parent: file.stat().st_mtime for file in sorted(files, key=lambda one: one.stat().st_mtime)}
        running = set() if is_over else set({_guest(test): test for test in begun}.values())
        for test in begun:
            results = test / "data" / "results.yaml"
            if test not in self._told | running and results.is_file():
                self._told.add(test)
                self._print(f"{_name(test)}: {_sum(results)}; {len(self._told)} of {self._tests()} tests")
        if time.monotonic() - self._last > _SILENT_SECONDS:
            for test in running - self._told:
                self._print(f"{_name(test)} runs for {(time.time() - begun[test]) / 60:.0f} min")

    def _print(self, line: str) -> None:
        self._last = time.monotonic()
        self._say(f"      {line}")

    def _tests(self) -> int:
        """Return how many tests the plan has (discover/tests.yaml)."""
        files = self._run.glob("plans/**/discover/tests.yaml")
        return sum(file.read_text(encoding="utf-8").count("serial-number:") for file in files)

    def _watch(self) -> None:
        while not self._is_over.wait(_LOOK_SECONDS):
            # tmt moves and removes files meanwhile
            with suppress(OSError):
                self.look()


def _guest(test: Path) -> str:
    return _on_guest(test)[0]


def _name(test: Path) -> str:
    """Return the name of the test in the directory ``test``: .../execute/data/guest/NAME/tests/thp/defrag-4."""
    return _SERIAL_NUMBER.sub("", "/" + "/".join(_on_guest(test)[1:]))


def _on_guest(test: Path) -> tuple[str, ...]:
    """Return the parts of a path from the name of the guest on; a plan may be called guest, too."""
    _run, _execute, on_guest = test.as_posix().rpartition("/execute/data/guest/")
    return tuple(on_guest.split("/"))


def _sum(file: Path) -> str:
    try:
        count = Counter(result.verdict for result in read_results(file))
    except ValueError:
        # who reads all results in the end says what is wrong with them
        return "ended"
    return ", ".join(f"{count[verdict]} {verdict.value}" for verdict in Verdict if count[verdict]) or "ended"
