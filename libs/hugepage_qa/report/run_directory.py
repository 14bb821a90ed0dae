"""One run of tmt or check of a kernel as it lies on the disk: where its results are, and what they are about.

What no test tells of a run, such as a host that is not as it was before, is kept in the run as results.
"""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from hugepage_qa.cases.result import Result, Verdict, name_parts, one_line
from hugepage_qa.durable import write_durably
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.boards import BOARDS
from hugepage_qa.report.check_report import KERNELS, RESULTS, read_check, read_kernels
from hugepage_qa.report.tmt_results import PENDING, parse_tmt_yaml, read_results

_FILE = "surroundings.yaml"

#: passed, failed, errors, all skipped: what the results tell, too; 3 is "no results"
_TMT_EXIT_CODES = {0, 1, 2, 4}


def write_surroundings(run: Path, tmt_exit_code: int, changes: Sequence[str]) -> None:
    """Keep in the run directory ``run`` what is wrong with how tmt ended, and ``changes`` of the host, a line each.

    Nothing is written where nothing is wrong.
    """
    wrong = dict(_wrong(tmt_exit_code, changes))
    if wrong:
        entries = [{"name": name, "result": Verdict.ERROR.value, "note": reasons} for name, reasons in wrong.items()]
        text = yaml.safe_dump(entries, allow_unicode=True, sort_keys=False)
        write_durably(run / _FILE, text)


def _wrong(tmt_exit_code: int, changes: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    if tmt_exit_code not in _TMT_EXIT_CODES:
        yield "/surroundings/tmt", [f"tmt ended with exit code {tmt_exit_code}"]
    if changes:
        yield "/surroundings/host", [f"the host has changed: {change}" for change in changes]


def read_surroundings(run: Path) -> list[Result]:
    """Return what was wrong around ``run``. Raises OSError, and ValueError for a file that is not ours."""
    file = run / _FILE
    return read_results(file) if file.is_file() else []


#: what cases that are not about one page size are put under
ANY_SIZE = "any"

#: the state format of tmt runs that is known; tmt names it in the file ``state-format``
_FORMAT = "yaml"
_MARK = "run.yaml"
_EXPECTED = "expected what tmt run --id or check-kernel --output left"
#: Testing Farm and "make qa" keep a run below the directory that a user names
_DEEPEST = 3

#: the machines of an area of tests that is about other machines than the guest of tmt
_THROWAWAY = "throwaway machines"
_ON_THROWAWAY_MACHINES = ("boot", "kernel")

# tmt writes a list that begins at the start of a line: what is indented by two is a key of a test, never part of a text
_TEST = re.compile(r"^  name: (/\S*)$", re.MULTILINE)
_KERNEL = re.compile(rb"Linux version ([\x21-\x7e]{1,100})")
_LOG_HEAD = 64 << 10
_SAMPLES_HEAD = 256
_SAMPLES = b'"hugepage-qa samples"'


@dataclass(frozen=True, slots=True)
class MergedCase:
    """A result with what it is about. ``name`` is that of the result, page size and all.

    ``case`` is what it is called on whatever machine: without the test of tmt, which another run does not have.
    ``machine`` says of which kind that was.
    """

    name: str
    case: str
    area: str
    machine: str
    kernel: str
    architecture: str
    page_size: str
    verdict: Verdict
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """A run: where it lies, what tells it from every other run, on what it ran, and what came of it."""

    path: Path
    digest: str
    machine: str
    cases: tuple[MergedCase, ...]
    sample_files: tuple[Path, ...]


def find_runs(directory: Path) -> list[Path]:
    """Return the runs in ``directory``, which can be one itself. Raises InputError where there is none."""
    if not directory.is_dir():
        raise InputError(f"{directory}: no such directory; {_EXPECTED}")
    found = sorted(_runs_below(directory, _DEEPEST))
    if not found:
        raise InputError(f"{directory}: no run in it (no {_MARK}, no {KERNELS}); {_EXPECTED}")
    return found


def _runs_below(directory: Path, depth: int) -> Iterator[Path]:
    if any((directory / mark).is_file() for mark in (_MARK, KERNELS)):
        yield directory
    elif depth:
        for entry in os.scandir(directory):
            if entry.is_dir(follow_symlinks=False):
                yield from _runs_below(Path(entry.path), depth - 1)


def read_run_directory(path: Path) -> Run:
    """Return the finished run in ``path``. Raises InputError for one that is half written or of a later format."""
    return _read_check(path) if (path / KERNELS).is_file() else _read_tmt_run(path)


def _read_check(path: Path) -> Run:
    kernels = read_kernels(path)
    cases = []
    for result in read_check(path):
        words = result.name.split("/")[1:]
        # names say which of several architectures they are of
        architecture = words[0] if words[0] in kernels else next(iter(kernels))
        about = (words[0], _THROWAWAY, kernels[architecture], architecture, name_parts(result.name).size or ANY_SIZE)
        cases.append(MergedCase(result.name, result.name, *about, result.verdict, result.reasons))
    digest = hashlib.sha256(b"".join((path / name).read_bytes() for name in (KERNELS, RESULTS)))
    return _run(path, digest.hexdigest(), cases)


def _run(path: Path, digest: str, cases: Sequence[MergedCase], sample_files: tuple[Path, ...] = ()) -> Run:
    machines = dict.fromkeys(f"{case.machine}, {case.architecture}, {case.kernel}" for case in cases)
    return Run(path, digest, "; ".join(machines), tuple(cases), sample_files)


def _read_tmt_run(path: Path) -> Run:
    _check_format(path)
    plans = sorted(directory.parent for directory in path.glob("plans/**/execute") if directory.is_dir())
    if not plans:
        raise _unfinished(path, "no plan was executed")
    cases: list[MergedCase] = []
    digest = hashlib.sha256((path / "log.txt").read_bytes() if (path / "log.txt").is_file() else b"")
    for plan in plans:
        results = plan / "execute" / "results.yaml"
        try:
            guests = parse_tmt_yaml((plan / "provision" / "guests.yaml").read_text(encoding="utf-8"), "tmt-guests")
            step = parse_tmt_yaml((plan / "provision" / "step.yaml").read_text(encoding="utf-8"), "tmt-provision")
            tests = set(_TEST.findall((plan / "discover" / "tests.yaml").read_text(encoding="utf-8")))
            read = read_results(results)
            digest.update(results.read_bytes())
        except FileNotFoundError as error:
            raise _unfinished(path, f"{error.filename} is missing") from error
        except (OSError, ValueError) as error:
            raise _unfinished(path, one_line(str(error))) from error
        if not tests:
            raise _unfinished(path, f"{plan / 'discover' / 'tests.yaml'} names no test")
        if not read:
            raise _unfinished(path, f"{results} has no result")
        if late := next((one.name for one in read if PENDING in one.reasons), None):
            raise _unfinished(path, f"tmt did not execute {late}")
        facts = next(iter(guests.values()))["facts"]
        machine = f"{facts['distro']}, {step['data'][0]['how']}"
        cases += _merged_cases(read, tests, machine, facts)
    try:
        cases += _merged_cases(read_surroundings(path), (), machine, facts)
    except (OSError, ValueError) as error:
        raise _unfinished(path, one_line(str(error))) from error
    count = Counter(one.case for one in cases)
    # two tests that run the same cases, such as one for each architecture
    told = [one if count[one.case] == 1 else replace(one, case=one.name) for one in cases]
    return _run(path, digest.hexdigest(), told, _sample_files(plans))


def _check_format(path: Path) -> None:
    mark = path / "state-format"
    found = mark.read_text(encoding="utf-8", errors="replace").strip() if mark.is_file() else _FORMAT
    if found != _FORMAT:
        raise InputError(
            f"{path}: state format {one_line(found)!r}, this hugepage-qa knows {_FORMAT!r}; install a later one"
        )


def _unfinished(path: Path, why: str) -> InputError:
    return InputError(f"{path}: expected a finished run of tmt: {why}; run it again, or leave it out")


def _merged_cases(
    results: Sequence[Result], tests: Collection[str], guest: str, facts: Mapping[str, Any]
) -> Iterator[MergedCase]:
    booted: dict[str, str] = {}
    for result in results:
        words = result.name.split("/")[1:]
        area = words[1] if words[0] == "tests" and len(words) > 1 else words[0]
        machine, architecture, kernel = guest, facts["arch"], facts["kernel-release"]
        if area in _ON_THROWAWAY_MACHINES:
            # another kernel, and often another architecture, than that of the guest of tmt
            machine = _THROWAWAY
            architecture = next((word for word in words if word in BOARDS), architecture)
            kernel = _booted_kernel(architecture, result, booted)
        about = (area, machine, kernel, architecture, name_parts(result.name).size or ANY_SIZE)
        yield MergedCase(result.name, _case(result.name, tests), *about, result.verdict, result.reasons)


def _case(name: str, tests: Collection[str]) -> str:
    """Return what follows the test in ``name``; the test itself where that is all."""
    test = name
    while test and test not in tests:
        test = test.rpartition("/")[0]
    return name.removeprefix(test) or name


def _booted_kernel(architecture: str, result: Result, booted: dict[str, str]) -> str:
    """Return the kernel of the throwaway machines of ``architecture``: the first serial log that names it tells."""
    for log in result.logs if architecture not in booted else ():
        try:
            with log.open("rb") as stream:
                match = _KERNEL.search(stream.read(_LOG_HEAD))
        except OSError:
            continue
        if match:
            booted[architecture] = match[1].decode("ascii")
    return booted.get(architecture, "unknown")


def _sample_files(plans: Sequence[Path]) -> tuple[Path, ...]:
    """Return the files in the neutral sample format that tests have left."""
    return tuple(
        Path(directory, name)
        for plan in plans
        for directory, _below, names in os.walk(plan / "execute" / "data")
        for name in sorted(names)
        if name.endswith(".json") and _holds_samples(Path(directory, name))
    )


def _holds_samples(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as stream:
        return _SAMPLES in stream.read(_SAMPLES_HEAD)
