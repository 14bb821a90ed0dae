"""``hugepage-qa gate path-length``: does a kernel take more instructions than another for what it does with pages?"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import click
from rich.text import Text

from hugepage_gate.compare_suites import Terms, baseline_from_samples, compare
from hugepage_gate.comparison import Comparison
from hugepage_gate.gate_policy import MetricPolicy, Policy
from hugepage_gate.sample_format import format_samples, parse_samples
from hugepage_gate.samples import SampleSet, Verdict, exit_code, verdict_on_all
from hugepage_qa.bench.counted_kernels import (
    CountedBoot,
    CountedBoots,
    CountedKernel,
    KernelLost,
    missing_paths,
    sample_document,
)
from hugepage_qa.bench.shorter_paths import no_shorter_paths
from hugepage_qa.cases.boot.boot_matrix import Settings, find_kernel
from hugepage_qa.cases.result import ExitCode, Result, one_line
from hugepage_qa.cases.result import Verdict as Outcome
from hugepage_qa.cases.verdicts import BY_THE_KERNEL
from hugepage_qa.commands.boot_commands import ARCHITECTURES
from hugepage_qa.commands.gate_options import Share
from hugepage_qa.durable import write_durably
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.packages import cache_directory, open_kernel
from hugepage_qa.report.comparison_screen import print_comparison
from hugepage_qa.report.gate_results import comparison_results
from hugepage_qa.report.gate_tables import path_table, render_markdown
from hugepage_qa.report.open_console import open_console
from hugepage_qa.report.tmt_results import write_results

#: boots of each kernel: of fewer than three the gate says little
_FEWEST, _USUAL, _MOST = 3, 3, 20
#: boots of one kernel differ by up to half a percent, and two builds of it by what the compiler made of it
_MARGIN = 0.03
#: for the mean of all rounds: a timer interrupt in one of 25, of the shortest operation, is 2 % of it
_SLOW_MARGIN = 0.1
_REPORT = "report.md"
#: the result of what needs no other kernel
_SHORTER = "/path-length/shorter-on-huge-pages"


@click.command(
    name="path-length", epilog="Example: hugepage-qa gate path-length arch/x86/boot/bzImage --against bzImage.old"
)
@click.argument("kernel", type=click.Path(path_type=Path), required=False)
@click.option(
    "--against", "others", multiple=True, type=click.Path(path_type=Path), help="Image or package; repeatable."
)
@click.option("--against-suite", "suites", multiple=True, help="Release of the distribution: its kernel; repeatable.")
@click.option("--arch", "architecture", type=click.Choice(ARCHITECTURES), help="[that of KERNEL, else x86_64]")
@click.option("--package", help="Package of the distribution that holds the kernel, instead of KERNEL.")
@click.option("--suite", help="Release of the distribution to take the kernel from, such as sid.")
@click.option("--append", default="", metavar="WORDS", help="Further kernel arguments, for KERNEL and no other.")
@click.option(
    "--boots", type=click.IntRange(_FEWEST, _MOST), default=_USUAL, show_default=True, help="Boots of each kernel."
)
@click.option("--margin", type=Share(), default=_MARGIN, show_default="3%", help="Longer by this does not matter.")
@click.option("--machines", type=click.IntRange(1), help="Machines at once.  [as many as cores and memory allow]")
@click.option("--output", type=click.Path(path_type=Path), metavar="DIRECTORY", help="New: samples and report.")
@click.option("--all", "shows_all", is_flag=True, help="Show every path, not those alone that ask for a look.")
def path_length(
    kernel: Path | None,
    others: tuple[Path, ...],
    suites: tuple[str, ...],
    architecture: str | None,
    package: str | None,
    suite: str | None,
    append: str,
    boots: int,
    margin: float,
    machines: int | None,
    output: Path | None,
    shows_all: bool,
) -> None:
    """Count the instructions of KERNEL for what it does with pages, and compare them with those of others.

    Kernels are images or packages (.deb, .rpm); without KERNEL, the distribution's is taken. They boot in turns in
    emulated machines whose clock counts instructions, so that neither load nor speed of this host shows. Nor do caches,
    TLBs and other processors: it is the length of the path that is compared. Needs neither root nor KVM. What is done
    to a huge page as a whole has to be shorter than the same to as many base pages, whatever others take for it.

    Under tmt it leaves a result for each path; without a kernel to compare with it is skipped there.

    Exit code: 0 pass or improved, 1 a path became longer, 2 undecided, 3 the tool or its input is wrong.
    """
    data = os.environ.get("TMT_TEST_DATA")
    if data and not (others or suites):
        write_results([Result("/", Outcome.SKIP, ("HUGEPAGE_QA_AGAINST: no kernel to compare with",))], Path(data))
        sys.exit(ExitCode.UNDECIDED)
    if kernel is not None and (package or suite):
        raise InputError("KERNEL and --package or --suite: expected one kernel, leave out the one or the other")
    if not (others or suites):
        raise InputError("--against or --against-suite: expected a kernel to compare with")
    if data and output is None:
        output = Path(data) / "path-length"
    if output is not None and (output.exists() or output.is_symlink()):
        raise InputError(f"--output {output}: is there already; expected a new directory")
    wanted = architecture or (open_kernel(kernel, cache_directory()).architecture if kernel else ARCHITECTURES[0])
    console = open_console()

    def say(line: str) -> None:
        console.print(Text(line), soft_wrap=True)

    settings = Settings(kernel, package, suite, say=say)
    others_settings = [Settings(other, say=say) for other in others] + [Settings(suite=one, say=say) for one in suites]
    subjects = [CountedKernel(find_kernel(wanted, settings), append)]
    subjects += [CountedKernel(find_kernel(wanted, one)) for one in others_settings]
    with _told_to_tmt(data, subjects[0], say):
        counted = _count(subjects, boots, machines, say)
    samples = [
        parse_samples(sample_document(subject, its_boots), subject.label)
        for subject, its_boots in zip(subjects, counted, strict=True)
    ]
    policy = path_policy(margin)
    comparisons = [compare_paths(old, samples[0], policy) for old in samples[1:]]
    for one in comparisons:
        print_comparison(console, one, shows_all=shows_all)
    for subject, its_boots in zip(subjects, counted, strict=True):
        for name, why in missing_paths(its_boots).items():
            say(f"not counted: {name} of {subject.label}: {why}")
    long_paths = [str(one) for one in no_shorter_paths([boot.paths.lengths for boot in counted[0]])]
    for told in long_paths:
        say(f"no shorter on huge pages: {told}")
    if output is not None:
        _keep(output, samples, comparisons)
        say(f"report: {output / _REPORT}")
        if data:
            logs = (output / _REPORT,)
            results = [result for one in comparisons for result in comparison_results(one, logs)]
            outcome = Outcome.FAIL if long_paths else Outcome.PASS
            write_results([*results, Result(_SHORTER, outcome, tuple(long_paths))], Path(data))
    sys.exit(ExitCode.BAD if long_paths else exit_code(verdict_on_all(one.verdict for one in comparisons)))


def path_policy(margin: float) -> Policy:
    """Return the rules for all paths: ``margin`` for the usual round."""
    return Policy(default=MetricPolicy(margin=margin, tail_margin=max(margin, _SLOW_MARGIN)))


def compare_paths(old: SampleSet, new: SampleSet, policy: Policy) -> Comparison:
    """Return what became of the paths that both kernels have; one that the new kernel alone lacks decides nothing."""
    shared = tuple(series for series in new if series.key in {one.key for one in old})
    lacking = [series.name for series in old if series.key not in {one.key for one in new}]
    terms = Terms(policy, oldest=None, fewest_blocks=_FEWEST, fewest_boots=_FEWEST)
    found = compare(baseline_from_samples(old, policy), replace(new, series=shared), terms)
    if lacking and found.verdict in (Verdict.PASS, Verdict.IMPROVED):
        reason = f"{new.source} does not do what {old.source} does: {', '.join(lacking)}"
        return replace(found, verdict=Verdict.UNDECIDED, reason=reason)
    return found


@contextmanager
def _told_to_tmt(data: str | None, kernel: CountedKernel, say: Callable[[str], None]) -> Iterator[None]:
    """End with what keeps paths from being counted, and leave it in ``data`` where tmt started us.

    Where ``kernel`` makes its machine panic, that is a failure of its own. Raises InputError.
    """
    try:
        yield
    except KernelLost as error:
        is_bad = error.kernel is kernel and error.lost.loss in BY_THE_KERNEL
        if data:
            outcome = Outcome.FAIL if is_bad else Outcome.ERROR
            write_results([Result("/", outcome, (one_line(str(error)),))], Path(data))
        if not is_bad:
            raise InputError(str(error)) from error
        say(one_line(f"regressed: {error}"))
        sys.exit(ExitCode.BAD)


def _count(
    kernels: Sequence[CountedKernel], boots: int, machines: int | None, say: Callable[[str], None]
) -> list[list[CountedBoot]]:
    """Return the boots of each of ``kernels``. Raises InputError for what never boots, KernelLost."""
    counted: list[list[CountedBoot]] = [[] for _ in kernels]
    run = CountedBoots(kernels, boots, cache_directory(), machines)
    with closing(run.run()) as finished:
        for boot in finished:
            counted[boot.kernel].append(boot)
            done = sum(map(len, counted))
            say(f"[{done}/{len(kernels) * boots}] {kernels[boot.kernel].label}: {boot.seconds:.0f} s")
    return counted


def _keep(output: Path, samples: Sequence[SampleSet], comparisons: Sequence[Comparison]) -> None:
    """Write samples, which gate compare reads, and the report."""
    output.mkdir(parents=True)
    for place, one in enumerate(samples):
        write_durably(output / f"kernel-{place}.json", format_samples(one))
    parts = [f"# {one.new} against {one.baseline}\n\n{render_markdown(one)}" for one in comparisons]
    write_durably(output / _REPORT, "\n".join([*parts, "# All paths\n", *path_table(samples), ""]))
