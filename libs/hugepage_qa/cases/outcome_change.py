"""Between which of several kernels a case changed its outcome: they are halved until neighbours remain."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from itertools import pairwise
from pathlib import Path

from hugepage_qa.cases.area_files import live_areas
from hugepage_qa.cases.boot.boot_case import CPU_MARK, case_names
from hugepage_qa.cases.boot.boot_matrix import Matrix, Settings, find_kernel
from hugepage_qa.cases.case import Area, result_name
from hugepage_qa.cases.live_machine import MachinePlan
from hugepage_qa.cases.result import Result, Verdict, because, worst
from hugepage_qa.cases.selection import Selection
from hugepage_qa.cases.throwaway_run import LiveWanted, ThrowawayRun
from hugepage_qa.cases.upstream.reproduction import Answer, BugReport, bug_reports, reproduce
from hugepage_qa.errors import InputError
from hugepage_qa.oracle.architecture import hugetlb_sizes
from hugepage_qa.qemu.apt import KERNEL_PREFIX
from hugepage_qa.qemu.boards import find_board, find_cpu
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.lost_machine import MachineLost
from hugepage_qa.qemu.packages import kernel_packages, open_kernel
from hugepage_qa.version import KernelVersion

#: verdicts that tell what the kernel did; the others tell nothing of it
DECIDED = (Verdict.PASS, Verdict.KNOWN, Verdict.FAIL)

_VERDICTS = {Answer.RIGHT: Verdict.PASS, Answer.BUG: Verdict.FAIL, Answer.UNDECIDED: Verdict.SKIP}
_CANDIDATE_OF_A_RELEASE = re.compile(r"[-~]rc[0-9]")
#: between version and flavour: ``6.12.90+deb12.1``-``cloud-amd64``, ``6.1.0-9``-``amd64``
_FLAVOUR = re.compile(r"-(?!rc)(?=[a-z])")

#: gives the result of a case on a kernel, with the settings that this one was obtained by
Trial = Callable[[KernelImage, Settings], Result]


@dataclass(frozen=True)
class Candidate:
    """A kernel that may be tried: what it is called, and the settings by which it is obtained."""

    label: str
    architecture: str
    settings: Settings

    def outcome(self, trial: Trial) -> Result:
        """Obtain the kernel and return what ``trial`` says of it; an error where it cannot be had or does not boot.

        Raises InputError where no machine can be started at all.
        """
        try:
            kernel = find_kernel(self.architecture, self.settings)
        except InputError as error:
            return Result(self.label, Verdict.ERROR, (str(error),))
        try:
            return trial(kernel, self.settings)
        except MachineLost as lost:
            return Result(self.label, Verdict.ERROR, (str(lost),), evidence=lost.serial)


class ChangeSearch:
    """The search among ``count`` kernels, the oldest first. ``attempt`` tries one, by its place, and no one twice."""

    def __init__(self, count: int, attempt: Callable[[int], Result]) -> None:
        self._places = range(count)
        self._attempt = attempt
        #: place -> what was tried
        self.results: dict[int, Result] = {}

    def run(self, *, every: bool = False) -> None:
        """Try the oldest and the newest, and halve what lies between any two that differ; or try ``every`` kernel."""
        if every:
            for place in self._places:
                self._decides(place)
        oldest, newest = self._first(self._places), self._first(reversed(self._places))
        if oldest is not None and newest is not None:
            self._narrow(oldest, newest)

    @property
    def decided(self) -> list[int]:
        """The places of kernels that were tried and could be decided, in order."""
        return sorted(place for place, result in self.results.items() if result.verdict in DECIDED)

    @property
    def changes(self) -> list[tuple[int, int]]:
        """Places between which the outcome changed; what lies between them cannot be decided."""
        return [(one, other) for one, other in pairwise(self.decided) if self._differ(one, other)]

    def _narrow(self, older: int, newer: int) -> None:
        if self._differ(older, newer):
            between = sorted(range(older + 1, newer), key=lambda place: abs(2 * place - older - newer))
            middle = self._first(between)
            if middle is not None:
                # with more than two outcomes it may differ from both
                self._narrow(older, middle)
                self._narrow(middle, newer)

    def _first(self, places: Iterable[int]) -> int | None:
        """Return the first of ``places`` that can be decided."""
        return next(filter(self._decides, places), None)

    def _decides(self, place: int) -> bool:
        if place not in self.results:
            self.results[place] = self._attempt(place)
        return self.results[place].verdict in DECIDED

    def _differ(self, one: int, other: int) -> bool:
        return _outcome(self.results[one]) != _outcome(self.results[other])


def _outcome(result: Result) -> tuple[Verdict, tuple[str, ...]]:
    """Return what is compared: the verdict, and which bugs are known; numbers in other reasons are of one run."""
    return result.verdict, result.reasons[:1] if result.verdict is Verdict.KNOWN else ()


# --- kernels ---


def kernels_of_suite(suite: str, architecture: str, settings: Settings) -> list[Candidate]:
    """Return all kernels of the board's flavour in ``suite``, the oldest first. Raises InputError for none."""
    names = kernel_packages(architecture, settings.cache, suite, report=settings.say)
    releases = {name.removeprefix(KERNEL_PREFIX): name for name in names}
    return [
        Candidate(release, architecture, replace(settings, package=releases[release], suite=suite))
        for release in sorted(releases, key=_age)
    ]


def kernels_in(directory: Path, architecture: str | None, settings: Settings) -> list[Candidate]:
    """Return the images and packages of kernels in ``directory``, the oldest first; what is no kernel is told.

    Raises InputError for no directory, and where they are for several architectures and none is chosen.
    """
    if not directory.is_dir():
        raise InputError(f"--kernels {directory}: expected a directory with images or packages of kernels")
    kernels: dict[Path, KernelImage] = {}
    others = []
    for file in sorted(path for path in directory.iterdir() if path.is_file()):
        try:
            kernels[file] = open_kernel(file, settings.cache, architecture)
        except InputError:
            others.append(file.name)
    if others:
        settings.say(f"no kernels{f' for {architecture}' if architecture else ''}: {', '.join(others)}")
    if len(architectures := {kernel.architecture for kernel in kernels.values()}) > 1:
        raise InputError(f"--kernels {directory}: for {', '.join(sorted(architectures))}; choose one with --arch")
    return [
        Candidate(_label(file, kernel.release), kernel.architecture, replace(settings, kernel=file))
        for file, kernel in sorted(kernels.items(), key=lambda item: _age(item[1].release))
    ]


def _label(file: Path, release: str) -> str:
    return file.name if release in file.name else f"{release} ({file.name})"


def _age(release: str) -> tuple[KernelVersion, bool, list[int]]:
    """Return by what kernels are sorted: distributions count builds of one version, and candidates come before it."""
    numbers = [int(number) for number in re.findall(r"\d+", _FLAVOUR.split(release)[0])]
    return KernelVersion.parse(release), not _CANDIDATE_OF_A_RELEASE.search(release), numbers


# --- cases ---


def find_trial(name: str, architecture: str) -> Trial:
    """Return how the case ``name`` is tried: an upstream report, or a boot or live case, perhaps with its CPU.

    Raises InputError for a name or a CPU that is not there.
    """
    if report := bug_reports().get(name):
        return partial(_reproduce, report)
    case, _, cpu_name = name.partition(CPU_MARK)
    cpu = find_cpu(find_board(architecture), cpu_name or None).name
    boots = case_names()
    if case in boots:
        return partial(_boot, case, cpu)
    areas, sizes = list(live_areas()), hugetlb_sizes(architecture)
    selection = Selection((case,))
    chosen = [area for area in areas if any(selection.has(area, one, sizes) for one in area.cases)]
    if not chosen:
        known = [*bug_reports(), *boots, *(result_name(area, one, None) for area in areas for one in area.cases)]
        near = get_close_matches(case, known, n=1, cutoff=0)[0]
        raise InputError(f"{name}: expected a live case, a boot case or an upstream report, such as {near}")
    return partial(_run_live, chosen, selection, cpu)


def _reproduce(report: BugReport, kernel: KernelImage, settings: Settings) -> Result:
    found = reproduce(report, kernel, settings.cache, settings.append)
    last = found.lines[-1] if found.answer is Answer.BUG else ""
    return Result(report.name, _VERDICTS[found.answer], because(found.reason or last))


def _boot(name: str, cpu: str, kernel: KernelImage, settings: Settings) -> Result:
    group = name.split("/")[1]
    with Matrix(kernel.architecture, settings) as matrix:
        cases = [case for case in matrix.named_cases((group,), cpu) if case.name.partition(CPU_MARK)[0] == name]
        return _summary(name, list(matrix.run(cases)))


def _run_live(areas: list[Area], selection: Selection, cpu: str, kernel: KernelImage, settings: Settings) -> Result:
    # several machines for some cases would boot in vain
    run = ThrowawayRun(MachinePlan(kernel, cpu, settings.cache, settings.append), 1, lambda *_: None)
    return _summary(selection.cases[0], list(run.run(LiveWanted(areas, selection), {})))


def _summary(name: str, results: list[Result]) -> Result:
    """Return the worst of ``results``, which a skip on another page size does not change."""
    judged = [result for result in results if result.verdict is not Verdict.SKIP] or results
    if not judged:
        return Result(name, Verdict.SKIP, ("the machine does not have what the case is about",))
    verdict = worst(result.verdict for result in judged)
    return next(result for result in judged if result.verdict is verdict)
