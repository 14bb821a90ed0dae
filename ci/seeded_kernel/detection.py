"""Which cases of the suite find which fault of a seeded kernel?

    python -m ci.seeded_kernel.detection build/seeded-kernel/6.1/bzImage
    python -m ci.seeded_kernel.detection build/seeded-kernel/6.1/bzImage --everything   # also what was not found
    python -m ci.seeded_kernel.detection build/seeded-kernel/6.1/bzImage --first        # found or not, in half the time

The areas that a fault names run with it, on pages of 2 MiB (pool/demote@1G on others), and once on the healthy kernel:
what fails there finds nothing. What was measured is kept beside the image in detection.json, so that a killed run goes
on. It counts, and is not measured again, until the healthy kernel, the fault, the file of a case or anything in the
library has changed: what a case compares and how it is judged lies there. detection.md is the table.
"""

import json
import sys
import threading
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, nullcontext
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from ci.seeded_kernel.detection_table import Outcome, table
from ci.seeded_kernel.faults import Fault, choose, read_faults
from ci.seeded_kernel.seeded_image import SeededImage
from ci.seeded_kernel.seeded_source import HEALTHY

import hugepage_qa
from hugepage_qa.cache import held_alone, write_atomically
from hugepage_qa.cases.area_files import LIVE, live_areas, tests_directory
from hugepage_qa.cases.boot.boot_matrix import Settings
from hugepage_qa.cases.boot.case_groups import choose_groups, groups
from hugepage_qa.cases.kernel_check import KernelCheck
from hugepage_qa.cases.result import ExitCode, Result, Verdict
from hugepage_qa.cases.selection import Selection
from hugepage_qa.cases.throwaway_run import LiveWanted
from hugepage_qa.commands.argument_parser import Parser
from hugepage_qa.errors import InputError
from hugepage_qa.sizes import parse_size

_LIBRARY = Path(hugepage_qa.__file__).parent
_BOOT = "boot/"
#: of the pages that an area runs on, unless it names another one: those of 1 GiB take many times as long
_SIZE = "2M"
_GOOD = (Verdict.PASS.value, Verdict.KNOWN.value)

#: the healthy kernel runs the cases of all faults, for minutes
_CASES_OF_A_LINE = 20
#: digest and areas of what is to be measured
Wanted = tuple[str, tuple[str, ...]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the table, and return the exit code."""
    parser = Parser("detection", description="Which cases of the suite find which fault of a seeded kernel?")
    parser.add_argument("kernel", type=Path, help="image that make seeded-kernel built")
    parser.add_argument("--fault", action="append", default=[], help="this fault alone; repeatable  [all]")
    parser.add_argument("--everything", action="store_true", help="all areas for what its own areas do not find")
    parser.add_argument("--first", action="store_true", help="leave a fault at the first case that finds it")
    parser.add_argument("--machines", type=int, default=2, help="faults at once  [2]")
    parser.add_argument("--table", action="store_true", help="write the table of what there is, and measure nothing")
    options = parser.parse_args(arguments)
    try:
        image = SeededImage(options.kernel)
        faults = image.choose(choose(read_faults(), options.fault))
        # what another one writes meanwhile would be lost, and a build puts another image there
        with nullcontext() if options.table else held_alone(options.kernel.parent, "build or measurement"):
            measured = Measured(image, is_first_enough=options.first)
            if not options.table:
                measured.measure(_wanted(faults, measured, everything=False), options.machines)
                if options.everything:
                    measured.measure(_wanted(faults, measured, everything=True), options.machines)
    except InputError as error:
        print(f"detection: {error}", file=sys.stderr)
        return ExitCode.BROKEN
    outcomes = [outcome for fault in faults if (outcome := measured.outcome(fault))]
    text = table(outcomes, measured.silent_cases(faults))
    options.kernel.with_name("detection.md").write_text(text, encoding="utf-8")
    found = sum(bool(outcome.found_by) for outcome in outcomes)
    print(f"{found} of {len(outcomes)} faults found: {options.kernel.with_name('detection.md')}")
    return ExitCode.GOOD


def _wanted(faults: Iterable[Fault], measured: "Measured", *, everything: bool) -> dict[str, Wanted]:
    """Return what is to be measured by name, the healthy kernel first."""
    wanted: dict[str, Wanted] = {}
    for fault in faults:
        outcome = measured.outcome(fault) if everything else None
        if not everything:
            wanted[fault.name] = (fault.digest, fault.found_in)
        elif outcome is not None and not outcome.found_by and not fault.proof.words:
            wanted[fault.name] = (fault.digest, tuple(dict.fromkeys((*fault.found_in, *LIVE))))
    areas = tuple(dict.fromkeys(area for _digest, areas in wanted.values() for area in areas))
    return {HEALTHY: (HEALTHY, areas)} | wanted


class Measured:
    """What was measured on one image, in a file beside it.

    Where ``is_first_enough`` a fault is left at the first case that finds it; others may, too.
    """

    def __init__(self, image: SeededImage, *, is_first_enough: bool = False) -> None:
        self._image = image.path
        self._is_first_enough = is_first_enough
        self._lock = threading.Lock()
        self._file = image.path.with_name("detection.json")
        base = image.base
        self._document: dict[str, Any] = {"kernel": base, "runs": {}}
        try:
            kept = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            kept = {}
        if isinstance(kept, dict) and kept.get("kernel") == base:
            self._document = kept

    @property
    def _runs(self) -> dict[str, dict[str, Any]]:
        return self._document["runs"]  # type: ignore[no-any-return]

    def measure(self, wanted: Mapping[str, Wanted], at_once: int) -> None:
        """Run the areas that are missing, the healthy kernel by itself and before all others."""
        jobs = []
        for name, (digest, areas) in wanted.items():
            run = self._runs.get(name, {})
            known = run.get("areas", {})
            is_whole = not run.get("is_first_enough")
            has_changed = any(known.get(area) not in (None, _cases(area)) for area in areas)
            if run.get("digest") != digest or has_changed or not (is_whole or self._is_first_enough):
                self._runs[name] = {"digest": digest, "areas": {}, "results": {}, "seconds": 0.0}
            if missing := [area for area in areas if area not in self._runs[name]["areas"]]:
                jobs.append((name, missing))
        with ThreadPoolExecutor(at_once) as pool:
            if jobs and jobs[0][0] == HEALTHY:
                self._keep(*jobs.pop(0), machines=at_once)
            running = {pool.submit(self._keep, name, areas, 1): name for name, areas in jobs}
            for number, done in enumerate(as_completed(running), start=1):
                done.result()
                print(f"{number} of {len(jobs)}: {self._told(running[done])}", flush=True)

    def _keep(self, name: str, areas: Sequence[str], machines: int) -> None:
        began = time.monotonic()
        # of the cases that run, not of those that somebody has written until they are through
        cases = {area: _cases(area) for area in areas}
        results = {}
        is_left = False
        with closing(_run(self._image, name, areas, machines)) as all_results:
            for result in all_results:
                results[result.name] = (result.verdict.value, result.reason[:300])
                if name == HEALTHY and len(results) % _CASES_OF_A_LINE == 0:
                    print(f"without a fault: {len(results)} cases so far", flush=True)
                if self._is_first_enough and name != HEALTHY and self._is_found(result.name, result.verdict.value):
                    is_left = True
                    break
        with self._lock:
            run = self._runs[name]
            run["results"] |= results
            run["is_first_enough"] = is_left
            run["areas"] |= cases
            run["seconds"] += time.monotonic() - began
            write_atomically(self._file, json.dumps(self._document, indent=1).encode())

    def _told(self, name: str) -> str:
        found = self._found(name)
        return f"{name}: {', '.join(found) or 'not found'} ({self._runs[name]['seconds']:.0f} s)"

    def _found(self, name: str) -> dict[str, str]:
        """Return case -> reason of those that fail with the fault ``name``, and are good on the healthy kernel."""
        results = self._runs.get(name, {}).get("results", {})
        return {case: reason for case, (verdict, reason) in results.items() if self._is_found(case, verdict)}

    def _is_found(self, case: str, verdict: str) -> bool:
        healthy = self._runs.get(HEALTHY, {}).get("results", {})
        # a machine that is lost has no case of its own on the healthy kernel
        return verdict == Verdict.FAIL and (case not in healthy or healthy[case][0] in _GOOD)

    def outcome(self, fault: Fault) -> Outcome | None:
        """Return what was measured of ``fault``, None where nothing was, or with other cases than those of today."""
        run = self._runs.get(fault.name, {})
        if run.get("digest") != fault.digest or not run.get("areas"):
            return None
        healthy = self._runs.get(HEALTHY, {}).get("areas", {})
        if not all(kept == healthy.get(area) and _is_of_today(area, kept) for area, kept in run["areas"].items()):
            return None
        return Outcome(
            fault, tuple(self._found(fault.name)), tuple(run["areas"]), run["seconds"], not run.get("is_first_enough")
        )

    def silent_cases(self, faults: Iterable[Fault]) -> tuple[str, ...]:
        """Return the cases that are good on the healthy kernel, ran with a fault and found none."""
        found = {case for fault in faults for case in self._found(fault.name)}
        ran = {case for fault in faults for case in self._runs.get(fault.name, {}).get("results", {})}
        healthy = self._runs.get(HEALTHY, {}).get("results", {})
        return tuple(sorted(case for case in ran - found if healthy.get(case, ("",))[0] in _GOOD))


def _run(image: Path, name: str, areas: Sequence[str], machines: int) -> Generator[Result, None, None]:
    """Yield the results of ``areas`` on ``image`` with the fault ``name``."""
    boots = [area.removeprefix(_BOOT) for area in areas if area.startswith(_BOOT)]
    by_size: dict[int, list[str]] = {parse_size(_SIZE): []}
    for area in areas:
        if not area.startswith(_BOOT):
            folder, _, named = area.partition("@")
            by_size.setdefault(parse_size(named or _SIZE), []).append(folder)
    settings = Settings(image, append=f"seeded_fault={name}", machines=machines)
    for size, folders in by_size.items():
        live = tuple(live_areas(tuple(folders))) if folders else ()
        if boots or live:
            groups_of_boots = choose_groups(boots) if boots else ()
            check = KernelCheck("x86_64", settings, groups_of_boots, 0, LiveWanted(live, Selection(sizes=(size,))))
            with closing(check.run()) as results:
                yield from results
            boots = []


def _cases(area: str) -> str:
    """Return what changes with the cases of ``area``, the library included. Raises InputError for no area."""
    if area.startswith(_BOOT):
        group = area.removeprefix(_BOOT)
        if group not in groups():
            raise InputError(f"area {area}: expected boot/ and one of {', '.join(groups())}")
        return _library()
    place = tests_directory() / area.partition("@")[0]
    files = [place.with_suffix(".py")] if place.with_suffix(".py").is_file() else sorted(place.glob("*.py"))
    if not files:
        raise InputError(f"area {area}: expected a folder of tests/, or a file of one")
    return sha256(b"".join([_library().encode(), *(file.read_bytes() for file in files)])).hexdigest()[:16]


def _is_of_today(area: str, kept: str) -> bool:
    """Tell whether what was ``kept`` for ``area`` is of its cases as they are, and the area is still there."""
    try:
        return _cases(area) == kept
    except InputError:
        return False


@cache
def _library() -> str:
    """Return what changes with the library, as it was when it was asked for first: what is imported stays as it is."""
    digest = sha256()
    for file in sorted(_LIBRARY.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(f"{file.relative_to(_LIBRARY)}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
