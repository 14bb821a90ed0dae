"""A throwaway machine on which one thing is judged after the other: booted when one needs it, replaced when broken.

What fails ends its machine, so that nothing of it is left for the next one; a machine that dies takes only that with it
which it was lost in. What memory is too fragmented for after many others gets a new machine, too.
"""

import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from hugepage_qa.cache import scratch_directory
from hugepage_qa.cases.result import BAD, BROKEN_BEFORE, FRAGMENTED, Result, Verdict
from hugepage_qa.cases.verdicts import lost_result, try_again
from hugepage_qa.machine.host import Host
from hugepage_qa.machine.throwaway_machine import ThrowawayMachine
from hugepage_qa.qemu.agent_machine import RunningMachine, start_agent_machine
from hugepage_qa.qemu.boards import find_board
from hugepage_qa.qemu.emulator import Stopped
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.lost_machine import Loss, MachineLost
from hugepage_qa.qemu.virtual_machine import VirtualMachine

#: whoever asked, the agent or an actor: an oops is the end of the machine, with its trace on the console, and by the
#: kernel's fault or the emulator's
_ENDS_AT_AN_OOPS = "oops=panic"
#: of structures of one size each kind has a cache of its own (cases/kernel_objects.py)
_CACHES_APART = "slab_nomerge"
_SERIAL_SHOWN = 20_000
#: what so many tasks have left in memory may lie within each range that a huge page needs; another boot takes seconds,
#: and where a new machine has no range either, it would be in vain each time
_TASKS_THAT_WEAR = 10

T = TypeVar("T")


@dataclass(frozen=True)
class MachineKind:
    """A machine with ``memory`` bytes on each node, where the kernel clears pages as it allocates them or does not.

    Distributions have them ``cleared``, and then the kernel looks whether pages are bad (see ``checks_pages``). But
    that hides a huge page which nobody clears when it is mapped, and an emulated machine clears a gigantic page in a
    second. ``words`` are further ones of its kernel command line.
    """

    memory: tuple[int, ...]
    cleared: bool = True
    words: str = ""


@dataclass(frozen=True)
class MachinePlan:
    """The machines of a run: one kernel and CPU; ``append`` are further words of its command line.

    With ``nodes`` all machines have that many bytes on each node, whatever is run on them. ``before_end`` may ask each
    machine that is still there before it is ended.
    """

    kernel: KernelImage
    cpu: str
    cache: Path
    append: str = ""
    nodes: tuple[int, ...] = ()
    cpus: int = 2
    before_end: Callable[[RunningMachine], None] = lambda _running: None

    def machine(self, kind: MachineKind) -> VirtualMachine:
        """Return a machine of that kind, with all memory on one node where the architecture has no more."""
        words = " ".join(
            word
            for word in (f"init_on_alloc={int(kind.cleared)}", _ENDS_AT_AN_OOPS, _CACHES_APART, kind.words, self.append)
            if word
        )
        memory = kind.memory
        if len(memory) > find_board(self.kernel.architecture).max_nodes:
            memory = (sum(memory),)
        return VirtualMachine(self.kernel, self.cpu, self.nodes or memory, words, cpus=self.cpus, runs_guests=True)


@dataclass(frozen=True)
class Task:
    """What is judged on a machine: ``act`` does, and gives the result, None when it is not meant for the machine."""

    name: str
    act: Callable[[Host], Result | None]


@dataclass(frozen=True)
class Unit:
    """Tasks for one machine of a kind, one after the other, with what is set up ``around``.

    No task may need that: where a machine is lost, the others run on a new one. ``seconds`` is what they are taken to
    take. With ``first`` no other unit may have run on the machine before. Units of a lower ``step`` come first.
    """

    name: str
    kind: MachineKind
    tasks: tuple[Task, ...]
    around: Callable[[Host], AbstractContextManager[object]] = nullcontext
    seconds: float = 60.0
    first: bool = False
    step: int = 0


class _CannotSetUp(Exception):
    """What is to be around the tasks of a unit cannot be set up, or what was around others cannot be taken away."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.traceback = "".join(traceback.format_exception(error))
        super().__init__(str(error))


class LiveMachine:
    """Used by one thread, with which its machines end; ``stop`` may be called by any."""

    def __init__(self, plan: MachinePlan) -> None:
        self._plan = plan
        self._stack = ExitStack()
        self._around = ExitStack()
        self._unit: Unit | None = None
        self._running: RunningMachine | None = None
        self._kind: MachineKind | None = None
        self._backend: ThrowawayMachine | None = None
        self._lock = threading.Lock()
        self._is_stopped = False
        #: how many tasks the machine that runs was asked for
        self._tasks = 0
        #: how many machines have been booted
        self.boots = 0

    @property
    def kind(self) -> MachineKind | None:
        """What the machine that runs was asked for as, None without one."""
        return self._kind if self._running else None

    def host(self, kind: MachineKind) -> Host:
        """Return a machine of that kind: the one that runs if it is such a one, else a new one.

        Raises as ``judge`` does, and MachineLost where none comes up.
        """
        return self._try_again(partial(self._host, kind))[0]

    def judge(self, task: Task, unit: Unit) -> Result | None:
        """Do a task of ``unit`` and return its result, None when it is not meant for the machine.

        Where a machine is lost, and the kernel has no part in that, another one is tried. Raises Stopped, and
        InputError for what can never boot.
        """
        began = time.monotonic()
        try:
            result, before = self._try_again(partial(self._act, task, unit))
        except MachineLost as lost:
            return lost_result(task.name, lost, time.monotonic() - began)
        if result is None or before is None:
            return result
        reasons = (*result.reasons, f"tried again after: {before}")
        return replace(result, reasons=reasons, evidence=f"{before.evidence}\n{result.evidence}")

    def _try_again(self, act: Callable[[], T]) -> tuple[T, MachineLost | None]:
        def attempt() -> T:
            if self._is_stopped:
                raise Stopped
            try:
                return act()
            except MachineLost as lost:
                if self._is_stopped:
                    raise Stopped from lost
                lost.evidence = self._evidence(lost)
                self.close()
                raise

        return try_again(attempt)

    def _host(self, kind: MachineKind) -> Host:
        if self._backend is None or self.kind != kind:
            self.close()
            self.boots += 1
            self._tasks = 0
            self._backend = self._boot(kind)
        return Host(self._backend)

    def _boot(self, kind: MachineKind) -> ThrowawayMachine:
        running = self._stack.enter_context(start_agent_machine(self._plan.machine(kind), self._plan.cache))
        scratch = self._stack.enter_context(scratch_directory(self._plan.cache))
        with self._lock:
            # from now on ``stop`` ends it
            self._running, self._kind = running, kind
            if self._is_stopped:
                raise Stopped
        running.await_agent()
        return ThrowawayMachine(running, scratch)

    def close(self) -> None:
        """End the machine."""
        try:
            if self._running is not None and self._backend is not None:
                with suppress(MachineLost):
                    self._plan.before_end(self._running)
        finally:
            self._end()

    def _end(self) -> None:
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

    def _act(self, task: Task, unit: Unit) -> Result | None:
        result = self._act_once(task, unit)
        if result is None or result.verdict is not Verdict.SKIP or not self._is_worn(result.reason):
            return result
        self.close()
        return self._act_once(task, unit)

    def _is_worn(self, reason: str) -> bool:
        """Tell whether a case that is skipped for ``reason`` may have what it needs on a new machine."""
        if reason.startswith(BROKEN_BEFORE):
            return self._tasks > 1
        return reason.startswith(FRAGMENTED) and self._tasks > _TASKS_THAT_WEAR

    def _act_once(self, task: Task, unit: Unit) -> Result | None:
        began = time.monotonic()
        host = None
        try:
            host = self._set_up(unit)
            result = task.act(host)
        except _CannotSetUp as why:
            # says nothing of the other tasks, for which it may have worked before
            reason = f"{type(why.error).__name__}: {why.error}"
            result = Result(task.name, Verdict.ERROR, (reason,), time.monotonic() - began, why.traceback)
        if result is not None and result.verdict is Verdict.FAIL and self._running and self._running.starvation.told:
            # what takes too long there, and the taint of a lockup, say nothing of the kernel
            told = f"{self._running.starvation.told}; {result.reason}"
            raise MachineLost(Loss.STARVED, told, self._running.serial)
        if (result is not None and result.verdict in BAD) or (host is not None and host.is_spoiled):
            self.close()
        return result

    def _set_up(self, unit: Unit) -> Host:
        if unit.first and self._unit is not unit and self._tasks:
            self.close()
        host = self._host(unit.kind)
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
        if self._running is not None:
            self._running.starvation.forget()
        self._tasks += 1
        return host

    def _evidence(self, lost: MachineLost) -> str:
        actions = "" if self._backend is None else "".join(f"{action}\n" for action in self._backend.actions)
        return f"--- the last operations\n{actions}--- the serial console\n{lost.serial[-_SERIAL_SHOWN:]}"
