"""``make survey``: measure Debian's kernels one after the other, and keep what came of each in docs/kernels.

    make survey                                      # all that was not measured by these cases yet
    make survey KERNELS="trixie/x86_64 sid */s390x"  # kernels, suites, patterns of kernels

A kernel is measured in parts, one for each area of check-kernel. What a part found is kept below build/survey, with its
evidence. It can be stopped at any time, also by kill -9: the same command goes on with the part that was cut off. When
cases changed, the parts that they are of are run again, and so is by the next survey a part with errors, since these
tell nothing of the kernel.

A kernel that cannot be had is one line. The exit code is 0 when all that were measured are good, 1 when a case failed,
2 when none could be had, 3 when the suite or its surroundings broke or the input is wrong.
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.text import Text

import hugepage_qa
from hugepage_qa.cache import held_alone
from hugepage_qa.cases.area_files import LIVE, live_areas, tests_directory
from hugepage_qa.cases.boot.boot_matrix import Settings, find_kernel
from hugepage_qa.cases.boot.case_groups import choose_groups
from hugepage_qa.cases.kernel_check import KernelCheck
from hugepage_qa.cases.result import ExitCode, Result, Verdict, exit_code
from hugepage_qa.cases.throwaway_run import LiveWanted
from hugepage_qa.commands.check_kernel import run_check
from hugepage_qa.commands.check_request import AREAS
from hugepage_qa.errors import InputError
from hugepage_qa.process.supervised import SIGNALLED, exit_on_sigterm
from hugepage_qa.qemu.debian_kernels import DebianKernel, choose_kernels
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.report.check_report import RESULTS, CheckReport, read_check
from hugepage_qa.report.survey_record import Amounts, Measured, SurveyRecord, make_record, read_record, write_record

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "survey"
RECORDS = ROOT / "docs" / "kernels"

#: the same for all kernels, so that they are asked the same
AMOUNTS = Amounts(boots=20, operations=400, seed=1)

#: hexadecimal digits that tell kernels, and versions of the cases, apart
_DIGITS = 12
_SIGINT = 2


class NotThere(Exception):
    """A kernel cannot be had, or not be run here."""


@dataclass(frozen=True)
class Machines:
    """What gets kernels and runs parts of their check: throwaway machines, or a double of them.

    ``obtain`` raises InputError for a kernel that cannot be had. ``run`` leaves the results of a part in a directory,
    which it makes; it raises InputError where no machine can run.
    """

    obtain: Callable[[DebianKernel], KernelImage]
    run: Callable[[DebianKernel, KernelImage, str, Path], None]


def main(environment: Mapping[str, str] = os.environ, machines: Machines | None = None) -> int:
    """Survey what ``environment`` chooses and return the exit code."""
    console = Console(highlight=False)

    def say(line: str) -> None:
        # a kernel's words are no markup
        console.print(Text(line), soft_wrap=True)

    try:
        kernels = choose_kernels(environment.get("KERNELS", "").split())
        # two surveys would remove what the other one has begun
        with held_alone(BUILD, "survey"):
            return Survey(say, machines or _throwaway_machines(console, say), case_versions()).run(kernels)
    except InputError as error:
        print(f"make survey: {error}", file=sys.stderr)
        return ExitCode.BROKEN
    except KeyboardInterrupt:
        print("make survey: stopped; the same command goes on where it was", file=sys.stderr)
        return SIGNALLED + _SIGINT


class Survey:
    """Measures kernels by cases whose ``versions`` are by part."""

    def __init__(self, say: Callable[[str], None], machines: Machines, versions: Mapping[str, str]) -> None:
        self._say = say
        self._machines = machines
        self._versions = versions
        self._cases = hashlib.sha256(" ".join(versions.values()).encode()).hexdigest()[:_DIGITS]

    def run(self, kernels: Sequence[DebianKernel]) -> int:
        """Measure ``kernels`` and return the exit code; raises InputError for kept results that cannot be read."""
        # what cannot be read is told now, not after days
        for kernel in kernels:
            read_record(RECORDS, kernel.name)
        verdicts: set[Verdict] = set()
        missing = []
        for number, kernel in enumerate(kernels, 1):
            place = f"[{number}/{len(kernels)}] {kernel.name}"
            try:
                record = self._measure(kernel, place)
            except NotThere as why:
                missing.append(kernel.name)
                self._say(f"{place}: not there: {why}")
                continue
            verdicts |= {verdict for verdict, count in record.counts.items() if count}
        there = len(kernels) - len(missing)
        self._say(f"{there} of {len(kernels)} kernels measured{_named('; not there', missing)}")
        return exit_code(verdicts) if there else ExitCode.UNDECIDED

    def _measure(self, kernel: DebianKernel, place: str) -> SurveyRecord:
        """Return what came of ``kernel``, today or before."""
        try:
            image = self._machines.obtain(kernel)
        except InputError as error:
            raise NotThere(str(error)) from error
        digest = hashlib.sha256(image.path.read_bytes()).hexdigest()[:_DIGITS]
        measured = Measured(image.release, digest, self._cases, AMOUNTS)
        before = read_record(RECORDS, kernel.name)
        if before is not None and before.measured == measured and not before.counts[Verdict.ERROR]:
            self._say(f"{place}: {image.release} was measured on {before.day}")
            return before
        self._say(f"{place}: {image.release}")
        directory = BUILD / f"{image.release}-{digest}"
        results = [result for part in AREAS for result in self._part(kernel, image, part, directory)]
        record = make_record(kernel.name, measured, date.today(), results)
        write_record(RECORDS, record)
        counts = ", ".join(f"{count} {verdict.value}" for verdict, count in record.counts.items() if count)
        self._say(f"{place}: {image.release}: {counts}")
        return record

    def _part(self, kernel: DebianKernel, image: KernelImage, part: str, directory: Path) -> list[Result]:
        """Return the results of a part, which is run unless ``directory`` has them, and no error among them."""
        directory /= f"{_kept_as(part)}-{self._versions[part]}"
        # what was cut off has no results
        kept = read_check(directory) if (directory / RESULTS).exists() else None
        if kept is None or any(result.verdict is Verdict.ERROR for result in kept):
            shutil.rmtree(directory, ignore_errors=True)
            directory.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._machines.run(kernel, image, part, directory)
            except InputError as error:
                raise NotThere(f"{part} cannot be run: {error}") from error
            kept = read_check(directory)
        return kept


def _kept_as(part: str) -> str:
    """Return where a part is kept: what is random depends on how much of it there is."""
    return f"{part}-{AMOUNTS.seed}-{AMOUNTS.boots}-{AMOUNTS.operations}" if part == "random" else part


_LIBRARY = Path(hugepage_qa.__file__).resolve().parent
#: what decides about a kernel: cases, what must be, and all that boots, acts on and reads a throwaway machine
_ROOMS = ("cases", "oracle", "kernel", "machine", "process", "qemu")
#: what is for other machines than throwaway ones
_OTHERS = ("guest", "reboot", "upstream", "boot_loader", "system")
#: the agent, the actor and the init of a probe are programs in C and for a shell
_SUFFIXES = (".py", ".yaml", ".c", ".h", ".sh")


def case_versions() -> dict[str, str]:
    """Return for each part what its cases, all that they use, and their oracle are known by: it changes when they do.

    Not covered is what lies beside the rooms of the library, such as its reader of kernel parameters, and what is no
    text of it: compilers, emulators, Python and its packages.

    Raises InputError where there are no tests.
    """
    library = _digest(_LIBRARY, _ROOMS)
    tests = tests_directory()
    return {part: _digest(tests, (part,), library) if part in LIVE else library for part in AREAS}


def _digest(root: Path, folders: Sequence[str], before: str = "") -> str:
    digest = hashlib.sha256(before.encode())
    for name in folders:
        for file in sorted(path for path in (root / name).rglob("*") if path.suffix in _SUFFIXES):
            relative = file.relative_to(root)
            if not set(relative.parts) & set(_OTHERS):
                digest.update(f"{relative}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()[:_DIGITS]


def _named(title: str, names: Sequence[str]) -> str:
    return f"{title}: {', '.join(names)}" if names else ""


def _throwaway_machines(console: Console, say: Callable[[str], None]) -> Machines:
    def settings(kernel: DebianKernel) -> Settings:
        return Settings(package=kernel.package, suite=kernel.suite, say=say)

    def obtain(kernel: DebianKernel) -> KernelImage:
        return find_kernel(kernel.architecture, settings(kernel))

    def run(kernel: DebianKernel, image: KernelImage, part: str, directory: Path) -> None:
        report = CheckReport(console, directory)
        is_random = part == "random"
        live = LiveWanted(
            () if is_random or part == "boot" else tuple(live_areas((part,))),
            operations=AMOUNTS.operations if is_random else 0,
            seed=AMOUNTS.seed,
        )
        groups = choose_groups(()) if part == "boot" else ()
        boots = AMOUNTS.boots if is_random else 0
        check = KernelCheck(
            kernel.architecture, settings(kernel), groups, boots, live, report.finished, report.under_way
        )
        if check.kernel.path != image.path:
            raise InputError(f"{kernel.suite} has {check.kernel.release} now: make survey measures it")
        report.start(f"{kernel.name}: {part}", check.expected_results)
        run_check(check, report)
        report.finish()

    return Machines(obtain, run)


if __name__ == "__main__":
    # it takes days: nobody who asks what it does starts it
    if sys.argv[1:]:
        print(__doc__)
        sys.exit(ExitCode.GOOD if sys.argv[1:] in (["-h"], ["--help"]) else ExitCode.BROKEN)
    exit_on_sigterm()
    sys.exit(main())
