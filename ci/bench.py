"""How fast the suite itself is: ratios, each taken in one run, since machines are shared and noisy.

Prints boots per minute, the wall time of a judged boot over that of the same QEMU command run bare, the speed-up of the
matrix over one boot at a time, and the peak memory of this process (QEMU's own not included).
"""

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from hugepage_qa.cases.boot.boot_case import BootCase
from hugepage_qa.cases.boot.boot_judge import Judge
from hugepage_qa.cases.boot.boot_matrix import Matrix, Settings
from hugepage_qa.cases.boot.case_groups import groups
from hugepage_qa.cases.result import ExitCode
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.packages import cache_directory
from hugepage_qa.qemu.probe_machine import Lab
from hugepage_qa.qemu.virtual_machine import VirtualMachine
from hugepage_qa.sizes import GIB, KIB, MIB

PAIRS = 8
BOOTS = 24


def main() -> int:
    """Run all benchmarks and print their figures."""
    settings = Settings(cache=cache_directory(), say=print)
    matrix = Matrix("x86_64", settings)
    cases = [case for case in matrix.named_cases(groups(), "max") if case.memory == (2 * GIB,) and case.cpus == 1][
        :BOOTS
    ]
    print(f"kernel {matrix.kernel.release}, {len(cases)} different command lines")
    print_overhead(matrix, settings, cases[0])
    print_speed_up(settings, cases)
    # on Linux ru_maxrss is in KiB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
    print(f"peak memory of the harness: {peak / MIB:.0f} MiB (target: under 150 MB)")
    return ExitCode.GOOD


def print_overhead(matrix: Matrix, settings: Settings, case: BootCase) -> None:
    """Compare a judged boot with the same QEMU command, in ABBA order so that drift cancels out."""
    lab = Lab(settings.cache)
    judge = Judge(lab, matrix.kernel)
    command = lab.boot(VirtualMachine(matrix.kernel, case.cpu, case.memory, case.words)).qemu_command
    bare: list[float] = []
    judged: list[float] = []
    for _ in range(PAIRS // 2):
        bare.append(seconds(lambda: run_bare(command)))
        judged.append(seconds(lambda: judge.judge(case)))
        judged.append(seconds(lambda: judge.judge(case)))
        bare.append(seconds(lambda: run_bare(command)))
    ratios = [one / other for one, other in zip(sorted(judged), sorted(bare), strict=True)]
    print(
        f"judged boot over bare QEMU: {statistics.median(judged) / statistics.median(bare):.3f} by medians"
        f" ({statistics.median(judged):.2f} s and {statistics.median(bare):.2f} s, {PAIRS} each;"
        f" by rank {min(ratios):.3f} to {max(ratios):.3f}; target: at most 1.10)"
    )


def run_bare(command: Sequence[str]) -> None:
    """Run QEMU and throw away what it prints."""
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)


def print_speed_up(settings: Settings, cases: Sequence[BootCase]) -> None:
    """Compare the matrix with one boot at a time, in ABBA order."""
    one_by_one: list[float] = []
    side_by_side: list[float] = []
    for machines, times in ((1, one_by_one), (None, side_by_side), (None, side_by_side), (1, one_by_one)):
        matrix = Matrix("x86_64", replace(settings, machines=machines))
        times.append(seconds(lambda matrix=matrix: list(matrix.run(cases))))  # type: ignore[misc]
    print(f"boots per minute: {60 * len(cases) / statistics.mean(side_by_side):.1f}")
    speed_up = statistics.mean(one_by_one) / statistics.mean(side_by_side)
    print(
        f"matrix over one boot at a time: {speed_up:.2f} times as fast"
        f" ({statistics.mean(one_by_one):.1f} s and {statistics.mean(side_by_side):.1f} s; target on 2 cores: 1.8)"
    )


def seconds(action: Callable[[], object]) -> float:
    """Return the wall time of ``action`` in seconds."""
    started = time.monotonic()
    action()
    return time.monotonic() - started


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(ExitCode.BROKEN)
