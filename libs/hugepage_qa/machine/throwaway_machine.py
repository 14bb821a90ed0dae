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
from hugepage_qa.kernel.uapi import find_uapi
from hugepage_qa.machine.host import CannotRun, MachineKind
from hugepage_qa.machine.libc import BUSY_SECONDS, retry_while_busy
from hugepage_qa.machine.swap_file import HEADER_OFFSET, MAGIC, swap_header
from hugepage_qa.process.actor_link import ActorGone, Patience, packet
from hugepage_qa.process.process_table import split_stat, state_and_cpu_seconds
from hugepage_qa.process.static_program import compilers
from hugepage_qa.process.text_program_build import Recipe, build_text, built_document, loaded_with
from hugepage_qa.qemu.agent_channel import ReadAhead
from hugepage_qa.qemu.agent_machine import RunningMachine
from hugepage_qa.qemu.empty_disks import MAKERS
from hugepage_qa.qemu.kernel_image import parse_config
from hugepage_qa.qemu.kernel_modules import Module, load_order
from hugepage_qa.schema import build
from hugepage_qa.sizes import MIB

_ACTOR = "/actor"
_SCRATCH = "/tmp"  # noqa: S108 - of a machine that nobody else is on
#: where a disk is mounted, as swap and programs with text need one
_DISK = "/var/tmp"  # noqa: S108
_DISK_FILE_SYSTEM = "ext4"
#: what btrfs asks the crypto API for, at a mount, and does not depend on (softdep); 6.16 has it under another name; and
#: what rdma_rxe asks it for before 6.14
_CHECKSUMS = ("crc32c_generic", "crc32c_cryptoapi", "crc32_generic")
#: of AMD's processors and of Intel's
_KVM = ("kvm_amd", "kvm_intel")
_UPLOAD = MIB
_PROGRAM_MODE = 0o755
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
        self._modules = kernel.modules
        #: file system -> where the disk with it is mounted
        self._disks: dict[str, str] = {}
        self._mounts = 0
        self._actors: dict[int, tuple[int, list[int]]] = {}
        self._stored: set[str] = set()
        self._loaded: set[str] = set()
        self._disk_refusal = self._mount_disk()
        self._operations: dict[str, Callable[..., Any]] = {
            "read": self._read,
            "observe": self._read,
            "names": self._names,
            "write": self._write,
            "mount": self._mount,
            "mount_point": self._mount_point,
            "unmount": self._unmount,
            "file_system": self._file_system,
            "disk": self._disk_with,
            "add_swap": self._add_swap,
            "remove_swap": self._remove_swap,
            "load_kvm": self._load_kvm,
            "make_directory": partial(self._do, "d"),
            "remove_directory": partial(self._do, "D"),
            "start_actor": partial(self._start, _ACTOR),
            "kernel_option": self._kernel_option,
            "has_modules": self._has_modules,
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

    # --- files ---

    def _read(self, path: str) -> str | None:
        try:
            return self._ahead.read("r", f"/{path}")[0].decode(errors="replace")
        except OSError as error:
            if error.errno == errno.EFBIG:
                # the agent says so, and no kernel: a part of a file would be judged as all of it
                raise InputError(f"/{path}: larger than the 64 MiB that the agent reads") from error
            # sysfs answers EINVAL or EIO for files that exist but have nothing to say
            return None

    def _names(self, path: str) -> list[str]:
        try:
            return sorted(name.decode(errors="surrogateescape") for name in self._ahead.read("n", f"/{path}"))
        except OSError:
            return []

    def _write(self, path: str, text: str) -> None:
        self._channel.ask("w", f"/{path}", text.encode())

    def _mount_point(self, file_system: str) -> str:
        self._mounts += 1
        point = f"{_SCRATCH}/{file_system}-{self._mounts}"
        self._channel.ask("d", point)
        return point

    def _mount(self, options: str, file_system: str) -> str:
        point = self._mount_point(file_system)
        try:
            self._channel.ask("M", "hugepage-qa", point, file_system, options)
        except OSError:
            self._channel.ask("D", point)
            raise
        return point

    def _unmount(self, point: str, seconds: float = BUSY_SECONDS) -> None:
        retry_while_busy(partial(self._do, "U", point), seconds)
        self._channel.ask("D", point)

    def _file_system(self, point: str) -> tuple[int, ...]:
        return tuple(int(field) for field in self._channel.ask("s", point))

    def _store(self, path: str, content: bytes, mode: int) -> None:
        for offset in range(0, max(len(content), 1), _UPLOAD):
            self._channel.ask("f", path, offset, content[offset : offset + _UPLOAD])
        self._channel.ask("c", path, f"{mode:o}")

    def _mount_disk(self) -> str:
        """Mount the machine's disk; return why there is none."""
        device = self._disk_named(_DISK_FILE_SYSTEM)
        if device is None:
            return f"the machine has no disk with {_DISK_FILE_SYSTEM}: none is there"
        try:
            self._channel.ask("M", device, _DISK, _DISK_FILE_SYSTEM, "")
        except OSError as error:
            return f"the machine has no disk with {_DISK_FILE_SYSTEM}: {error.strerror}"
        return ""

    def _disk_named(self, file_system: str) -> str | None:
        """Return the disk that was named to the emulator so: s390x finds disks in any order, and vda may be any."""
        for name in self._names("sys/block"):
            if (self._read(f"sys/block/{name}/serial") or "").strip() == file_system:
                return f"/dev/{name}"
        return None

    def _disk_with(self, file_system: str) -> str:
        """Mount the disk with an empty ``file_system``, and load its modules, as soon as one wants it."""
        if file_system == _DISK_FILE_SYSTEM:
            self._need_disk()
            return _DISK
        if file_system not in self._disks:
            device = self._find_disk(file_system)
            for module in load_order(self._modules, [*_CHECKSUMS, file_system]):
                self._load(module)
            point = self._mount_point(file_system)
            try:
                self._channel.ask("M", device, point, file_system, "")
            except OSError as error:
                raise CannotRun(f"this kernel mounts no {file_system}: {error.strerror}") from error
            self._disks[file_system] = point
        return self._disks[file_system]

    def _find_disk(self, file_system: str) -> str:
        if device := self._disk_named(file_system):
            return device
        maker = MAKERS[file_system]
        if maker.find() is None:
            raise CannotRun(f"a disk with {file_system} needs {maker.program}, which is not installed here")
        raise CannotRun("this kernel has no virtio disks")

    def _load_kvm(self) -> None:
        for module in load_order(self._modules, _KVM):
            self._load(module)

    def _load(self, module: Module) -> None:
        if module.name in self._loaded:
            return
        self._loaded.add(module.name)
        path = f"{_SCRATCH}/{module.name}.ko"
        self._store(path, module.content, _PROGRAM_MODE)
        # one that is there, and one that the processor does not suit: whether it is missed is seen at the mount
        with suppress(OSError):
            self._channel.ask("i", path)
        self._channel.ask("x", path)

    def _has_modules(self, names: list[str]) -> bool:
        if not self._are_loaded(names):
            for module in load_order(self._modules, [*_CHECKSUMS, *names]):
                self._load(module)
        return self._are_loaded(names)

    def _are_loaded(self, names: list[str]) -> bool:
        return all(self._names(f"sys/module/{name}") for name in names)

    def _need_disk(self) -> None:
        if self._disk_refusal:
            raise CannotRun(self._disk_refusal)

    def _add_swap(self, size: int) -> str:
        self._need_disk()
        self._mounts += 1
        name = f"{_DISK}/swap-{self._mounts}"
        page = self.kind.base_page
        header = swap_header(size, page, find_uapi(self.kind.architecture).byte_order)
        self._channel.ask("z", name, size)
        self._channel.ask("f", name, HEADER_OFFSET, header)
        self._channel.ask("f", name, page - len(MAGIC), MAGIC)
        try:
            self._channel.ask("+", name)
        except OSError:
            self._channel.ask("x", name)
            raise
        return name

    def _remove_swap(self, name: str) -> None:
        self._channel.ask("-", name)
        self._channel.ask("x", name)

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
        return number, pid

    def _request(self, number: int, text: str) -> tuple[str, tuple[int, int] | None]:
        pid, children = self._actors[number]
        data = packet(text)
        try:
            answer, *child = self._channel.ask_actor("q", number, data, waiting=self._patience(pid, text))
        except OSError as error:
            raise ActorGone(f"the actor (process {pid}) ended at {text[:60]!r}") from error
        if not child:
            return answer.decode(), None
        forked, its_pid = (int(field) for field in child)
        self._actors[forked] = (its_pid, [])
        children.append(forked)
        return answer.decode(), (forked, its_pid)

    def _patience(self, pid: int, what: str) -> Callable[[list[bytes]], None]:
        patience = Patience(pid, what)
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
        self._channel.ask_actor("k", number, waiting=self._patience(pid, "SIGKILL"))

    def _end(self, number: int) -> None:
        for child in self._actors[number][1]:
            self._end(child)
        self._exit(number)

    def _build_text(self, recipe: dict[str, Any], directory: str | None) -> dict[str, Any]:
        if directory is None:
            self._need_disk()
        compiler = self._compiler()
        built = build_text(build(Recipe, recipe), self._scratch, compiler)
        place = f"{directory or _DISK}/{Path(built.file).parent.name}"
        program, file = (f"{place}/{Path(path).name}" for path in (built.program, built.file))
        if place not in self._stored:
            self._channel.ask("d", place)
            for path in {built.program, built.file}:
                source = Path(path)
                self._store(f"{place}/{source.name}", source.read_bytes(), source.stat().st_mode & 0o777)
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
            self._store(path, file.read_bytes(), _PROGRAM_MODE)
            self._stored.add(path)
