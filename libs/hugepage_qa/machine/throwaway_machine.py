"""A throwaway machine behind an agent, as the backend of a Host: nothing of it is put back, it is thrown away."""

import errno
import gzip
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.log import text_of_record
from hugepage_qa.machine.backend import MachineKind
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.machine.throwaway_files import PROGRAM_MODE, ThrowawayFiles
from hugepage_qa.process.actor_link import BLOCKED_BEFORE_SECONDS, FIRST_REQUEST, ActorGone, Patience, packet
from hugepage_qa.process.process_table import split_stat, state_and_cpu_seconds
from hugepage_qa.process.static_program import compilers
from hugepage_qa.process.text_program_build import Recipe, build_text, built_document, loaded_with
from hugepage_qa.qemu.agent_channel import ReadAhead
from hugepage_qa.qemu.agent_machine import RunningMachine
from hugepage_qa.qemu.kernel_image import parse_config
from hugepage_qa.schema import build

_ACTOR = "/actor"
#: operations that explain how a machine was lost, and characters of each
_REMEMBERED, _SHOWN = 40, 300
#: operations that change nothing: what they tell may be fetched together
_READS = frozenset({"read", "observe", "names", "kernel_option", "clock"})


class ThrowawayMachine:
    """Carries out the operations of a case through the agent; ``scratch`` is a directory of ours on this machine."""

    def __init__(self, running: RunningMachine, scratch: Path) -> None:
        kernel = running.machine.kernel
        self.kind = MachineKind(kernel.architecture, running.base_page, is_accounted=True)
        #: the last operations that may have changed something, up to that in which the machine was lost
        self.actions: deque[str] = deque(maxlen=_REMEMBERED)
        self._channel = running.channel
        self._starvation = running.starvation
        self._ahead = ReadAhead(running.channel)
        self._scratch = scratch
        self._config = kernel.config
        self._files = ThrowawayFiles(self._channel, self._ahead, self.kind, kernel.modules)
        self._actors: dict[int, tuple[int, list[int]]] = {}
        #: those that did not answer, and those that do not end: nobody waits for one of them so long twice
        self._silent: set[int] = set()
        self._stuck: set[int] = set()
        self._stored: set[str] = set()
        self._operations: dict[str, Callable[..., Any]] = {
            "read": self._files.read,
            "observe": self._files.read,
            "names": self._files.names,
            "write": self._files.write,
            "mount": self._files.mount,
            "mount_point": self._files.mount_point,
            "unmount": self._files.unmount,
            "file_system": self._files.file_system,
            "disk": self._files.disk,
            "add_swap": self._files.add_swap,
            "remove_swap": self._files.remove_swap,
            "load_kvm": self._files.load_kvm,
            "make_directory": partial(self._do, "d"),
            "remove_directory": partial(self._do, "D"),
            "start_actor": partial(self._start, _ACTOR),
            "kernel_option": self._kernel_option,
            "has_modules": self._files.has_modules,
            "is_thrown_away": lambda: True,
            "build_text": self._build_text,
            "start_program": self._start,
            "request": self._request,
            "exit": self._exit,
            "end": self._end,
            "skip_kernel_log": partial(self._do, "L"),
            "new_kernel_log": self._new_kernel_log,
            "pause": time.sleep,
            "clock": time.monotonic,
        }

    def perform(self, operation: str, arguments: Sequence[Any]) -> Any:
        """Carry out ``operation``. Raises MachineLost besides what a Backend raises."""
        if operation not in _READS:
            self._ahead.forget()
            # what a case would put back on a machine that is lost tells nothing, and would push out what lost it
            if not self._channel.is_lost:
                self.actions.append(f"{operation} {json.dumps(arguments)[:_SHOWN]}")
        return self._operations[operation](*arguments)

    def _do(self, letter: str, *fields: str | int) -> None:
        self._channel.ask(letter, *fields)

    # --- what the kernel says ---

    def _kernel_option(self, name: str) -> bool | None:
        if self._config is None:
            try:
                packed = self._channel.ask("r", "/proc/config.gz")[0]
                self._config = parse_config(gzip.decompress(packed).decode(errors="replace"))
            except OSError:
                return None
        return f"CONFIG_{name}" in self._config

    def _new_kernel_log(self) -> list[str]:
        try:
            records = self._channel.ask("l")
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise
            raise InputError("/dev/kmsg: lines were overwritten before they were read") from error
        return list(map(text_of_record, records))

    # --- actors and programs ---

    def _start(self, program: str) -> tuple[int, int]:
        try:
            number, pid = (int(field) for field in self._channel.ask("a", program))
        except OSError as error:
            # says nothing of the kernel under test
            raise InputError(f"{program} cannot be started in the machine: {error.strerror}") from error
        self._actors[number] = (pid, [])
        self._request(number, FIRST_REQUEST)
        return number, pid

    def _request(self, number: int, text: str) -> tuple[str, tuple[int, int] | None]:
        pid, children = self._actors[number]
        data = packet(text)
        try:
            answer, *child = self._channel.ask_actor("q", number, data, waiting=self._patience(pid, text))
        except ActorGone:
            self._silent.add(number)
            raise
        except OSError as error:
            raise ActorGone(f"the actor (process {pid}) ended at {text[:60]!r}") from error
        if not child:
            return answer.decode(), None
        forked, its_pid = (int(field) for field in child)
        self._actors[forked] = (its_pid, [])
        children.append(forked)
        return answer.decode(), (forked, its_pid)

    def _patience(self, pid: int, what: str, blocked: float | None = None) -> Callable[[list[bytes]], None]:
        patience = Patience(pid, what, blocked)
        emulator = self._starvation.seconds
        before: list[float] = []

        def look(told: list[bytes]) -> None:
            state, seconds = state_and_cpu_seconds(split_stat(told[0].decode(errors="replace")))
            before.append(seconds)
            # a machine counts for a process that runs what the host gives to others
            had = min(seconds - before[0], self._starvation.seconds - emulator)
            patience.look(state, had, partial(told[1].decode, errors="replace"))

        return look

    def _exit(self, number: int) -> None:
        pid, _children = self._actors[number]
        if number in self._stuck:
            return
        blocked = BLOCKED_BEFORE_SECONDS if number in self._silent else None
        try:
            self._channel.ask_actor("k", number, waiting=self._patience(pid, "SIGKILL", blocked))
        except ActorGone:
            self._stuck.add(number)
            raise

    def _end(self, number: int) -> None:
        for child in self._actors[number][1]:
            self._end(child)
        self._exit(number)

    def _build_text(self, recipe: dict[str, Any], directory: str | None) -> dict[str, Any]:
        below = directory or self._files.own_disk()
        compiler = self._compiler()
        built = build_text(build(Recipe, recipe), self._scratch, compiler)
        place = f"{below}/{Path(built.file).parent.name}"
        program, file = (f"{place}/{Path(path).name}" for path in (built.program, built.file))
        if place not in self._stored:
            self._channel.ask("d", place)
            for path in {built.program, built.file}:
                source = Path(path)
                self._files.store(f"{place}/{source.name}", source.read_bytes(), source.stat().st_mode & 0o777)
            for path, file_of_library in loaded_with(Path(built.program), compiler).items():
                self._store_library(path, file_of_library)
            self._stored.add(place)
        self._channel.ask("o", file)
        return built_document(replace(built, program=program, file=file))

    def _compiler(self) -> str:
        """Return a compiler that links programs as those that are used. Raises CannotRun without one."""
        for compiler in compilers(self.kind.architecture):
            if compiler.makes_libraries:
                return compiler.command[0]
        raise CannotRun(f"no compiler with a C library to load for {self.kind.architecture} is installed")

    def _store_library(self, path: str, file: Path) -> None:
        if path not in self._stored:
            with suppress(FileExistsError):
                self._channel.ask("d", str(Path(path).parent))
            self._files.store(path, file.read_bytes(), PROGRAM_MODE)
            self._stored.add(path)
