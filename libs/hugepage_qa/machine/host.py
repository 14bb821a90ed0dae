"""All that a case does to the machine goes through one narrow place: it can be recorded, replayed and falsified."""

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from hugepage_qa.kernel.uapi import ByteOrder, Uapi, find_uapi
from hugepage_qa.machine.backend import Backend, BackendLink
from hugepage_qa.oracle.program_text import ElfFile
from hugepage_qa.process.actor import Actor, Refused
from hugepage_qa.process.text_program_build import BuiltText, Recipe
from hugepage_qa.schema import build

#: what somebody sees who looks
T = TypeVar("T")
#: how long is waited for what a guest or the kernel does in its own time
_SECONDS = 120.0
#: it is looked again after pauses that double: a quarter of a second is the most that is waited longer than need be
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.25
_ATTEMPTS = 3


class CannotRun(Exception):
    """This machine cannot run the case; the message is the fact that proves it."""


@dataclass(frozen=True)
class FileSystemUse:
    """What statvfs(2) tells of a file system: ``block_size`` in bytes, the others in blocks and inodes."""

    block_size: int
    blocks: int
    free_blocks: int
    files: int
    free_files: int

    @property
    def free_bytes(self) -> int:
        """How many bytes are free."""
        return self.free_blocks * self.block_size

    @property
    def taken_bytes(self) -> int:
        """How many bytes are taken."""
        return (self.blocks - self.free_blocks) * self.block_size

    @property
    def taken_files(self) -> int:
        """How many inodes are taken."""
        return self.files - self.free_files


@dataclass(frozen=True)
class Shortage:
    """How many huge pages memory had no room for, when all had been done to make it, and when (``Host.clock``)."""

    pages: int
    at: float


class Host:
    """The machine under test, as a case sees it; also a Tree for the readers in ``kernel``."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._unjudged_log: list[str] = []
        self.is_spoiled = False
        """Whether the kernel may break what comes next for what a known bug left: nothing more is to run on it."""
        self.lacks_memory = False
        """Whether a case took memory from it that cannot come back: it is spoiled then, too."""
        self.shortages: dict[tuple[int, int | None], Shortage] = {}
        """Page size and node, None for all nodes -> what there was no room for last."""

    @property
    def backend(self) -> Backend:
        """What carries the operations out, of which some have more than are here: those on guests."""
        return self._backend

    @property
    def architecture(self) -> str:
        """What ``uname -m`` prints on the machine."""
        return self._backend.kind.architecture

    @property
    def base_page(self) -> int:
        """The size of a base page in bytes."""
        return self._backend.kind.base_page

    @property
    def has_others(self) -> bool:
        """Whether others use the machine, too, and its memory."""
        return self._backend.kind.has_others

    @property
    def is_accounted(self) -> bool:
        """Whether all memory of the machine has to be as before after each case."""
        return self._backend.kind.is_accounted

    @property
    def uapi(self) -> Uapi:
        """The numbers and layouts of its system calls. Raises InputError for an architecture that is not known."""
        return find_uapi(self.architecture)

    @property
    def byte_order(self) -> ByteOrder:
        """How it has a number in memory. Raises InputError as ``uapi`` does."""
        return self.uapi.byte_order

    def read(self, path: str) -> str | None:
        """Return the text of ``path`` (without leading slash), None where it cannot be read."""
        text: str | None = self._backend.perform("read", [path])
        return text

    def observe(self, path: str) -> str | None:
        """Read as ``read`` does what will be judged: a record of a run can be falsified there."""
        text: str | None = self._backend.perform("observe", [path])
        return text

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a directory, none where there is no such directory."""
        names: list[str] = self._backend.perform("names", [path])
        return names

    def write(self, path: str, text: str) -> None:
        """Write ``text`` to a kernel file in one write. Raises Refused with what the kernel answers."""
        self._ask_kernel("write", path, text)

    def mount(self, options: str, file_system: str = "hugetlbfs") -> str:
        """Mount a new ``file_system`` in a new directory and return the absolute path of it. Raises Refused."""
        point: str = self._ask_kernel("mount", options, file_system)
        return point

    def mount_point(self) -> str:
        """Make a directory that an actor is to mount a hugetlbfs on; return its absolute path."""
        point: str = self._backend.perform("mount_point", ["hugetlbfs"])
        return point

    def unmount(self, point: str, seconds: float | None = None) -> None:
        """Take away what is mounted on ``point``, and its directory. Raises OSError where it stays busy.

        It is tried for ``seconds``; without, nobody should have it in use, as long as a loaded machine may take.
        """
        self._backend.perform("unmount", [point] if seconds is None else [point, seconds])

    def file_system(self, point: str) -> FileSystemUse:
        """Return how full the file system at ``point`` is."""
        return FileSystemUse(*self._backend.perform("file_system", [point]))

    def disk(self, file_system: str) -> str:
        """Return a directory on a disk with ``file_system``. Raises CannotRun where the machine has none."""
        directory: str = self._backend.perform("disk", [file_system])
        return directory

    def add_swap(self, size: int) -> str:
        """Have the kernel swap to a new file of ``size`` bytes and return its path. Raises OSError."""
        name: str = self._backend.perform("add_swap", [size])
        return name

    def remove_swap(self, name: str) -> None:
        """Bring back what was swapped to a file of ``add_swap``, and remove it. Raises OSError."""
        self._backend.perform("remove_swap", [name])

    def load_kvm(self) -> None:
        """Have a throwaway machine load KVM; a machine that is somebody's has it loaded, or has none."""
        self._backend.perform("load_kvm", [])

    def make_directory(self, path: str) -> None:
        """Make a directory (a control group, say). Raises Refused."""
        self._ask_kernel("make_directory", path)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory. Raises Refused."""
        self._ask_kernel("remove_directory", path)

    def start_actor(self) -> Actor:
        """Start an actor, which runs until its ``end``."""
        number, pid = self._backend.perform("start_actor", [])
        return Actor(BackendLink(self._backend, number, pid), self.uapi)

    def kernel_option(self, name: str) -> bool | None:
        """Tell whether the running kernel was built with CONFIG_``name``; None where no file tells."""
        is_set: bool | None = self._backend.perform("kernel_option", [name])
        return is_set

    def is_thrown_away(self) -> bool:
        """Tell whether the machine ends with the run: nobody else uses it, and nothing of it need be put back."""
        ends: bool = self._backend.perform("is_thrown_away", [])
        return ends

    def has_modules(self, names: Sequence[str]) -> bool:
        """Tell whether the kernel has these modules; a throwaway machine loads them, any other stays as it is."""
        are_there: bool = self._backend.perform("has_modules", [list(names)])
        return are_there

    def build_text(self, recipe: Recipe, directory: str | None = None) -> BuiltText:
        """Build a program below ``directory``, by default below one of the run on a disk. Raises InputError.

        None of its pages are in the page cache, but on a file system that is nothing else. Raises CannotRun on a
        machine without such a disk.
        """
        built = self._backend.perform("build_text", [asdict(recipe) | {"kind": recipe.kind.value}, directory])
        elf = build(ElfFile, built | {"kind": recipe.kind})
        return BuiltText(built["program"], built["file"], elf, built["pages"], built["checksum"])

    def start_program(self, path: str) -> Actor:
        """Start a program that was built, which is an actor, too."""
        number, pid = self._backend.perform("start_program", [path])
        return Actor(BackendLink(self._backend, number, pid), self.uapi)

    def skip_kernel_log(self) -> None:
        """Have ``new_kernel_log`` begin here, and leave unjudged what was logged before.

        Raises InputError where the log cannot be read.
        """
        self._backend.perform("skip_kernel_log", [])
        self._unjudged_log.clear()

    def new_kernel_log(self, *, judged: bool = False) -> list[str]:
        """Return the lines that the kernel logged since the last call.

        Who says that they are ``judged`` looks for signs of trouble in them; else ``take_unjudged_log`` has them, too.
        Raises InputError where the log cannot be read, or lines were overwritten before they were.
        """
        lines: list[str] = self._backend.perform("new_kernel_log", [])
        if not judged:
            self._unjudged_log += lines
        return lines

    def take_unjudged_log(self) -> list[str]:
        """Return the lines that ``new_kernel_log`` has read and nobody has judged; they count as judged from now on."""
        lines, self._unjudged_log = self._unjudged_log, []
        return lines

    def pause(self, seconds: float) -> None:
        """Wait."""
        self._backend.perform("pause", [seconds])

    def clock(self) -> float:
        """Return seconds of a clock that only goes on (CLOCK_MONOTONIC)."""
        now: float = self._backend.perform("clock", [])
        return now

    def wait_until(self, is_so: Callable[[], bool], seconds: float = _SECONDS) -> None:
        """Wait until ``is_so``, at most ``seconds``; what is expected then has to be compared all the same."""
        self.last_look(is_so, bool, seconds)

    def last_look(self, look: Callable[[], T], is_right: Callable[[T], bool], seconds: float = _SECONDS) -> T:
        """Look until what is seen ``is_right``, at most ``seconds``, and return what was seen last.

        That is what is to be judged: whoever looks once more may see what has come since.
        """
        end = self.clock() + seconds
        pause = _FIRST_PAUSE
        while not is_right(seen := look()) and (left := end - self.clock()) > 0:
            self.pause(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
        return seen

    def last_attempt(self, act: Callable[[], T], is_right: Callable[[T], bool]) -> T:
        """Act until what is seen of it ``is_right``, a few times at most, and return what was seen last.

        ``last_look`` is for looking alone: a kernel that does it right now and then must not have all that time.
        """
        for _attempt in range(_ATTEMPTS - 1):
            if is_right(seen := act()):
                return seen
        return act()

    def _ask_kernel(self, operation: str, *arguments: Any) -> Any:
        """Carry out what the kernel may refuse. Raises Refused, and OSError where the suite has no descriptor left."""
        try:
            return self._backend.perform(operation, arguments)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            asked = " ".join(repr(argument) for argument in arguments)
            raise Refused(error.errno, f"{operation} {asked}: {os.strerror(error.errno or 0)}") from error


class ObservedTree:
    """The tree for readers of what is judged."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def read(self, path: str) -> str | None:
        """Return the text of ``path``, None where it cannot be read."""
        return self._host.observe(path)

    def names(self, path: str) -> list[str]:
        """Return the names in a directory."""
        return self._host.names(path)
