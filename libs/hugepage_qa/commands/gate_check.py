"""``hugepage-qa gate check``: measure, compare with the baseline of this machine, report. The plan ``gate`` runs it."""

import getpass
import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from hugepage_gate.accept import Request, accept, write
from hugepage_gate.baseline_file import FEWEST_BLOCKS
from hugepage_gate.baseline_store import BaselineStore
from hugepage_gate.block_summary import summarise_set
from hugepage_gate.compare_suites import Terms, compare, margins
from hugepage_gate.comparison import Comparison, as_json
from hugepage_gate.environment import env_id
from hugepage_gate.sample_files import read_one_machine
from hugepage_gate.samples import SampleSet, exit_code, verdict_on_all
from hugepage_gate.samples import Verdict as GateVerdict
from hugepage_qa.bench.gate_settings import ACCEPT, BLOCKS, MEANING, GateSettings
from hugepage_qa.cases.result import ExitCode, Result, Verdict
from hugepage_qa.commands.gate_measure import Measured, MeasureOptions, take_samples
from hugepage_qa.commands.gate_options import html_renderer, make_policy
from hugepage_qa.durable import write_durably
from hugepage_qa.errors import InputError
from hugepage_qa.report.comparison_screen import print_screen
from hugepage_qa.report.gate_page import GatePage, make_page
from hugepage_qa.report.gate_results import comparison_results, skipped_results
from hugepage_qa.report.gate_run import AGAIN, samples_in
from hugepage_qa.report.gate_tables import render_markdown
from hugepage_qa.report.next_step import Ways, next_step
from hugepage_qa.report.open_console import open_console
from hugepage_qa.report.tmt_results import write_results

#: lines of the screen that are left to the command itself and to the prompt
_SPARE = 2
#: what is judged, whatever else is recorded of the programs
_SUBJECT = "kernel"
_GOOD = frozenset({GateVerdict.PASS, GateVerdict.IMPROVED})
#: more sessions can change these no more
_DECIDED = _GOOD | {GateVerdict.REGRESSED, GateVerdict.NOT_COMPARABLE}


@click.command(
    name="check",
    epilog="Example: HUGEPAGE_QA_ACCEPT='first baseline' hugepage-qa gate check --output monday",
    help="""Measure, compare with the baseline of this machine, and report; to tmt when it started us.

    It looks after each session, up to five, and stops at a verdict. A check that was killed goes on with the same
    command.

    \b
    These environment variables are read:
    """
    + "\n    ".join(f"{name:22} {meaning}" for name, meaning in MEANING.items())
    + """

    Exit code: 0 pass or improved, 1 regressed, 2 undecided or nothing measured, 3 something is wrong.
    """,
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for samples and reports; under tmt that of the test.",
)
def command(output: Path | None) -> None:
    """Run the check and end with the exit code of the verdict."""
    data = os.environ.get("TMT_TEST_DATA")
    if output is None and not data:
        raise InputError("--output: expected a directory for samples and reports")
    directory = output or Path(str(data))
    directory.mkdir(parents=True, exist_ok=True)
    check = _Check(GateSettings.from_environment(), directory)
    try:
        code = check.run()
    except InputError as error:
        # without results tmt would tell of a missing file and not of what is wrong
        check.results.append(Result("/", Verdict.ERROR, (str(error),)))
        raise
    finally:
        if data and check.results:
            write_results(check.results, Path(data))
    sys.exit(code)


def is_decided(comparison: Comparison) -> bool:
    """Return whether more sessions can change the verdict no more, nor make a margin visible."""
    could_see = any(one.gates and one.verdict is GateVerdict.BLIND and one.more_blocks for one in comparison.results)
    is_good = comparison.verdict in _GOOD
    return comparison.verdict in _DECIDED and not (is_good and could_see)


class _Check:
    """One run of the gate; ``results`` are for tmt."""

    def __init__(self, settings: GateSettings, directory: Path) -> None:
        self._settings = settings
        self._directory = directory
        self._store = BaselineStore(settings.baselines)
        self._policy = make_policy(None, settings.baselines, None)
        # what is missing is told before hours of measuring
        self._render = html_renderer()
        self._pages: dict[str, GatePage] = {}
        self.results: list[Result] = []

    def run(self) -> int:
        """Measure and compare, and return the exit code."""
        first, *later = self._settings.looks
        measured = self._measure(first)
        if self._settings.accept and not self._again.exists() and self._without_baseline(measured):
            self._accept(self._without_baseline(self._measure(FEWEST_BLOCKS)))
            measured = self._measure(first)
        comparisons = self._look(measured)
        for look in later:
            if all(map(is_decided, comparisons)):
                break
            measured = self._measure(look)
            comparisons = self._look(measured)
        self._report(comparisons, measured)
        if measured.unrestored:
            return ExitCode.BROKEN
        return exit_code(verdict_on_all(one.verdict for one in comparisons))

    @property
    def _again(self) -> Path:
        """Where it is measured once the samples of the first time have become the baseline."""
        return self._directory / AGAIN

    def _measure(self, sessions: int) -> Measured:
        settings = self._settings
        directory = samples_in(self._directory)
        chosen = settings.workloads, settings.configurations
        return take_samples(MeasureOptions(settings.profile, *chosen, sessions, directory, None, settings.stand_ins))

    def _without_baseline(self, measured: Measured) -> list[SampleSet]:
        """Return the samples that have no baseline of just this machine and set-up."""
        sets = [read_one_machine([file]) for file in measured.files]
        return [
            one
            for one in sets
            if not any(
                self._settings.baselines.glob(f"{one.environment['arch']}/{env_id(one.environment)}/{one.suite}/*.json")
            )
        ]

    def _accept(self, sets: Sequence[SampleSet]) -> None:
        request = Request(getpass.getuser(), self._settings.accept, "current", datetime.now(UTC).date())
        for samples in sets:
            for path in write(self._store, accept(self._store, samples, request, self._policy), samples, request, None):
                click.echo(path)
                # a copy beside the samples: of a machine of CI nothing else comes back to whoever commits it
                copy = self._directory / "baselines" / path.relative_to(self._settings.baselines)
                copy.parent.mkdir(parents=True, exist_ok=True)
                write_durably(copy, path.read_text(encoding="utf-8"))
        self._again.mkdir()

    def _look(self, measured: Measured) -> list[Comparison]:
        return [self._compare(read_one_machine([file])) for file in measured.files]

    def _compare(self, samples: SampleSet) -> Comparison:
        settings = self._settings
        try:
            baseline = self._store.baseline_for(samples, _SUBJECT)
        except InputError:
            if any(settings.baselines.glob(f"*/*/{samples.suite}/*.json")):
                raise
            reason = f"no baseline in {settings.baselines}; {ACCEPT}=REASON accepts a first one"
            return Comparison(
                samples.suite, str(settings.baselines), samples.source, GateVerdict.NOT_COMPARABLE, reason
            )
        # what was done on purpose may differ although the kernel is judged
        allowed = frozenset({"stand_ins"} & samples.subject.keys())
        terms = Terms(self._policy, _SUBJECT, allowed, fewest_boots=settings.min_boots)
        numbers = summarise_set(samples, margins(samples, self._policy))
        comparison = compare(baseline, samples, terms, numbers)
        self._pages[samples.suite] = make_page(comparison, baseline, samples, numbers)
        return comparison

    def _report(self, comparisons: Sequence[Comparison], measured: Measured) -> None:
        for one in comparisons:
            logs = {
                ".md": render_markdown(one),
                # who runs the plan reads it again
                ".json": json.dumps(as_json(one), indent=1, allow_nan=False),
            }
            if one.suite in self._pages:
                logs[".html"] = self._render(self._pages[one.suite])
            files = tuple(self._directory / f"{one.suite}{suffix}" for suffix in logs)
            for file, text in zip(files, logs.values(), strict=True):
                write_durably(file, text)
            self.results += comparison_results(one, files)
        pages, look = f"{self._directory}/*.html", self._settings.next_look
        ways = Ways(
            f'{ACCEPT}="first baseline"',
            f"{BLOCKS}={look}" if look else "",
            str(samples_in(self._directory)),
            str(self._settings.baselines),
        )
        if comparisons:
            print_screen(open_console(), comparisons, pages, next_step(comparisons, ways), _SPARE)
        self.results += skipped_results(measured.skipped)
        if measured.unrestored:
            self.results.append(Result("/", Verdict.ERROR, tuple(map(str, measured.unrestored))))
