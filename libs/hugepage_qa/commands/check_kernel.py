"""``hugepage-qa check-kernel``: does this kernel break huge pages? Boot parameters and live cases, one verdict."""

import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from hugepage_qa.cases.kernel_check import KernelCheck
from hugepage_qa.cases.result import BAD, exit_code
from hugepage_qa.cases.run_settings import draw_seed
from hugepage_qa.commands.boot_commands import ARCHITECTURES
from hugepage_qa.commands.check_request import AREAS, CheckRequest
from hugepage_qa.report.check_report import CheckReport


@click.command(name="check-kernel", epilog="Example: hugepage-qa check-kernel arch/x86/boot/bzImage")
@click.argument("kernel", type=click.Path(path_type=Path), required=False)
@click.option("--arch", "architectures", type=click.Choice(ARCHITECTURES), multiple=True, help="[that of KERNEL]")
@click.option("--package", help="Package of the distribution that holds the kernel, instead of KERNEL.")
@click.option("--suite", help="Release of the distribution to take the kernel from, such as sid.")
@click.option("--append", default="", metavar="WORDS", help="Further kernel arguments for every boot.")
@click.option("--node", "nodes", multiple=True, metavar="SIZE", help="Memory of a node of live machines; repeatable.")
@click.option("--cpus", type=click.IntRange(1), default=2, help="CPUs of machines for live cases.  [2]")
@click.option("--area", "areas", multiple=True, metavar="AREA", help=f"{', '.join(AREAS)}; a file: pool/demote.")
@click.option("--case", "cases", multiple=True, metavar="NAME", help="Live case, or a pattern of names; repeatable.")
@click.option("--size", "sizes", multiple=True, metavar="SIZE", help="Page size of live cases; repeatable.")
@click.option("--random", "random_boots", type=click.IntRange(0), default=0, help="Random command lines for each CPU.")
@click.option("--operations", type=click.IntRange(0), default=0, help="Random operations on the pool of each size.")
@click.option("--minutes", type=click.IntRange(0), default=0, help="Soak: so many minutes of random races.")
@click.option("--seed", type=click.IntRange(0), default=draw_seed, help="Seed of what is random; it is printed.")
@click.option("--within", type=click.FloatRange(min=0.1), metavar="MINUTES", help="Short cases first, until then.")
@click.option("--machines", type=click.IntRange(1), help="Machines at once.  [as many as cores and memory allow]")
@click.option("-x", "--exitfirst", is_flag=True, help="End at the first failure.")
@click.option("--output", type=click.Path(path_type=Path), metavar="DIRECTORY", help="New: results and evidence.")
def check_kernel(output: Path | None, exitfirst: bool, **asked: Any) -> None:
    """Boot KERNEL in throwaway machines and judge its boot parameters and every live case.

    KERNEL is an image (bzImage, Image, vmlinux) or a package of a kernel (.deb, .rpm); without it, the distribution's
    kernel is taken. Needs neither root nor KVM. Nothing of this machine is changed. With --case or --size alone, boot
    parameters are left out. What is random is run whatever AREA is; --area random leaves all else out.

    Exit code: 0 good, 1 a case failed, 2 nothing was decided, 3 the tool or its input is wrong.
    """
    request = CheckRequest(**asked)
    console = Console()
    report = CheckReport(console, output)

    def say(line: str) -> None:
        # a line of a download is long, and its words are no markup
        console.print(Text(line), soft_wrap=True)

    live, settings, groups = request.live(), request.settings(say), request.groups()
    checks = [
        # what is wrong with one of them is told before another one takes its time
        KernelCheck(
            architecture,
            settings,
            groups,
            request.random_boots,
            live,
            report.finished,
            report.under_way,
            request.seconds,
        )
        for architecture in request.each_architecture()
    ]
    random = f", random with --seed {request.seed}" if request.is_random else ""
    for check in checks:
        report.start(f"{check.architecture}: kernel {check.kernel.release}{random}", check.expected_results)
        # a name says which of several architectures it is of
        before = f"/{check.architecture}" if len(checks) > 1 else ""
        if run_check(check, report, exitfirst=exitfirst, before=before):
            break
    report.finish()
    sys.exit(exit_code(result.verdict for result in report.results))


def run_check(check: KernelCheck, report: CheckReport, *, exitfirst: bool = False, before: str = "") -> bool:
    """Run ``check``, with names of results that begin with ``before``; tell whether a failure is to end all."""
    is_over = False
    report.kernels[check.architecture] = check.kernel.release
    try:
        with closing(check.run()) as results:
            for result in results:
                report.add(replace(result, name=f"{before}{result.name}"))
                is_over = exitfirst and result.verdict in BAD
                if is_over:
                    break
    finally:
        check.stop()
        report.stop()
    return is_over
