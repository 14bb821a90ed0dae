"""A guest that runs workloads: memory on pages of one kind of the host, programs of the host, a shell."""

import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.guest_pages import expect_pages
from hugepage_qa.bench.program import run_program
from hugepage_qa.bench.unavailable import Unavailable
from hugepage_qa.bench.workload import Fact, Program
from hugepage_qa.errors import InputError
from hugepage_qa.guest.console import await_output, converse
from hugepage_qa.guest.description import Cell, GuestDescription, Source
from hugepage_qa.guest.driver import GuestError, NotHere
from hugepage_qa.guest.image import READY, Image, default_image
from hugepage_qa.guest.qemu_command import qemu_arguments
from hugepage_qa.guest.qemu_driver import QemuDriver
from hugepage_qa.guest.site import Site
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.lab.boards import BOARDS
from hugepage_qa.lab.cache import cache_directory

_NAME = "bench"
_BOOT_SECONDS = 300.0
_VERSION_SECONDS = 60.0


def emulator() -> tuple[Program, ...]:
    """Return the emulator of this machine's architecture, nothing where none is known."""
    board = BOARDS.get(platform.machine())
    return () if board is None else (Program(board.qemu, board.debian_qemu, board.rpm_qemu),)


@dataclass(frozen=True)
class GuestProfile:
    """``memory`` of a guest in bytes, its CPUs, ``words`` for its kernel and ``devices`` as options of QEMU."""

    memory: int
    cpus: int
    words: str = ""
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunningGuest:
    """A guest whose shell waits for commands. ``pid`` is its QEMU."""

    pid: int
    console: Path

    def run(self, command: str, seconds: float) -> str:
        """Run a command in its shell and return what it prints. Raises InputError when it fails or takes longer."""
        # what is typed is printed, too: the words that end the output must not be in it as they are
        try:
            said = converse(self.console, f"{command}; echo @end''ed $?", r"@ended (\d+)\n", seconds)
        except OSError as error:
            raise InputError(f"guest: {error}") from error
        output, _, code = said.rstrip("\n").rpartition("@ended ")
        if code != "0":
            raise InputError(f"guest: {command!r} ended with {code or 'the guest'}: {output[-300:]}")
        return output.partition("\n")[2]


class GuestHost:
    """Starts guests of one image with an archive of programs, in a directory of its own."""

    def __init__(self, directory: Path, archive: bytes) -> None:
        """Raises Unavailable without QEMU, a kernel or what speaks to QEMU."""
        directory.mkdir()
        try:
            self._image = _with_archive(default_image(cache_directory(), None, lambda _line: None), directory, archive)
            self._driver = QemuDriver(self._image.emulator, directory)
        except (NotHere, InputError) as error:
            raise Unavailable(f"guests: {error}") from error
        self._directory = directory

    @property
    def version(self) -> str:
        """What QEMU calls itself."""
        return run_program([self._image.emulator, "--version"], deadline=_VERSION_SECONDS).splitlines()[0]

    @property
    def facts(self) -> dict[str, Fact]:
        """What of the guests has to agree between two measurements."""
        return {
            "guest.accelerator": self._image.accelerator,
            "guest.machine": self._image.machine,
            "guest.cpu": self._image.cpu,
        }

    @contextmanager
    def running(self, backing: Backing, profile: GuestProfile, name: str = _NAME) -> Iterator[RunningGuest]:
        """Boot a guest, called ``name``, whose memory is on ``backing``. It has ended after the block.

        Raises Unavailable when QEMU refuses or the kernel has no such pages for it, InputError when it does not come up
        or is on other pages.
        """
        site = self._site()
        self._driver.define(name, _definition(name, backing, profile, site))
        try:
            self._driver.start(name, False)
        except GuestError as error:
            raise Unavailable(f"QEMU: {error}") from error
        try:
            running = RunningGuest(self._driver.pid(name), Path(site.console(name)))
            _await_shell(Path(site.log(name)), partial(self._driver.pid, name))
            # a shell starts nothing in the background without /dev/null
            running.run("/bin/busybox mount -a; /bin/busybox mount -t devtmpfs devtmpfs /dev", _BOOT_SECONDS)
            expect_pages(DirectoryTree(Path("/")), running.pid, backing, profile.memory)
            yield running
        finally:
            self._driver.destroy(name)

    def close(self) -> None:
        """End whatever runs."""
        self._driver.close()

    def _site(self) -> Site:
        image = self._image
        return Site(
            architecture=image.board.architecture,
            machine=image.machine,
            cpu=image.cpu,
            accelerator=image.accelerator,
            emulator=image.emulator,
            kernel=str(image.kernel),
            initramfs=str(image.initramfs),
            words=image.words,
            directory=str(self._directory),
            mounts={},
            environment={},
        )


def _with_archive(image: Image, directory: Path, archive: bytes) -> Image:
    """Return ``image`` with the archive behind its own: the kernel unpacks both."""
    both = directory / "initramfs"
    both.write_bytes(image.initramfs.read_bytes() + archive)
    return replace(image, initramfs=both)


def _definition(name: str, backing: Backing, profile: GuestProfile, site: Site) -> str:
    is_static = backing.kind is Kind.STATIC
    guest = GuestDescription(
        name,
        (Cell(profile.memory, backing.page_size if is_static else None),),
        source=Source.MEMFD if is_static else Source.ANONYMOUS,
        words=profile.words,
    )
    # the last -smp counts
    return json.dumps([*qemu_arguments(guest, site), "-smp", str(profile.cpus), *profile.devices])


def _await_shell(log: Path, expect_alive: Callable[[], object]) -> None:
    try:
        await_output(log, READY, _BOOT_SECONDS, expect_alive)
    except GuestError as error:
        raise InputError(f"guest: {error}") from error


def cpu_seconds(pid: int) -> float:
    """Return the seconds of CPU time that a process and its threads have had (proc_pid_stat(5), utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
