"""The machine itself, as the backend of a Host.

Programs with text lie on a disk: text of a tmpfs is shared memory, which becomes huge by other rules (shmem_enabled,
huge=).
"""

import mmap
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from hugepage_qa.cache import cache_directory
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.log import text_of_record
from hugepage_qa.kernel.proc_tables import find_mount, read_disk_filesystems
from hugepage_qa.kernel.tree import DirectoryTree, Tree
from hugepage_qa.machine import libc
from hugepage_qa.machine.backend import MachineKind
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.machine.libc import BUSY_SECONDS, retry_while_busy
from hugepage_qa.machine.swap_file import add_swap, remove_swap
from hugepage_qa.process.actor_link import ActorLink, start_link
from hugepage_qa.process.c_compiler import build_actor
from hugepage_qa.process.marks import PREFIX
from hugepage_qa.process.text_program_build import Recipe, build_text, built_document
from hugepage_qa.qemu.kernel_image import read_running_config
from hugepage_qa.schema import build

_KEPT_OVER_BOOTS = Path("/var/tmp")  # noqa: S108 - only a directory of our own is made there


def find_disk(scratch: Path, tree: Tree, stack: ExitStack) -> Path:
    """Return ``scratch``, or where that is on no disk a directory that is until ``stack`` ends.

    Programs can be started there. Raises CannotRun where there is none.
    """
    refused = []
    for directory in (scratch, *_elsewhere()):
        place = directory.resolve()
        why = _why_not(place, tree)
        if why:
            refused.append(f"{place} {why}")
        elif directory == scratch:
            return scratch
        else:
            made = Path(tempfile.mkdtemp(prefix=f"{PREFIX}text-", dir=place))
            stack.callback(shutil.rmtree, made)
            return made
    raise CannotRun(f"no directory for programs is on a disk: {', '.join(refused)}")


def _why_not(place: Path, tree: Tree) -> str | None:
    mount = find_mount(tree, str(place))
    if mount is None:
        return "is below no mount"
    if mount.type not in read_disk_filesystems(tree):
        return f"is on {mount.type}"
    return None if mount.option("noexec") is None else "is mounted noexec"


def _elsewhere() -> Iterator[Path]:
    with suppress(InputError):
        yield cache_directory()
    yield _KEPT_OVER_BOOTS


_ROOT = Path("/")


class RealMachine:
    """Carries out the operations of a case on the running machine; ``scratch`` is a directory of its own."""

    def __init__(self, scratch: Path, stack: ExitStack) -> None:
        self.kind = MachineKind(platform.machine(), mmap.PAGESIZE, has_others=True)
        self._tree = DirectoryTree(_ROOT)
        self._scratch = scratch
        self._stack = stack
        self._found_disk: Path | None = None
        self._links: dict[int, ActorLink] = {}
        self._log = _KernelLog()
        stack.callback(self._log.close)
        self._operations: dict[str, Callable[..., Any]] = {
            "read": self._tree.read,
            "observe": self._tree.read,
            "names": self._tree.names,
            "write": _write,
            "mount": self._mount,
            "mount_point": self._mount_point,
            "unmount": _unmount,
            "file_system": _file_system,
            "disk": self._disk_with,
            "add_swap": add_swap,
            "remove_swap": remove_swap,
            "load_kvm": lambda: None,
            "make_directory": os.mkdir,
            "remove_directory": os.rmdir,
            "start_actor": self._start_actor,
            "kernel_option": _kernel_option,
            "has_modules": _has_modules,
            "is_thrown_away": lambda: False,
            "build_text": self._build_text,
            "start_program": self._start_program,
            "request": self._request,
            "exit": self._exit,
            "end": self._end,
            "skip_kernel_log": self._log.skip,
            "new_kernel_log": self._log.new_lines,
            "pause": time.sleep,
            "clock": time.monotonic,
        }

    def perform(self, operation: str, arguments: Sequence[Any]) -> Any:
        """Carry out ``operation``."""
        return self._operations[operation](*arguments)

    def _mount(self, options: str, file_system: str) -> str:
        point = self._mount_point(file_system)
        try:
            libc.mount(file_system, point, options)
        except OSError:
            Path(point).rmdir()
            raise
        return point

    def _mount_point(self, file_system: str) -> str:
        try:
            return tempfile.mkdtemp(prefix=f"{file_system}-", dir=self._scratch)
        except OSError as error:
            # no answer to the mount that a case asks for
            raise InputError(f"{self._scratch}: no directory to mount on: {error.strerror}") from error

    def _start_actor(self) -> tuple[int, int]:
        return self._keep(self._stack.enter_context(start_link(build_actor(self._scratch))))

    def _build_text(self, recipe: dict[str, Any], directory: str | None) -> dict[str, Any]:
        place = Path(directory) if directory else self._disk()
        return built_document(build_text(build(Recipe, recipe), place))

    def _disk(self) -> Path:
        if self._found_disk is None:
            self._found_disk = find_disk(self._scratch, self._tree, self._stack)
        return self._found_disk

    def _disk_with(self, file_system: str) -> str:
        place = self._disk()
        mount = find_mount(self._tree, str(place))
        if mount is None or mount.type != file_system:
            raise CannotRun(f"no disk with {file_system} is free: programs lie on {mount.type if mount else 'another'}")
        return str(place)

    def _start_program(self, path: str) -> tuple[int, int]:
        return self._keep(self._stack.enter_context(start_link(Path(path))))

    def _request(self, number: int, text: str) -> tuple[str, tuple[int, int] | None]:
        answer, child = self._links[number].request(text)
        return answer, self._keep(child) if child else None

    def _keep(self, link: ActorLink) -> tuple[int, int]:
        number = len(self._links)
        self._links[number] = link
        return number, link.pid

    def _exit(self, number: int) -> None:
        self._links[number].exit()

    def _end(self, number: int) -> None:
        self._links[number].end()


@contextmanager
def real_machine(scratch: Path) -> Iterator[RealMachine]:
    """Yield the machine; what it started is ended after the block."""
    with suppress(OSError):
        # a segment outlives its process: those of a run that is killed would keep their pages until a reboot
        libc.have_own_segments()
    with ExitStack() as stack:
        yield RealMachine(scratch, stack)


def _write(path: str, text: str) -> None:
    descriptor = os.open(_ROOT / path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _kernel_option(name: str) -> bool | None:
    config = read_running_config(platform.release())
    return None if config is None else f"CONFIG_{name}" in config


def _has_modules(names: Sequence[str]) -> bool:
    return all(Path("/sys/module", name).is_dir() for name in names)


def _unmount(point: str, seconds: float = BUSY_SECONDS) -> None:
    # what a process had open there may go a moment after the process
    retry_while_busy(partial(libc.unmount, point), seconds)
    Path(point).rmdir()


def _file_system(point: str) -> tuple[int, int, int, int, int]:
    use = os.statvfs(point)
    return use.f_bsize, use.f_blocks, use.f_bfree, use.f_files, use.f_ffree


class _KernelLog:
    """What is new in /dev/kmsg, which unlike dmesg -c takes nothing away from others.

    Documentation/ABI/testing/dev-kmsg
    """

    _PATH = "/dev/kmsg"
    _LONGEST = 8192  # CONSOLE_EXT_LOG_MAX

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def skip(self) -> None:
        os.lseek(self._open(), 0, os.SEEK_END)

    def new_lines(self) -> list[str]:
        return list(self._records(self._open()))

    def _open(self) -> int:
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._PATH, os.O_RDONLY | os.O_NONBLOCK)
            except OSError as error:
                raise InputError(f"{self._PATH}: {error.strerror}: a kernel in trouble would go unseen") from error
        return self._descriptor

    def _records(self, descriptor: int) -> Iterator[str]:
        while True:
            try:
                record = os.read(descriptor, self._LONGEST)
            except BlockingIOError:
                return
            except BrokenPipeError as error:
                # EPIPE is told once; what is read after it begins at the oldest record that is left
                raise InputError(
                    f"{self._PATH}: lines were overwritten before they were read: boot with a larger log_buf_len="
                ) from error
            yield text_of_record(record)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
