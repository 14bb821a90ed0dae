"""What an Avocado job left: results.json, and in it the whiteboards of tests that judged many cases.

Nothing here trusts what it reads. A job that ran nothing, a garbled file or a whiteboard that breaks its schema becomes
a result with the verdict ERROR, never an empty pass.
"""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from hugepage_qa.cases.result import Result, Verdict, one_line, worst
from hugepage_qa.schema import find_violation, parse_json

_OUTCOMES = {
    "PASS": Verdict.PASS,
    "FAIL": Verdict.FAIL,
    "ERROR": Verdict.ERROR,
    "SKIP": Verdict.SKIP,
    "CANCEL": Verdict.SKIP,
    "WARN": Verdict.FAIL,
    "INTERRUPTED": Verdict.ERROR,
}

# the name of a result that stands for the whole job; "/" is the test itself to tmt
JOB = "/"

# Avocado's word for the whiteboard of a test that could not be loaded
_NO_WHITEBOARD = "<unknown>"


def read_job(directory: Path) -> list[Result]:
    """Return the results of the one Avocado job below ``directory`` (what ``--job-results-dir`` named)."""
    try:
        job = _job_directory(directory)
        document = _read_document(job / "results.json")
    except (OSError, ValueError) as error:
        return [Result(JOB, Verdict.ERROR, (one_line(f"no results from Avocado: {error}"),))]
    tests: list[dict[str, Any]] = document["tests"]
    results = [result for test in tests for result in _results_of_test(test, job)]
    return results + _not_started(document.get("total", 0) - len(tests))


def _not_started(count: int) -> list[Result]:
    """Return that the job was ended before ``count`` tests, which Avocado leaves out."""
    tests = "test of Avocado was" if count == 1 else "tests of Avocado were"
    return [Result(JOB, Verdict.SKIP, (f"{count} {tests} not started: the run was ended before",))] if count > 0 else []


def _job_directory(directory: Path) -> Path:
    jobs = sorted(directory.glob("job-*"))
    if len(jobs) != 1:
        raise ValueError(f"{len(jobs)} jobs were run instead of one")
    return jobs[0].resolve()


def _read_document(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ValueError("the job ran no test (there is no results.json)")
    document = parse_json(path.read_text(encoding="utf-8"))
    violation = find_violation(document, __package__, "avocado-job")
    if violation:
        raise ValueError(f"results.json: {violation}")
    read: dict[str, Any] = document
    return read


def _results_of_test(test: Mapping[str, Any], job: Path) -> list[Result]:
    whiteboard = (test.get("whiteboard") or "").strip()
    own = _own_result(test, job)
    if whiteboard in ("", _NO_WHITEBOARD):
        return [own]
    try:
        cases = _read_cases(whiteboard)
    except ValueError as error:
        return [_as_error(own, f"whiteboard: {error}")]
    if not cases:
        return [own]
    results = [_case_result(case, _log_directory(test, job)) for case in cases]
    return results + _failure_outside_cases(own, results)


def _read_cases(whiteboard: str) -> list[dict[str, Any]]:
    """Return the cases in a whiteboard; none when the test keeps something else (figures, say) there.

    Raises ValueError for what is no JSON object or breaks the schema.
    """
    document = parse_json(whiteboard)
    if not isinstance(document, dict):
        raise ValueError("expected a JSON object")
    if "cases" not in document:
        return []
    violation = find_violation(document, __package__, "whiteboard")
    if violation:
        raise ValueError(violation)
    cases: list[dict[str, Any]] = document["cases"]
    names = [case["name"] for case in cases]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"two cases have the name {repeated[0]}")
    return cases


def _failure_outside_cases(own: Result, cases: list[Result]) -> list[Result]:
    """Return the test's own result as an error when it ended worse than its worst case explains."""
    worst_case = worst(case.verdict for case in cases)
    if own.verdict in (worst_case, Verdict.SKIP):
        return []
    # a test with a case that failed ends so: it is an error only where something broke after that
    if own.verdict is not Verdict.ERROR and worst([own.verdict, worst_case]) == worst_case:
        return []
    return [_as_error(own, f"the test ended as {own.verdict} outside its cases")]


def _as_error(own: Result, reason: str) -> Result:
    return Result(own.name, Verdict.ERROR, (one_line(reason), *own.reasons), own.seconds, logs=own.logs)


def _own_result(test: Mapping[str, Any], job: Path) -> Result:
    status = test["status"]
    outcome = _OUTCOMES.get(status, Verdict.ERROR)
    reasons = [] if status in _OUTCOMES else [f"unknown Avocado status {status!r}"]
    if test.get("fail_reason"):
        reasons.append(test["fail_reason"])
    logs, problems = _evidence(_log_directory(test, job), "debug.log")
    return Result(
        _test_name(test["name"]),
        outcome,
        tuple(one_line(reason) for reason in [*reasons, *problems]),
        max(test["time_elapsed"], 0),
        logs=logs,
    )


def _case_result(case: Mapping[str, Any], directory: Path | None) -> Result:
    logs: tuple[Path, ...] = ()
    problems: tuple[str, ...] = ()
    if case["log"] is not None:
        logs, problems = _evidence(directory / "data" if directory else None, case["log"])
    reasons = tuple(one_line(reason) for reason in (case["reason"], *problems) if reason)
    return Result(case["name"], Verdict(case["verdict"]), reasons, case["seconds"], logs=logs)


def _log_directory(test: Mapping[str, Any], job: Path) -> Path | None:
    """Return the directory of a test's files, or None when it is not one inside the job."""
    directory = Path(test["logdir"]).resolve()
    return directory if directory.is_relative_to(job) else None


def _evidence(directory: Path | None, name: str) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Return the file ``name`` inside ``directory``, or why there is none: its outcome stands without its log.

    The name comes from a test. Neither ``..`` nor a symbolic link leads out of the directory.
    """
    if directory is None:
        return (), (f"log {name}: the test's directory is not inside the job",)
    try:
        path = (directory / name).resolve()
        inside, exists = path.is_relative_to(directory.resolve()), path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # a name with a null byte, a loop of links
        return (), (f"log {name}: {error}",)
    if not inside:
        return (), (f"log {name}: refused, it is outside the test's directory",)
    return ((path,), ()) if exists else ((), (f"log {name}: no such file",))


def _test_name(name: str) -> str:
    """Return ``/pool/Pool.test_reserve`` for Avocado's ``tests/pool/pool.py:Pool.test_reserve``."""
    file, _, test = name.partition(":")
    parts = [PurePosixPath(file).stem, test]
    cleaned = [re.sub(r"[^\w.=+-]+", "-", part).strip(".-") for part in parts]
    return "/" + "/".join(part for part in cleaned if part)
