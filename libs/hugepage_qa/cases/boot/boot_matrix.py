"""Many cases: named groups and random ones, as many boots at once as the host has room for."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from hugepage_qa.cases.boot import boot_case as named
from hugepage_qa.cases.boot.boot_case import CPU_MARK, BootCase, Target
from hugepage_qa.cases.boot.boot_judge import BootResult, Judge
from hugepage_qa.cases.result import Verdict
from hugepage_qa.oracle.boot.unknown_parameters import PARAMETERS, is_known
from hugepage_qa.qemu.boards import find_board
from hugepage_qa.qemu.fleet import free_memory, run_jobs
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.nominal import nominal_machine
from hugepage_qa.qemu.packages import cache_directory, distribution_kernel, open_kernel
from hugepage_qa.qemu.probe_machine import Lab
from hugepage_qa.qemu.virtual_machine import host_memory
from hugepage_qa.sizes import GIB, MIB


@dataclass(frozen=True)
class Settings:
    """What a matrix runs with. ``kernel`` is an image or package of the user's; None takes the distribution's."""

    kernel: Path | None = None
    package: str | None = None
    suite: str | None = None
    append: str = ""
    cache: Path = field(default_factory=cache_directory)
    deadline: float = 120.0
    #: machines at once; None for as many as the host has room for
    machines: int | None = None
    #: takes lines about what takes long
    say: Callable[[str], None] = lambda _: None


class Matrix:
    """All cases of one architecture on one kernel."""

    def __init__(self, architecture: str, settings: Settings) -> None:
        """Obtain the kernel; raises InputError where there is none for ``architecture``."""
        self.board = find_board(architecture)
        self.kernel = find_kernel(architecture, settings)
        self._lab = Lab(settings.cache, deadline=settings.deadline, report=settings.say)
        self._judge = Judge(self._lab, self.kernel, settings.append)
        self._machines = settings.machines

    def targets(self, cpu: str | None = None) -> tuple[Target, ...]:
        """Return the machines of this architecture: one for each CPU, or for ``cpu`` alone."""
        names = (cpu,) if cpu else tuple(self.board.cpus)
        return tuple(self._target(name) for name in names)

    def named_cases(self, groups: Iterable[str], cpu: str | None = None) -> list[BootCase]:
        """Return the named cases of ``groups``; on CPUs other than the default one only what differs there."""
        cases = []
        for target in self.targets(cpu):
            for group in groups:
                cases += [
                    self._with_cpu(one)
                    for one in named.load_group(group, target)
                    if cpu or self._says_something(one, target)
                ]
        return cases

    def run(self, cases: Sequence[BootCase]) -> Generator[BootResult, None, None]:
        """Boot and judge ``cases``; yields as they end. A machine that this host has no memory for is a skip."""
        free = free_memory()
        fitting = [case for case in cases if _memory_need(case) <= free]
        yield from skipped_for_memory(cases, free)
        judged = run_jobs(fitting, self._judge.judge, _memory_need, machines=self._machines, stop=self._lab.stop)
        yield from (judgement for _, judgement in judged)

    def run_random(self, count: int, seed: int, cpu: str | None = None) -> Iterator[BootResult]:
        """Boot and judge ``count`` random command lines on each CPU; failing ones come again in their smallest form."""
        if not count:
            return
        # with it comes Hypothesis, which takes longer to import than all of ours
        from hugepage_qa.cases.boot.random_boots import broken_rule, draw, shrink  # noqa: PLC0415

        for target in self.targets(cpu):
            failed: dict[str, BootResult] = {}
            for judgement in self.run([self._with_cpu(one) for one in draw(target, count, seed)]):
                yield judgement
                if judgement.verdict is Verdict.FAIL:
                    failed.setdefault(broken_rule(judgement), judgement)
            for judgement in failed.values():
                yield shrink(target, judgement, self._judge.judge)

    def stop(self) -> None:
        """End the machines that run now."""
        self._lab.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _says_something(self, case: BootCase, target: Target) -> bool:
        """Tell whether ``case`` is worth a boot on this CPU besides the default one: where page sizes matter to it."""
        default = self._target(self.board.default_cpu)
        return target.cpu == default.cpu or target.mmu != default.mmu or "hugepagesz=" in case.words

    def _with_cpu(self, case: BootCase) -> BootCase:
        """Return ``case`` with its CPU in the name, so that no two have one, unless it is the default CPU."""
        return case if case.cpu == self.board.default_cpu else replace(case, name=f"{case.name}{CPU_MARK}{case.cpu}")

    def _target(self, cpu: str) -> Target:
        machine = nominal_machine(self.kernel, cpu, (GIB,))
        parameters = frozenset(name for name in PARAMETERS if is_known(name, machine))
        return Target(self.board.architecture, cpu, machine.mmu, machine.features, parameters)


def find_kernel(architecture: str, settings: Settings) -> KernelImage:
    """Return the kernel that ``settings`` name. Raises InputError where there is none for ``architecture``."""
    if settings.kernel is not None:
        return open_kernel(settings.kernel, settings.cache, architecture)
    return distribution_kernel(
        architecture, settings.cache, package=settings.package, suite=settings.suite, report=settings.say
    )


def skipped_for_memory(cases: Iterable[BootCase], free: int) -> Iterator[BootResult]:
    """Yield a skip for each of ``cases`` whose machine needs more than ``free`` bytes of the host's memory."""
    for case in cases:
        need = _memory_need(case)
        if need > free:
            reason = f"its machine needs {-(-need // MIB)} MiB of host memory, and less is free"
            yield BootResult(case.name, Verdict.SKIP, (reason,), case=case, command_line=case.words)


def _memory_need(case: BootCase) -> int:
    return host_memory(case.memory, case.words)
