"""``hugepage-qa run``: run Avocado tests, then tell tmt or the terminal what came out."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.console import Console

from hugepage_qa.cases.result import BAD, NOT_RUN, Result, Verdict, exit_code, one_line, worst
from hugepage_qa.cases.run_settings import describe_settings
from hugepage_qa.cases.selection import EVERYTHING, Selection
from hugepage_qa.commands.chosen_tests import choose_tests
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.pools import read_pools
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine.kept_file import Repair
from hugepage_qa.machine.protection import protected_machine
from hugepage_qa.plugins.asked import Asked
from hugepage_qa.plugins.vt_provider import VT_TYPES, prepare_vt, vt_options
from hugepage_qa.process.marks import PREFIX
from hugepage_qa.process.supervised import SIGNALLED, run_supervised
from hugepage_qa.report.avocado_results import JOB, read_job
from hugepage_qa.report.case_recorder import shown_as_they_come
from hugepage_qa.report.terminal import closing_lines, print_result
from hugepage_qa.report.tmt_results import write_results
from hugepage_qa.sizes import parse_size

# bits of Avocado's exit code: tests that failed or were interrupted are in results.json, the others are not
_IN_RESULTS = 1 | 8

# sun_path has 108 bytes; below this come our directory, Avocado's, and the name of its socket
_LONGEST_PARENT = 107 - len("/hugepage-qa-12345678/avocado_12345678/.status_server.sock")

# what is kept for the user to read
_KEPT = "logs-of-hugepage-qa-"

# the option of Avocado's configuration, and our directory for it
_DATA = "data_dir"


@dataclass(frozen=True)
class _Job:
    """What Avocado is to run, and what its tests are asked."""

    references: Sequence[str]
    asked: Asked
    vt_type: str | None


def run_references(
    references: Sequence[str],
    *,
    change_machine: bool = False,
    vt_type: str | None = None,
    selection: Selection = EVERYTHING,
    exit_first: bool = False,
    console: Console | None = None,
) -> int:
    """Run the Avocado tests that ``references`` name, one after the other, and return the exit code of the suite.

    With ``vt_type`` they are tests of the avocado-vt provider in the current directory. Of the cases on the running
    machine those of ``selection`` are run; with ``exit_first`` none after the first that fails.

    With ``change_machine`` the tests may change this machine: it is saved before them and put back after them, and
    what cannot be put back is an error. Each case is printed when it has ended. Under tmt (``TMT_TEST_DATA`` is set)
    the results go to ``results.yaml`` there with copies of the logs. Elsewhere Avocado's files are kept only when a
    case was bad. Raises InputError when there is nothing to run or when the results have no place to go.
    """
    if not references:
        raise InputError("no test named: expected Avocado references, for example tests/boot/boot_parameters.py")
    if vt_type is None:
        chosen = choose_tests(references, selection, [pool.size for pool in read_pools(DirectoryTree(Path("/")))])
        job = _Job(chosen.references, Asked(selection, exit_first, chosen.files), None)
    else:
        job = _Job(references, Asked(selection, exit_first), vt_type)
    console = console or Console()
    if not change_machine:
        with tempfile.TemporaryDirectory(prefix=PREFIX, dir=_parent(), ignore_cleanup_errors=True) as directory:
            return _run(job, Path(directory), Path(directory), console)
    with protected_machine(f"hugepage-qa run {' '.join(references)}") as protection:
        # should we be killed, the next start removes it
        scratch = protection.journal.make_scratch(_parent())
        return _run(job, scratch, protection.scratch, console, protection.put_back)


def _run(
    job: _Job,
    scratch: Path,
    of_the_tests: Path,
    console: Console,
    put_back: Callable[[], Sequence[Repair]] = tuple,
) -> int:
    """Run the tests, report, and return the exit code. Avocado writes to ``scratch``.

    What the tests mount and build goes to ``of_the_tests``. ``put_back`` is called after them and returns what could
    not be put back.
    """
    told_to = scratch / "results"
    config = _write_config(scratch)
    # Avocado and its tests put temporary files and sockets there, and a killed one does not remove them
    environment = {**os.environ, "TMPDIR": str(of_the_tests)} | replace(job.asked, told_to=told_to).to_environment()
    if job.vt_type is not None:
        environment = prepare_vt(job.vt_type, Path.cwd(), scratch, scratch / _DATA, environment)
    shown: set[str] = set()

    def show(result: Result) -> None:
        shown.add(result.name)
        if NOT_RUN not in result.reasons:
            print_result(console, result)

    with shown_as_they_come(told_to, show):
        code = run_supervised(_avocado(job, scratch, config), environment=environment)
    results = [*read_job(scratch / "jobs"), *_failure_of_avocado(code), *_unrestored(put_back())]
    for result in results:
        if result.name not in shown:
            print_result(console, result)
    _report(results, scratch, console)
    return exit_code(result.verdict for result in results)


def _unrestored(repairs: Sequence[Repair]) -> list[Result]:
    """Return an error when the machine could not be put back."""
    reasons = tuple(one_line(str(repair)) for repair in repairs)
    return [Result(JOB, Verdict.ERROR, reasons)] if reasons else []


def _report(results: Sequence[Result], scratch: Path, console: Console) -> None:
    data = os.environ.get("TMT_TEST_DATA")
    if data:
        write_results(results, _existing_directory(data))
    elif worst(result.verdict for result in results) in BAD:
        _keep(scratch / "jobs", console)
    for line in closing_lines(results):
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def _keep(jobs: Path, console: Console) -> None:
    """Copy Avocado's files to a place that stays; there are none when it did not start a job."""
    if not jobs.is_dir():
        return
    # they are to stay, and must not look like what a run forgot
    kept = Path(tempfile.mkdtemp(prefix=_KEPT))
    shutil.copytree(jobs, kept, symlinks=True, dirs_exist_ok=True)
    console.print(f"logs: {kept}", soft_wrap=True, markup=False, highlight=False)


def _existing_directory(path: str) -> Path:
    directory = Path(path)
    if not directory.is_dir():
        raise InputError(f"TMT_TEST_DATA={path}: expected a directory")
    return directory


def _failure_of_avocado(code: int) -> list[Result]:
    """Return an error when Avocado's exit code tells of something that its results do not."""
    if code >= 0 and not code & ~_IN_RESULTS:
        return []
    reason = f"stopped by signal {code - 128}" if code > SIGNALLED else f"avocado run ended with exit code {code}"
    return [Result(JOB, Verdict.ERROR, (reason,))]


def _avocado(job: _Job, scratch: Path, config: Path) -> list[str]:
    # one test at a time: the pools of huge pages belong to the whole machine
    options = ["--max-parallel-tasks", "1", "--disable-sysinfo", "--job-results-dir", str(scratch / "jobs")]
    if job.asked.exit_first:
        options.append("--failfast")
    if job.vt_type is None:
        module, vt = "hugepage_qa.plugins.forked_tests", []
    else:
        module, vt = "avocado", vt_options(job.vt_type)
    return [sys.executable, "-m", module, "--config", str(config), "run", *vt, *options, "--", *job.references]


def _write_config(scratch: Path) -> Path:
    """Give Avocado its directories below ``scratch``: it would make ``~/avocado`` otherwise."""
    directories = {name: scratch / name for name in ("base_dir", "test_dir", _DATA, "logs_dir")}
    for directory in directories.values():
        directory.mkdir()
    # where Avocado looks when ``scratch`` is its HOME
    config = scratch / ".config" / "avocado" / "avocado.conf"
    config.parent.mkdir(parents=True)
    paths = [f"{name} = {directory}" for name, directory in directories.items()]
    # the lock of avocado-vt is in /tmp otherwise, and stays there
    lines = ["[datadir.paths]", *paths, "[plugins.vtjoblock]", f"dir = {scratch}"]
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return config


def _parent() -> Path:
    """Return where our directory is made."""
    # Avocado waits for ever when the path of its socket is longer than the kernel allows
    return Path(tempfile.gettempdir() if len(tempfile.gettempdir()) <= _LONGEST_PARENT else "/tmp")  # noqa: S108


@click.command(
    name="run",
    epilog="Example: HUGEPAGE_QA_ARCH=aarch64 hugepage-qa run tests/boot/boot_parameters.py;"
    " hugepage-qa run --change-machine -x --case grow-and-shrink --size 2M tests/pool/pool.py",
    help=f"""Run Avocado tests; the results go to tmt when it started us, else to the terminal.

    REFERENCES are what "avocado list" understands: files, or FILE:CLASS.METHOD;
    with --vt-type what avocado-vt does: names of variants, as in hugepages..refuse.
    Files of cases on the running machine run in one process, those of guests in one each.

    \b
    The tests read these environment variables:
    {describe_settings(indent=4)}

    Exit code: 0 good, 1 a case failed, 2 every case was skipped, 3 the suite or its input is wrong.
    """,
)
@click.option(
    "--change-machine",
    is_flag=True,
    help="The tests change this machine (root): save it before, put it back after, one run at a time.",
)
@click.option(
    "--vt-type",
    type=click.Choice(VT_TYPES),
    help="The tests are those of the avocado-vt provider in this directory: bootstrap it, without a download.",
)
@click.option(
    "--case",
    "cases",
    multiple=True,
    metavar="NAME",
    help="Only this case of the running machine, as results name it, with its area and page size or without"
    " (grow-and-shrink, /pool/pool/grow-and-shrink/2M); may be a pattern as of a shell. Repeatable.",
)
@click.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="SIZE",
    help="Only pages of this size, such as 2M; cases that are about no page size run, too. Repeatable.",
)
@click.option("-x", "--exitfirst", is_flag=True, help="The first failure or error ends the run; the rest is not run.")
@click.argument("references", nargs=-1, required=True)
def run_command(
    references: tuple[str, ...],
    change_machine: bool,
    vt_type: str | None,
    cases: tuple[str, ...],
    sizes: tuple[str, ...],
    exitfirst: bool,
) -> None:
    """Run Avocado tests and end with the exit code of the suite."""
    try:
        selection = Selection(cases, tuple(map(parse_size, sizes)))
        if vt_type is not None and selection != EVERYTHING:
            raise InputError("--vt-type with --case or --size: expected names of variants, as in hugepages..refuse")
        code = run_references(
            references, change_machine=change_machine, vt_type=vt_type, selection=selection, exit_first=exitfirst
        )
    except InputError as error:
        # tmt tells no more than that there are no results, unless there is one
        if data := os.environ.get("TMT_TEST_DATA"):
            write_results([Result(JOB, Verdict.ERROR, (one_line(str(error)),))], _existing_directory(data))
        raise
    sys.exit(code)
