"""``hugepage-qa pool-random``: random operations on the pools of this machine, compared with the model."""

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from rich.console import Console

from hugepage_qa.cases.random.random_run import RandomResult, run_random_programs, run_saved_program
from hugepage_qa.cases.random.saved_program import page_size_of, read_program
from hugepage_qa.cases.result import Verdict, exit_code, one_line
from hugepage_qa.cases.run_settings import draw_seed
from hugepage_qa.durable import write_durably
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.pools import read_pools
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine.host import Host
from hugepage_qa.machine.protection import protected_machine, require_root
from hugepage_qa.machine.real_machine import real_machine
from hugepage_qa.report.terminal import progress_bar
from hugepage_qa.sizes import format_size, parse_size

Judge = Callable[[Host, int], RandomResult]


@click.command(name="pool-random", epilog="Example: hugepage-qa pool-random --operations 10000 --seed 7 --size 2M")
@click.option("--operations", type=click.IntRange(1), default=1000, show_default=True, help="Of each page size.")
@click.option("--seed", type=click.IntRange(0), help="Draws the same programs again; it is printed.")
@click.option("--size", "sizes", multiple=True, metavar="SIZE", help="Page size; repeatable.  [default: all]")
@click.option("--replay", type=click.Path(path_type=Path), metavar="FILE", help="Run the program in a file instead.")
def pool_random(operations: int, seed: int | None, sizes: tuple[str, ...], replay: Path | None) -> None:
    """Change the pools of this machine at random and compare it with the model after every operation.

    It reserves, maps, touches, forks, unmaps, truncates, demotes, mounts with quotas, limits control groups. Needs
    root and gcc. The machine is saved before and put back after, one run at a time. A program that fails is made small
    and saved in the current directory.

    Exit code: 0 good, 1 the kernel did wrong, 2 no page size could be tried, 3 the tool or its input is wrong.
    """
    if replay is not None and (sizes or seed is not None):
        raise InputError("--replay FILE: the program has its page size, nothing is drawn: leave --size and --seed out")
    require_root("pool-random")
    console = Console()
    if replay is not None:
        program = read_program(replay)
        wanted = _wanted([page_size_of(program)])
        judgements = _judge_all(wanted, lambda host, size: run_saved_program(host, size, program), console)
    else:
        chosen = draw_seed() if seed is None else seed
        wanted = _wanted([parse_size(size) for size in sizes])
        console.print(f"seed {chosen}, {operations} operations of each page size", highlight=False)
        judgements = _judge_all(wanted, _Draw(chosen, operations, console), console)
        for judgement in judgements:
            _tell_how_to_repeat(judgement, chosen, operations, console)
    sys.exit(exit_code(one.verdict for one in judgements))


class _Draw:
    """Runs random programs with a bar that shows how far they are."""

    def __init__(self, seed: int, operations: int, console: Console) -> None:
        self._seed = seed
        self._operations = operations
        self._console = console

    def __call__(self, host: Host, size: int) -> RandomResult:
        with progress_bar(self._console) as progress:
            task = progress.add_task(format_size(size), total=self._operations)
            return run_random_programs(
                host, size, self._seed, self._operations, lambda done: progress.update(task, completed=done)
            )


def _wanted(sizes: Sequence[int]) -> list[int]:
    """Return the page sizes to try, all without ``sizes``. Raises InputError for one that the machine does not have."""
    there = [pool.size for pool in read_pools(DirectoryTree(Path("/")))]
    for size in sizes:
        if size not in there:
            known = ", ".join(map(format_size, there)) or "none"
            raise InputError(f"--size {format_size(size)}: expected a page size of this machine: {known}")
    return list(dict.fromkeys(sizes)) or there


def _judge_all(sizes: Sequence[int], judge: Judge, console: Console) -> list[RandomResult]:
    """Return the verdict on each page size; what of the machine cannot be put back at the end is an error."""
    judgements = []
    with protected_machine("hugepage-qa pool-random") as protection, real_machine(protection.scratch) as machine:
        for size in sizes:
            judgements.append(judge(Host(machine), size))
            _print(judgements[-1], console)
    if protection.unrestored:
        reason = "; ".join(str(repair) for repair in protection.unrestored)
        judgements.append(RandomResult("/machine", Verdict.ERROR, (reason,)))
        _print(judgements[-1], console)
    return judgements


def _print(judgement: RandomResult, console: Console) -> None:
    rate = judgement.outcome.operations / judgement.seconds if judgement.seconds else 0.0
    line = f"{judgement.verdict.value} {judgement.name}: {judgement.reason} ({rate:.0f} operations per second)"
    console.print(one_line(line), soft_wrap=True, markup=False, highlight=False)


def _tell_how_to_repeat(judgement: RandomResult, seed: int, operations: int, console: Console) -> None:
    size, failed = judgement.name.rpartition("/")[2], judgement.outcome.failed
    command = f"hugepage-qa pool-random --operations {operations} --seed {seed} --size {size}"
    if failed is not None:
        console.print(str(failed), soft_wrap=True, markup=False, highlight=False)
        file = Path(f"pool-random-{seed}-{size}.txt").absolute()
        try:
            write_durably(file, f"# the smallest program that fails\n{failed}\n")
            command = f"hugepage-qa pool-random --replay {shlex.quote(str(file))}"
        except OSError as error:
            console.print(f"{file}: not saved: {error.strerror}", soft_wrap=True, markup=False, highlight=False)
    console.print(f"{size} again: {command}", soft_wrap=True, markup=False, highlight=False)
