"""A throwaway machine on which one thing is judged after the other: booted when one needs it, replaced when broken.

What fails ends its machine, so that nothing of it is left for the next one; a machine that dies takes only that with it
which it was lost in.
"""

import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hugepage_qa.cache import scratch_directory
from hugepage_qa.cases.boot.boot_judge import Kernel
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.machine.host import Host
from hugepage_qa.machine.throwaway_machine import ThrowawayMachine
from hugepage_qa.qemu.agent_channel import Loss, MachineLost
from hugepage_qa.qemu.agent_machine import AgentMachine, RunningMachine, start_agent_machine
from hugepage_qa.qemu.boards import find_board

#: distributions have memory cleared when it is allocated, too: that hides a huge page which nobody clears when it is
#: mapped, and an emulated machine clears a gigantic page in a second (Documentation/admin-guide/kernel-parameters.txt)
_WORDS = "init_on_alloc=0"
_SERIAL_SHOWN = 20_000
#: how a machine is lost by what the kernel did
_BY_THE_KERNEL = (Loss.PANICKED, Loss.LOCKED_UP)


@dataclass(frozen=True)
class MachinePlan:
    """The machines of a run: one kernel, architecture and CPU; ``append`` are further words of its command line."""

    kernel: Kernel
    architecture: str
    cpu: str
    cache: Path
    append: str = ""

    def machine(self, memory: tuple[int, ...]) -> AgentMachine:
        """Return a machine with ``memory`` bytes on each node, on one where the architecture has no more."""
        nodes = memory if len(memory) <= find_board(self.architecture).max_nodes else (sum(memory),)
        words = f"{_WORDS} {self.append}".strip()
        return AgentMachine(self.architecture, self.cpu, self.kernel.image, nodes, self.kernel.modules, words)


@dataclass(frozen=True)
class Task:
    """What is judged on a machine: ``act`` does, and gives the result, None when it is not meant for the machine."""

    name: str
    act: Callable[[Host], Result | None]


@dataclass(frozen=True)
class Unit:
    """Tasks for one machine, one after the other: with ``memory`` bytes on each node, and what is set up ``around``.

    No task may need that: where a machine is lost, the others run on a new one.
    """

    name: str
    memory: tuple[int, ...]
    tasks: tuple[Task, ...]
    around: Callable[[Host], AbstractContextManager[object]] = nullcontext


class Stopped(Exception):
    """The run was stopped; it says nothing about the machine."""


class _CannotSetUp(Exception):
    """What is to be around the tasks of a unit cannot be set up, or what was around others not be taken away."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.traceback = "".join(traceback.format_exception(error))
        super().__init__(str(error))


@dataclass(frozen=True)
class _Broke:
    """A result that says nothing of the kernel."""

    result: Result


class LiveMachine:
    """Used by one thread, with which its machines end; ``stop`` may be called by any."""

    def __init__(self, plan: MachinePlan) -> None:
        self._plan = plan
        self._stack = ExitStack()
        self._around = ExitStack()
        self._unit: Unit | None = None
        self._running: RunningMachine | None = None
        self._memory: tuple[int, ...] = ()
        self._backend: ThrowawayMachine | None = None
        self._lock = threading.Lock()
        self._is_stopped = False
        #: how many machines have been booted
        self.boots = 0

    @property
    def memory(self) -> tuple[int, ...]:
        """The memory that the machine that runs was asked for, empty without one."""
        return self._memory if self._running else ()

    def host(self, memory: tuple[int, ...]) -> Host:
        """Return a machine with ``memory`` on its nodes: the one that runs if it is such a one, else a new one.

        One that does not come up, and the kernel has no part in that, is tried once more. Raises MachineLost where it
        does not come up, Stopped, and InputError for what can never boot.
        """
        if self._is_stopped:
            raise Stopped
        if self._backend is None or self.memory != memory:
            try:
                self._backend = self._boot(memory)
            except MachineLost as lost:
                if lost.loss in _BY_THE_KERNEL:
                    raise
                self._backend = self._boot(memory)
        return Host(self._backend)

    def _boot(self, memory: tuple[int, ...]) -> ThrowawayMachine:
        self.close()
        self.boots += 1
        running = self._stack.enter_context(start_agent_machine(self._plan.machine(memory), self._plan.cache))
        scratch = self._stack.enter_context(scratch_directory(self._plan.cache))
        with self._lock:
            # from now on ``stop`` ends it
            self._running, self._memory = running, memory
            if self._is_stopped:
                raise Stopped
        return self._come_up(running, scratch)

    def _come_up(self, running: RunningMachine, scratch: Path) -> ThrowawayMachine:
        try:
            running.await_agent()
            return ThrowawayMachine(running, scratch, self._plan.kernel.config)
        except MachineLost as lost:
            if self._is_stopped:
                raise Stopped from lost
            raise

    def judge(self, task: Task, unit: Unit) -> Result | None:
        """Do a task of ``unit`` and return its result, None when it is not meant for the machine.

        Where a machine is lost, and the kernel has no part in that, another one is tried once. Raises Stopped, and
        InputError for what can never boot.
        """
        result = self._judge_once(task, unit)
        if isinstance(result, _Broke):
            result = self._judge_once(task, unit)
        return result.result if isinstance(result, _Broke) else result

    def close(self) -> None:
        """End the machine."""
        with self._lock:
            self._running = None
        self._backend = self._unit = None
        around = self._around.pop_all()
        self._stack.close()
        # what was set up has ended with the machine, which can be asked nothing more: so it says
        with suppress(Exception):
            around.close()

    def stop(self) -> None:
        """End the machine; no other one is booted."""
        with self._lock:
            self._is_stopped = True
            if self._running is not None:
                self._running.kill()

    def _judge_once(self, task: Task, unit: Unit) -> Result | _Broke | None:
        began = time.monotonic()
        try:
            result = task.act(self._set_up(unit))
        except MachineLost as lost:
            if self._is_stopped:
                raise Stopped from lost
            verdict = Verdict.FAIL if lost.loss in _BY_THE_KERNEL else Verdict.ERROR
            result = Result(task.name, verdict, (str(lost),), time.monotonic() - began, self._evidence(lost))
            self.close()
            return result if verdict is Verdict.FAIL else _Broke(result)
        except _CannotSetUp as why:
            # says nothing of the other tasks, for which it may have worked before
            reason = f"{type(why.error).__name__}: {why.error}"
            result = Result(task.name, Verdict.ERROR, (reason,), time.monotonic() - began, why.traceback)
        starved = "" if self._running is None else self._running.starvation.told
        if result is not None and result.verdict in (Verdict.FAIL, Verdict.ERROR):
            self.close()
            if result.verdict is Verdict.FAIL and starved:
                # what takes too long there, and the taint of a lockup, say nothing of the kernel
                reasons = (f"{Loss.STARVED.value}: {starved}", *result.reasons)
                return _Broke(replace(result, verdict=Verdict.ERROR, reasons=reasons))
        return result

    def _set_up(self, unit: Unit) -> Host:
        host = self.host(unit.memory)
        if self._unit is not unit:
            self._unit = None
            try:
                self._around.close()
                self._around.enter_context(unit.around(host))
            except MachineLost:
                raise
            except Exception as error:
                raise _CannotSetUp(error) from error
            self._unit = unit
        if self._backend is not None:
            self._backend.actions.clear()
        return host

    def _evidence(self, lost: MachineLost) -> str:
        actions = "" if self._backend is None else "".join(f"{action}\n" for action in self._backend.actions)
        return f"--- the last operations\n{actions}--- the serial console\n{lost.serial[-_SERIAL_SHOWN:]}"
