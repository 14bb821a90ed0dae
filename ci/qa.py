"""``make qa``: run a plan with stock tmt on this machine, say what came out, and whether the machine is as before."""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import yaml
from rich.console import Console

from hugepage_qa.bench import gate_settings
from hugepage_qa.bench.gate_settings import GateSettings
from hugepage_qa.cases import run_settings
from hugepage_qa.cases.result import ExitCode, Result, Verdict, exit_code
from hugepage_qa.commands.qa_request import GATES, QaRequest
from hugepage_qa.errors import InputError
from hugepage_qa.machine.protection import protected_machine
from hugepage_qa.machine.snapshot import changes_of_others, differences, take_snapshot
from hugepage_qa.process.identity import (
    Identity,
    cache_of,
    choose_identity,
    give,
    make_home,
)
from hugepage_qa.process.marks import PREFIX
from hugepage_qa.process.supervised import run_supervised
from hugepage_qa.qemu.boards import find_board
from hugepage_qa.qemu.installed_emulator import installed_emulator
from hugepage_qa.qemu.system.machine_registry import Registry, drop_machines
from hugepage_qa.report.run_directory import read_surroundings, write_surroundings
from hugepage_qa.report.terminal import closing_lines, height_of, line_on_others, print_reasons, skip_lines
from hugepage_qa.report.tmt_results import PlanProgress, read_run

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
BUILD = ROOT / "build" / "qa"
BASELINES = ROOT / "baselines"
# in the tree that tmt runs: it takes none from outside, and splits the option at spaces
ENVIRONMENT_FILE = "environment.yaml"

# tmt copies its tree for each plan and sends it to the machine several times, whatever git ignores: environments and
# disk images of machines must not be in it
_NOT_THE_SUITE = (".git", ".venv*", ".cache", "build", "__pycache__", "*.egg-info", ".*_cache", ".hypothesis")

# what tmt itself may see of our environment: it writes all that it sees into its log, secrets too
_FOR_TMT = (
    "HOME",
    "LANG",
    "LC_ALL",
    "TERM",
    "TMPDIR",
    "NO_COLOR",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    run_settings.QEMU,
)

# tmt has the same path on the machine that it provisions, where /tmp is emptied at each boot (file-hierarchy(7))
_LASTING = "/var/tmp"  # noqa: S108 - a private directory is made there

_ROOT = 0
#: what make says of an exit code that is not 0, and the prompt
_LINES_OF_MAKE = 2
_WORDS = {
    ExitCode.GOOD: "good",
    ExitCode.BAD: "BAD: a case failed",
    ExitCode.UNDECIDED: "undecided",
    ExitCode.BROKEN: "WRONG: the suite or its surroundings broke",
}


@dataclass(frozen=True)
class Finding:
    """What a run of tmt gave: the results, those on its surroundings among them, and whether the host is as before.

    ``of_others`` is what others changed meanwhile, which says nothing of the run. With ``needs_all`` nothing is decided
    as long as one result is a skip; but metrics below a result with reports are part of its verdict, in which those
    that are blind have no say.
    """

    results: Sequence[Result]
    host_is_as_before: bool
    of_others: Sequence[str] = ()
    needs_all: bool = False

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of make qa."""
        code = exit_code(result.verdict for result in self.results)
        suites = tuple(f"{result.name}/" for result in self.results if result.logs)
        skipped = (result.name for result in self.results if result.verdict is Verdict.SKIP)
        is_open = self.needs_all and any(not name.startswith(suites) for name in skipped)
        return ExitCode.UNDECIDED if code is ExitCode.GOOD and is_open else code


def main() -> int:
    """Run what make's variables ask for and return the exit code of make qa."""
    console = Console(highlight=False)
    try:
        request = QaRequest.from_environment()
        present, absent = _split_by_emulator(request.architectures)
        if request.architectures and not present:
            raise InputError(f"no emulator is installed: {'; '.join(absent)}")
        finding = run_plan(request, present)
        _report(console, request, finding, absent)
    except InputError as error:
        print(f"make qa: {error}", file=sys.stderr)
        return ExitCode.BROKEN
    return finding.exit_code


def _split_by_emulator(architectures: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the architectures whose emulator is installed, and a line on each of the others."""
    present = [name for name in architectures if installed_emulator(find_board(name))]
    missing = [name for name in architectures if name not in present]
    return present, [f"{name}: {find_board(name).qemu} is not installed" for name in missing]


def _put_back_what_a_killed_run_left() -> None:
    """Have the machine put back now, if that is left to do: the first test would, which would look like its change.

    Raises InputError where another run has the machine.
    """
    with protected_machine("make qa, before its plan"):
        pass


def run_plan(request: QaRequest, architectures: Sequence[str]) -> Finding:
    """Run the plan of ``request`` and return what came out. Raises InputError where another run has the machine."""
    kept = _kept(request)
    _make_anew(kept)
    may_be_held = request.in_lab or not request.needs_root
    if not may_be_held:
        _put_back_what_a_killed_run_left()
    before = take_snapshot([ROOT], may_be_held=may_be_held)
    # tmt does not run inside its own tree, so it runs elsewhere and what it left is moved here
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=_LASTING if request.in_lab else None) as directory:
        code = _run_tmt(request, architectures, Path(directory))
        shutil.move(Path(directory, "run"), kept)
    if os.geteuid() == _ROOT:
        give(kept, _ROOT)
    # after Ctrl-C tmt ends without removing its guests
    drop_machines(kept, Registry(CACHE))
    after = take_snapshot([ROOT], may_be_held=may_be_held)
    changes = differences(before, after)
    write_surroundings(kept / "run", code, changes)
    results = [*read_run(kept), *read_surroundings(kept / "run")]
    return Finding(results, not changes, changes_of_others(before, after), request.needs_all_results)


def _make_anew(kept: Path) -> None:
    """Empty the directory ``kept``. Raises InputError where that is not allowed: root may have run the plan before."""
    try:
        if kept.exists():
            shutil.rmtree(kept)
        kept.mkdir(parents=True)
    except OSError as error:
        why = f"{error.filename}: {error.strerror}"
        raise InputError(f"{kept}: cannot be made anew ({why}): remove it as the user who has run the plan") from error


def _run_tmt(request: QaRequest, architectures: Sequence[str], scratch: Path) -> int:
    """Run tmt, which leaves its files in the directory "run" of ``scratch``, and return its exit code."""
    # the roots of whole machines are built from here: what is in them must have no group of ours
    identity = Identity() if request.in_lab else choose_identity(scratch, needs_root=request.needs_root)
    if identity.shortfall:
        print(f"make qa: {identity.shortfall}", file=sys.stderr)
    tree = scratch / "tree"
    shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(*_NOT_THE_SUITE))
    seen = {name: os.environ[name] for name in _FOR_TMT if name in os.environ}
    told = dict(request.test_environment)
    if not request.in_lab:
        cache = cache_of(identity, Path(told.get(run_settings.CACHE, CACHE)).absolute())
        told = _of_this_machine(scratch) | told | {run_settings.CACHE: str(cache)}
    if identity.user is not None:
        home = {"HOME": str(make_home(scratch)), "TMPDIR": str(scratch)}
        seen, told = seen | home, told | home
    command = _tmt(request, architectures, scratch / "run", _write_environment(told, tree / ENVIRONMENT_FILE))
    if identity.user is not None:
        give(scratch, identity.user)
    with nullcontext() if sys.stdout.isatty() else PlanProgress(scratch / "run", _say):
        return run_supervised([*identity.words, *command], environment=seen | _for_tmt(scratch), directory=tree)


def _say(line: str) -> None:
    print(line, flush=True)


def _kept(request: QaRequest) -> Path:
    """Return where the logs of the run stay."""
    return BUILD / (f"{request.plan}-lab" if request.in_lab else request.plan)


def _write_environment(told: Mapping[str, str], file: Path) -> list[str]:
    """Write what the tests are told to a file, and return tmt's options for it: in an option tmt splits a value."""
    file.write_text(yaml.safe_dump(dict(told)), encoding="utf-8")
    # tmt warns of a file that says nothing
    return ["--environment", f"@{ENVIRONMENT_FILE}"] if told else []


def _of_this_machine(scratch: Path) -> dict[str, str]:
    """Return what tests on this machine need to know of it."""
    return {
        # a local run has neither
        "PATH": _path(),
        "HOME": str(Path.home()),
        # what a test that is killed leaves is removed with our own
        "TMPDIR": str(scratch),
        gate_settings.BASELINES: str(BASELINES),
    }


def _tmt(request: QaRequest, architectures: Sequence[str], run: Path, told: Sequence[str]) -> list[str]:
    context = [word for dimension in context_of(request) for word in ("--context", dimension)]
    tests = ["test", "--name", f"/({'|'.join(architectures)})$"] if architectures else []
    # on this machine without "prepare": it would install packages, and the suite is here already
    prepare = ["prepare"] if request.in_lab else []
    return [
        *(sys.executable, "-m", "tmt", *context, "--feeling-safe"),
        *("run", "--id", str(run), *told, *request.tmt_arguments),
        *("plan", "--name", f"^/plans/{request.plan}$", *tests),
        *("discover", "provision", *request.provision, *prepare, "execute", "report", "cleanup"),
    ]


def context_of(request: QaRequest) -> list[str]:
    """Return tmt's context, which tmt never finds out by itself."""
    # tmt cannot reboot the machine that it runs on itself
    reboot = "yes" if request.in_lab else "no"
    # an emulated machine emulates its guests, which is for those who ask for nothing else
    guests = "no" if request.in_lab and request.plan != "guest" else "yes"
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    distro = "-".join(word for word in (release.get("ID"), release.get("VERSION_ID")) if word)
    known = {"arch": platform.machine(), "reboot": reboot, "guests": guests, **({"distro": distro} if distro else {})}
    return [f"{name}={value}" for name, value in known.items()]


def _for_tmt(scratch: Path) -> dict[str, str]:
    """Return what tmt and its plugins need to know beside what it may see of our environment."""
    return {
        "PATH": _path(),
        # the provision plugin keeps its images there
        run_settings.CACHE: str(CACHE),
        # both are in /var/tmp otherwise
        "TMT_WORKDIR_ROOT": str(scratch),
        "TMT_TEST_PIDFILE_ROOT": str(scratch),
    }


def _path() -> str:
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def _report(console: Console, request: QaRequest, finding: Finding, absent: Sequence[str]) -> None:
    last = [f"  left out {line}" for line in absent]
    if finding.host_is_as_before:
        last.append("the host is as it was before")
    if finding.of_others:
        last.append(line_on_others(finding.of_others))
    last.append(f"logs: {_kept(request)}")
    last.append(f"plan {request.plan}: {_WORDS[finding.exit_code]} (exit code {finding.exit_code})")
    others = _report_gate(console, request, finding, last) if request.plan in GATES else finding.results
    print_reasons(console, others, [Verdict.KNOWN, Verdict.FAIL, Verdict.ERROR])
    # a comparison has counted its metrics, which are no cases
    counted = closing_lines(others) if others is finding.results else skip_lines(others)
    for line in (*counted, *last):
        console.print(line, soft_wrap=True, markup=False)


def _report_gate(console: Console, request: QaRequest, finding: Finding, last: Sequence[str]) -> Sequence[Result]:
    """Print what the gate has found on a screen that has room for the ``last`` lines; return all other results."""
    look = GateSettings.from_environment(request.test_environment).next_look
    again = f"make qa PLAN={request.plan}"
    # it needs numpy, which no other plan does
    gate_run = import_module("hugepage_qa.report.gate_run")
    user = gate_run.GateUser(
        _kept(request),
        f'{again} ACCEPT="first baseline"',
        f"{again} {gate_settings.BLOCKS}={look}" if look else "",
        request.test_environment.get(gate_settings.BASELINES, ""),
    )
    spare = sum(height_of(line, console.width) for line in last) + _LINES_OF_MAKE
    others: Sequence[Result] = gate_run.print_gate_run(console, finding.results, user, spare)
    return others


if __name__ == "__main__":
    sys.exit(main())
