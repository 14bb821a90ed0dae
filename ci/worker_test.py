"""A CI worker in miniature: stock tmt, and a fresh machine that it reaches over ssh and knows nothing of.

    python ci/worker_test.py [--plan PLAN]... [--test REGEX] [--environment NAME=VALUE]... [--no-guests] [--inject]
                             [--read-only] [--memory 8G]

The worker is a virtual environment with tmt from the package index and nothing of this suite. The machine is a system
machine of the lab: a distribution with sshd, without the suite and without Avocado; ``provision: connect`` is all that
the worker is told. The plans install what they need there. With ``--inject`` a case of the tree is made to fail, and
the worker must see it: exit code 1 of tmt, and a red test case with its reason in JUnit.

Needs what "hugepage-qa lab up" needs, a core, and the memory of the machine. Under TCG a plan takes an hour; those that
start machines in it emulate them twice: HUGEPAGE_QA_GROUPS and HUGEPAGE_QA_CYCLES make less of them.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from hugepage_qa.cache import cache_directory
from hugepage_qa.cases.result import ExitCode, Result, Verdict
from hugepage_qa.commands.argument_parser import Parser
from hugepage_qa.errors import InputError
from hugepage_qa.process.supervised import SIGNALLED, exit_on_sigterm, run_supervised
from hugepage_qa.qemu.system.machine_registry import Registry
from hugepage_qa.qemu.system.system_launch import SystemOptions, bring_up, parse_nodes
from hugepage_qa.qemu.system.system_machine import SystemMachine
from hugepage_qa.report.tmt_results import read_run

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "build" / "worker"
DEADLINE = 900.0
STOCK = "tmt>=1.78"
#: a rule of the kernel, and what it becomes: a claim that no kernel keeps
CASE = Path("tests/pool/pool.py")
TRUE, FALSE = "live.expect_pool(nr=pages, free=pages)", "live.expect_pool(nr=pages, free=pages + 1)"
CASE_NAME, CASE_TEST, CASE_REASON = (
    "grow-and-shrink",
    "^/tests/pool/resize$",
    "expected 2, found 1 (rule grow-and-shrink: ",
)


@dataclass(frozen=True)
class Seen:
    """What the worker has of a run: the exit code of tmt, the results, and the JUnit file."""

    exit_code: int
    results: Sequence[Result]
    junit: Path
    seconds: float


def main() -> int:
    """Return 0 when every run went as it must, 1 when one did not, 3 when it could not be tried."""
    parser = Parser(description="Run plans as a CI worker with stock tmt does.")
    parser.add_argument("--plan", action="append", default=[], help="plan (default functional); several in turn")
    parser.add_argument("--test", default="", help="only the tests whose name matches this expression")
    parser.add_argument("--environment", action="append", default=[], help="NAME=VALUE for the tests; several in turn")
    parser.add_argument("--memory", default="8G", help="memory of the machine (default 8G)")
    parser.add_argument("--cpus", type=int, default=2, help="CPUs of the machine (default 2)")
    parser.add_argument("--no-guests", action="store_true", help="install nothing for guests, which takes longest")
    parser.add_argument("--inject", action="store_true", help="then make a case fail")
    parser.add_argument("--read-only", action="store_true", help="the worker's tree is mounted read-only (root)")
    options = parser.parse_args()
    exit_on_sigterm()
    try:
        with _scratch() as scratch, _machine(options.memory, options.cpus) as machine:
            return _run(options, machine, scratch)
    except InputError as error:
        print(f"worker: {error}", file=sys.stderr)
        return ExitCode.BROKEN


def _run(options: argparse.Namespace, machine: SystemMachine, scratch: Path) -> int:
    worker = Worker(scratch, machine, options.environment, read_only=options.read_only, guests=not options.no_guests)
    problems = []
    for plan in options.plan or ["functional"]:
        seen = worker.run(plan, plan, options.test)
        problems += _print(plan, seen, judge_clean(seen))
    if options.inject:
        worker.make_a_case_fail()
        seen = worker.run("injected", "functional", CASE_TEST)
        problems += _print("injected", seen, judge_injected(seen))
    print("the worker saw what it must" if not problems else f"{len(problems)} problems")
    return ExitCode.BAD if problems else ExitCode.GOOD


class Worker:
    """Stock tmt in an environment of its own, the tree that it runs, and the machine that it was given."""

    def __init__(
        self, scratch: Path, machine: SystemMachine, told: Sequence[str], *, read_only: bool, guests: bool
    ) -> None:
        """Make the environment and copy the tree as git has it; ``told`` is for the tests, NAME=VALUE each."""
        self._scratch, self._machine, self._read_only, self._guests = scratch, machine, read_only, guests
        self._told = [word for one in told for word in ("--environment", one)]
        self._tree = scratch / "tree"
        self._tree.mkdir()
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True)  # noqa: S607
        subprocess.run(["tar", "-x"], cwd=self._tree, input=archive.stdout, check=True)  # noqa: S607
        venv.create(scratch / "venv", with_pip=True)
        pip = [str(scratch / "venv" / "bin" / "python"), "-m", "pip", "install", "--quiet", STOCK]
        subprocess.run(pip, check=True)
        shutil.rmtree(KEPT, ignore_errors=True)
        KEPT.mkdir(parents=True)

    def run(self, name: str, plan: str, test: str) -> Seen:
        """Run ``plan`` on the machine and return what came of it; its files are kept as ``name``."""
        # tmt has the same path on the machine
        junit, run = KEPT / f"{name}.xml", self._scratch / name
        began = time.monotonic()
        with (KEPT / f"{name}.log").open("wb") as log:
            code = run_supervised(
                [*self._namespace(), *self._tmt(plan, test, run, junit)],
                environment=self._environment(),
                directory=self._tree,
                output=log,
            )
        if code > SIGNALLED:
            sys.exit(code)
        shutil.copytree(run, KEPT / name, symlinks=True)
        return Seen(code, read_run(run), junit, time.monotonic() - began)

    def make_a_case_fail(self) -> None:
        """Let a case of the tree claim what no kernel does."""
        case = self._tree / CASE
        text = case.read_text(encoding="utf-8")
        if TRUE not in text:
            raise InputError(f"{CASE}: expected {TRUE!r} to falsify")
        case.write_text(text.replace(TRUE, FALSE, 1), encoding="utf-8")

    def _namespace(self) -> list[str]:
        """Return the words that mount the tree read-only for the command after them."""
        script = 'mount --bind -o ro "$1" "$1" && mount -o remount,bind,ro "$1" && cd "$1" && shift && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", script, "sh", str(self._tree)] if self._read_only else []

    def _tmt(self, plan: str, test: str, run: Path, junit: Path) -> list[str]:
        record = self._machine.record
        context = ["--context", f"arch={record.architecture}", "--context", "distro=debian-12"]
        if not self._guests:
            context += ["--context", "guests=no"]
        connect = ["--guest", "127.0.0.1", "--port", str(record.port), "--user", "root", "--key", str(record.key)]
        return [
            *(str(self._scratch / "venv" / "bin" / "tmt"), *context, "run", "--id", str(run), *self._told),
            *("plan", "--name", f"^/plans/{plan}$", *(["test", "--name", test] if test else [])),
            *("discover", "provision", "--how", "connect", *connect, "prepare", "execute"),
            # a second "report" would replace the first
            *("report", "--how", "junit", "--flavor", "subresults", "--file", str(junit), "cleanup"),
        ]

    def _environment(self) -> dict[str, str]:
        """Return what a worker has: nothing of ours."""
        path = f"{self._scratch / 'venv' / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"PATH": path, "HOME": str(self._scratch), "LANG": "C.UTF-8", "TMT_WORKDIR_ROOT": str(self._scratch)}


def judge_clean(seen: Seen) -> list[str]:
    """Return what is wrong with a run in which nothing was made to fail."""
    problems = [] if seen.exit_code == 0 else [f"tmt ended with exit code {seen.exit_code}, expected 0"]
    cases = _test_cases(seen.junit)
    if not any(one.verdict is Verdict.PASS for one in seen.results):
        problems.append("no case passed")
    red = [name for name, failure in cases.items() if failure is not None]
    problems += [f"red in JUnit: {name}" for name in red]
    if len(cases) != len(seen.results):
        problems.append(f"{len(cases)} test cases in JUnit, {len(seen.results)} results")
    return problems


def judge_injected(seen: Seen) -> list[str]:
    """Return what is wrong with a run in which one case claimed what no kernel does."""
    problems = [] if seen.exit_code == 1 else [f"tmt ended with exit code {seen.exit_code}, expected 1"]
    red = {name: failure for name, failure in _test_cases(seen.junit).items() if failure is not None}
    if not any(CASE_NAME in name for name in red):
        problems.append(f"{CASE_NAME} is not red in JUnit")
    for name, reason in red.items():
        if CASE_NAME not in name:
            problems.append(f"red in JUnit, too: {name}")
        elif CASE_REASON not in reason:
            problems.append(f"{name}: expected a reason with {CASE_REASON!r}, found {reason!r}")
    return problems


def _test_cases(junit: Path) -> dict[str, str | None]:
    """Return the test cases in ``junit``, each with the text of its failure or error, None where it has none."""
    try:
        root = ElementTree.parse(junit).getroot()  # noqa: S314 - written by the tmt that was just run
    except (OSError, ElementTree.ParseError) as error:
        raise InputError(f"{junit}: expected the JUnit file of tmt ({error}); see the log beside it") from error
    found: dict[str, str | None] = {}
    for case in root.iter("testcase"):
        bad = [part.text or "" for part in case if part.tag in ("failure", "error")]
        found[case.get("name", "")] = bad[0].strip() if bad else None
    return found


def _print(name: str, seen: Seen, problems: list[str]) -> list[str]:
    count = Counter(str(one.verdict) for one in seen.results)
    counts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(count.items()))
    print(f"{name}: {len(seen.results)} cases ({counts}), {seen.seconds:.0f} s, tmt exit code {seen.exit_code}")
    for problem in problems:
        print(f"  {problem}")
    return problems


@contextmanager
def _scratch() -> Iterator[Path]:
    # /tmp is emptied at each boot of the machine
    with tempfile.TemporaryDirectory(prefix="hugepage-qa-worker-", dir="/var/tmp") as directory:
        yield Path(directory)


@contextmanager
def _machine(memory: str, cpus: int) -> Iterator[SystemMachine]:
    options = SystemOptions(parse_nodes(memory, "2"), cpus)
    machine = bring_up(cache_directory(), options, deadline=DEADLINE, report=print)
    try:
        yield machine
    finally:
        Registry(cache_directory()).drop(machine.record.name)


if __name__ == "__main__":
    sys.exit(main())
