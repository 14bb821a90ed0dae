"""Run cases on a kernel that counts its lines, and tell which lines of its huge page code none has run yet.

    python -m ci.kernel_lines.unrun_lines build/kernel-lines/6.1/bzImage                  # all areas on 2 MiB
    python -m ci.kernel_lines.unrun_lines build/kernel-lines/6.1/bzImage --area pool --size 1G
    python -m ci.kernel_lines.unrun_lines build/kernel-lines/6.1/bzImage --report         # of what has run

Counts of all runs are added up in counts/ beside the image, and unrun.txt there is the report, the functions with most
lines that did not run first. A machine that is lost takes its counts with it.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from ci.kernel_lines.arc_counts import added, is_of_one_build
from ci.kernel_lines.counting_kernel import COUNTED
from ci.kernel_lines.gcov_report import find_unrun, run_gcov, told

from hugepage_qa.cache import cache_directory, locked, write_atomically
from hugepage_qa.cases.area_files import LIVE, live_areas
from hugepage_qa.cases.live_machine import MachinePlan
from hugepage_qa.cases.result import ExitCode, Verdict
from hugepage_qa.cases.selection import Selection
from hugepage_qa.cases.throwaway_run import LiveWanted, ThrowawayRun
from hugepage_qa.commands.argument_parser import Parser
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.agent_machine import RunningMachine
from hugepage_qa.qemu.boards import find_board
from hugepage_qa.qemu.kernel_image import identify
from hugepage_qa.sizes import parse_size

_DEBUGFS = "/tmp/counts"  # noqa: S108 - of a machine that nobody else is on


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, write the report, and return the exit code."""
    parser = Parser("unrun-lines", description="Which lines of the kernel's huge page code does no case run?")
    parser.add_argument("kernel", type=Path, help="image that ci.kernel_lines.counting_kernel built")
    parser.add_argument("--area", action="append", default=[], help="folder of tests/, or a file of one  [all]")
    parser.add_argument("--size", action="append", default=[], help="size of pages  [2M]")
    parser.add_argument("--machines", type=int, default=2, help="machines at once  [2]")
    parser.add_argument("--append", default="", metavar="WORDS", help="words of the kernel command line")
    parser.add_argument("--report", action="store_true", help="report on what has run, and run nothing")
    options = parser.parse_args(arguments)
    counts = LineCounts(options.kernel.resolve().parent)
    try:
        if not options.report:
            sizes = tuple(parse_size(size) for size in options.size or ["2M"])
            wanted = LiveWanted(tuple(live_areas(tuple(options.area or LIVE))), Selection(sizes=sizes))
            _run(options.kernel, options.append, wanted, options.machines, counts)
        report = counts.write_report()
    except InputError as error:
        print(f"unrun-lines: {error}", file=sys.stderr)
        return ExitCode.BROKEN
    print(f"wrote {report}")
    return ExitCode.GOOD


def _run(image: Path, append: str, wanted: LiveWanted, machines: int, counts: "LineCounts") -> None:
    kernel = identify(image)
    cpu = find_board(kernel.architecture).default_cpu
    plan = MachinePlan(kernel, cpu, cache_directory(), append, before_end=counts.take)
    run = ThrowawayRun(plan, machines, lambda name, _results, seconds: print(f"{name}: {seconds:.0f} s", flush=True))
    try:
        for result in run.run(wanted, {}):
            if result.verdict is not Verdict.PASS:
                print(f"{result.verdict.value} {result.name}: {result.reason[:200]}", flush=True)
    finally:
        run.stop()


class LineCounts:
    """What the machines of a kernel have counted, beside its image in ``place``; several runs may add to it at once."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def take(self, running: RunningMachine) -> None:
        """Add what a machine has counted. Raises InputError for a kernel that counts nothing, MachineLost as it is."""
        channel = running.channel
        try:
            channel.ask("d", _DEBUGFS)
            channel.ask("M", "hugepage-qa", _DEBUGFS, "debugfs", "")
        except OSError as error:
            raise InputError(f"debugfs cannot be mounted in the machine: {error.strerror}") from error
        # debugfs names an object by where it was built
        built = f"{_DEBUGFS}/gcov{self._place / 'built'}"
        names = [name for name in COUNTED if self._file("built", name, ".gcno").is_file()]
        answers = channel.ask_many([("r", (str(Path(built, name).with_suffix(".gcda")),)) for name in names])
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, OSError):
                raise InputError(f"this kernel counts no lines of {name}: {answer.strerror}")
            with locked(self._place / "counts" / ".lock"):
                self._add(self._file("counts", name, ".gcda"), answer[0])

    def _add(self, file: Path, counts: bytes) -> None:
        before = file.read_bytes() if file.is_file() else counts
        if before is not counts and is_of_one_build(before, counts):
            counts = added(before, counts)
        write_atomically(file, counts)

    def write_report(self) -> Path:
        """Write which lines have not run, and return the file. Raises InputError where nothing was counted."""
        found = []
        for name in COUNTED:
            notes, counts = self._file("built", name, ".gcno"), self._file("counts", name, ".gcda")
            if notes.is_file() and counts.is_file():
                source = self._place / "source" / name
                text, lines = source.read_text(encoding="utf-8"), run_gcov(notes, counts, source)
                found += [(unrun, tuple(told(unrun, text, lines))) for unrun in find_unrun(name, text, lines)]
        if not found:
            raise InputError(f"{self._place / 'counts'}: no counts, run cases first")
        found.sort(key=lambda one: (-len(one[0].lines), -len(one[0].branches)))
        report = self._place / "unrun.txt"
        report.write_text("".join(f"{line}\n" for _unrun, lines in found for line in lines), encoding="utf-8")
        return report

    def _file(self, directory: str, name: str, suffix: str) -> Path:
        return (self._place / directory / name).with_suffix(suffix)


if __name__ == "__main__":
    sys.exit(main())
