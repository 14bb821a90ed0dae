"""Is a kernel good? Choose plans by what was given, run them, and end with one line.

    ci/gate-kernel bzImage --output report               # an image, of any of the four architectures
    ci/gate-kernel linux-image-6.12_amd64.deb --output report   # or kernel-core-6.17.rpm
    ci/gate-kernel bzImage --against bzImage.old --output report   # and is it no slower by its instructions?
    ci/gate-kernel --compose fedora-42 --output report   # the kernel of a distribution's image

An image or package boots in throwaway machines with named boot parameters, and all live cases run there; with
--thorough also in a whole system with the plans that change one, into which a package of Debian is installed. A compose
is provisioned by tmt's own "virtual" method. With --against the instructions that both kernels take for what they do
with pages are compared, too (hugepage-qa gate path-length).

DIRECTORY gets report.md, report.html and report.json, below runs/ what tmt left, and below path-length/ what was
counted. The last line is the verdict; the
exit code is 0 good, 1 bad, 2 undecided, 3 the suite, its surroundings or the input are wrong.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hugepage_qa.cache import working_directory
from hugepage_qa.cases.result import ExitCode
from hugepage_qa.commands.argument_parser import Parser
from hugepage_qa.commands.qa_request import KERNEL, LAB, MACHINE_PLANS, PLANS
from hugepage_qa.errors import InputError
from hugepage_qa.process.supervised import SIGNALLED, exit_on_sigterm, run_supervised
from hugepage_qa.qemu.packages import open_kernel
from hugepage_qa.qemu.system.platforms import PLATFORMS

ROOT = Path(__file__).resolve().parent.parent
QA_RUNS = ROOT / "build" / "qa"
IN_SYSTEMS = ("functional",)
# make qa ends tmt, puts the host back and removes the machine of the lab
_GRACE_SECONDS = 120.0
_WORST_FIRST = (ExitCode.BAD, ExitCode.BROKEN, ExitCode.UNDECIDED, ExitCode.GOOD)
#: exit code of tmt -> ours: good, a failure, an error, no results, all skipped
_OF_TMT = {0: ExitCode.GOOD, 1: ExitCode.BAD, 2: ExitCode.BROKEN, 3: ExitCode.BROKEN, 4: ExitCode.UNDECIDED}


@dataclass(frozen=True)
class Step:
    """One plan to run; ``variables`` are those of make qa, or ``compose`` is what tmt provisions."""

    plan: str
    variables: Mapping[str, str] = field(default_factory=dict)
    compose: str = ""

    @property
    def name(self) -> str:
        """Where its run is kept; the same name as make qa gives it."""
        return f"{self.plan}-lab" if self.variables.get("PROVISION") == LAB else self.plan


#: carries out a step, leaves its run in the directory, and returns the exit code of make qa
Runner = Callable[[Step, Path], int]
#: compares the paths of a kernel with those of another, leaves a report in the directory, and returns the exit code
PathComparer = Callable[[Path, Path, Path], int]
_PATHS = "path-length"
_RUNS = "runs"
_REPORT = "report"


def main(arguments: Sequence[str] | None = None, run: Runner | None = None, compare: PathComparer | None = None) -> int:
    """Gate and return the exit code."""
    parser = Parser("gate-kernel", description="Is a kernel good?")
    parser.add_argument("kernel", nargs="?", type=Path, help="image or package of a kernel")
    parser.add_argument("--compose", default="", help="image of a distribution for tmt's virtual method")
    parser.add_argument("--against", type=Path, help="image or package of a kernel whose paths are not to be shorter")
    parser.add_argument("--output", type=Path, required=True, help="new directory for the report")
    parser.add_argument("--plan", action="append", default=[], help="these plans instead of those that fit")
    parser.add_argument("--thorough", action="store_true", help="also in a whole system")
    options = parser.parse_args(arguments)
    subject = options.compose or str(options.kernel)
    try:
        if options.output.exists() or options.output.is_symlink():
            raise InputError(f"--output {options.output}: is there already; expected the name of a new directory")
        steps = choose(options.kernel, options.compose, options.plan, thorough=options.thorough)
        paths = _path_comparison(options.kernel, options.against, compare or compare_paths)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        return gate(subject, steps, options.output.absolute(), run or run_step, paths)
    except InputError as error:
        print(f"gate-kernel: {error}", file=sys.stderr)
        return ExitCode.BROKEN


def choose(kernel: Path | None, compose: str, plans: Sequence[str], *, thorough: bool = False) -> list[Step]:
    """Return the plans that fit what was given. Raises InputError for what is no kernel, and for unknown plans."""
    if (kernel is None) == (not compose):
        raise InputError("expected a kernel image or package, or --compose, and not both")
    for plan in plans:
        if plan not in (*PLANS, *MACHINE_PLANS):
            raise InputError(f"--plan {plan}: expected one of {', '.join((*PLANS, *MACHINE_PLANS))}")
    if kernel is None:
        if importlib.util.find_spec("testcloud") is None:
            raise InputError(f"--compose {compose}: needs tmt's virtual method; install tmt[provision-virtual]")
        return [Step(plan, compose=compose) for plan in plans or IN_SYSTEMS]
    if not kernel.is_file():
        raise InputError(f"{kernel}: no such file; expected the image or package of a kernel")
    with tempfile.TemporaryDirectory(prefix="gate-kernel-") as unpacked:
        architecture = open_kernel(kernel, Path(unpacked)).architecture
    # the systems of the lab are Debian: only its packages can be installed there
    has_system = architecture in PLATFORMS and kernel.suffix != ".rpm"
    chosen = plans or [KERNEL, *(IN_SYSTEMS if thorough else ())]
    if not has_system and (no_system := [plan for plan in chosen if plan in MACHINE_PLANS]):
        what = "an RPM: they are Debian" if kernel.suffix == ".rpm" else architecture
        raise InputError(f"{kernel}: plan {no_system[0]} needs a whole system, and there is none for {what}")
    given = {"KERNEL": str(kernel.absolute())}
    return [Step(plan, given | {"PROVISION": LAB} if plan in MACHINE_PLANS else given) for plan in chosen]


def _path_comparison(kernel: Path | None, against: Path | None, compare: PathComparer) -> Callable[[Path], int] | None:
    """Return what compares the paths of both kernels and leaves a report in the directory that it is given.

    None without ``against``. Raises InputError for kernels that cannot be compared.
    """
    if against is None:
        return None
    if kernel is None:
        raise InputError(f"--against {against}: a compose has no file with its kernel; give both as images or packages")
    if not against.is_file():
        raise InputError(f"--against {against}: no such file; expected the image or package of a kernel")
    with tempfile.TemporaryDirectory(prefix="gate-kernel-") as unpacked:
        architectures = [open_kernel(one, Path(unpacked)).architecture for one in (kernel, against)]
    if len(set(architectures)) > 1:
        raise InputError(f"--against {against}: is for {architectures[1]}, and {kernel} for {architectures[0]}")
    return partial(compare, kernel, against)


def gate(
    subject: str, steps: Sequence[Step], output: Path, run: Runner, paths: Callable[[Path], int] | None = None
) -> int:
    """Run ``steps``, merge what they left into a report in ``output``, and print the verdict on ``subject``.

    ``paths`` compares its paths with those of another kernel.
    """
    # beside the report, which it becomes by a rename
    with working_directory(output.parent, f".{output.name}.gate-") as work:
        done, codes, parts = _carried_out(subject, steps, work, run, paths)
        if not (work / _REPORT).is_dir():
            raise InputError(f"{done.stderr.strip()}; what there is lies in {_shown(work) / _RUNS}")
        for kept in (_RUNS, _PATHS):
            if (work / kept).is_dir():
                (work / kept).rename(work / _REPORT / kept)
        try:
            (work / _REPORT).rename(output)
        except OSError as error:
            raise InputError(
                f"--output {output}: {error.strerror}; the report lies in {_shown(work) / _REPORT}"
            ) from error
        work.rmdir()
    # a plan can also decide nothing where another one does
    code = next(code for code in _WORST_FIRST if code in (done.returncode, *codes))
    counts = done.stdout.splitlines()[0].partition(": ")[2]
    print(f"{subject}: {code.word}: {counts} (exit code {code}); {', '.join(parts)}; report: {output / 'report.md'}")
    return code


def _shown(work: Path) -> Path:
    """Give ``work`` a name that no later gate takes for that of one that was killed, and return it."""
    return work.rename(work.with_name(work.name.removeprefix(".")))


def _carried_out(
    subject: str, steps: Sequence[Step], work: Path, run: Runner, paths: Callable[[Path], int] | None
) -> tuple[subprocess.CompletedProcess[str], list[int], list[str]]:
    """Run ``steps`` in ``work`` and merge their reports there; return how that ended, exit codes and words of each."""
    try:
        (work / _RUNS).mkdir()
        codes = [run(step, work / _RUNS / step.name) for step in steps]
        parts = [f"plan {step.name}: {ExitCode(code).word}" for step, code in zip(steps, codes, strict=True)]
        if paths is not None:
            codes.append(paths(work / _PATHS))
            parts.append(f"path length: {ExitCode(codes[-1]).word}")
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    about = ["--about", f"{subject}: {', '.join(parts)}"]
    merge = [sys.executable, "-m", "hugepage_qa", "report", "merge", _RUNS, "--output", _REPORT, *about]
    # runs are named as they lie beside the report, wherever that is carried
    return subprocess.run(merge, cwd=work, capture_output=True, text=True, check=False), codes, parts


def run_step(step: Step, kept: Path) -> int:
    """Run one plan and copy what tmt left to ``kept``."""
    if step.compose:
        provision = ["provision", "--how", "virtual", "--image", step.compose]
        tmt = [sys.executable, "-m", "tmt", "--context", f"distro={step.compose}", "run", "--id", str(kept), "--all"]
        code = _supervised([*tmt, "plan", "--name", f"^/plans/{step.plan}$", *provision], os.environ)
        return _OF_TMT.get(code, ExitCode.BROKEN)
    unset = dict.fromkeys(("ARCH", "APPEND", "MEMORY", "PROVISION"), "")
    environment = {**os.environ, "PLAN": step.plan, **unset, **step.variables}
    code = _supervised([sys.executable, str(ROOT / "ci" / "qa.py")], environment)
    left = QA_RUNS / step.name / "run"
    if not left.is_dir():
        raise InputError(f"plan {step.plan} left no results; what went wrong is told above")
    shutil.copytree(left, kept, symlinks=True)
    return code


def compare_paths(kernel: Path, against: Path, directory: Path) -> int:
    """Count the paths of both kernels, and leave samples and report in ``directory``."""
    command = [sys.executable, "-m", "hugepage_qa", "gate", _PATHS, str(kernel.absolute())]
    return _supervised([*command, "--against", str(against.absolute()), "--output", str(directory)], os.environ)


def _supervised(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run ``command``, print on standard error what it prints, and return its exit code; end here if we are told to."""
    code = run_supervised(command, environment=environment, directory=ROOT, output=sys.stderr, grace=_GRACE_SECONDS)
    if code > SIGNALLED:
        sys.exit(code)
    return code


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
