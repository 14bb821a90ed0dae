"""A guest that runs workloads: memory on pages of one kind of the host, programs of the host, a shell.

What is measured has to be what it is called: the pages that the guest's memory is on are read. It boots with programs
of this machine in its archive, each with its libraries, at the same paths.
"""

import json
import os
import platform
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.benchmark_program import run_program
from hugepage_qa.bench.workload import Fact, Program, Unavailable
from hugepage_qa.cache import cache_directory
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.smaps import read_smaps
from hugepage_qa.kernel.tree import DirectoryTree, Tree
from hugepage_qa.qemu.boards import BOARDS
from hugepage_qa.qemu.guest.console import converse
from hugepage_qa.qemu.guest.driver import GuestError
from hugepage_qa.qemu.guest.guest_description import Cell, GuestDescription, Source
from hugepage_qa.qemu.guest.guest_site import READY, NotHere, Site, default_site
from hugepage_qa.qemu.guest.qemu_command import qemu_arguments
from hugepage_qa.qemu.guest.qemu_driver import QemuDriver
from hugepage_qa.qemu.initramfs import Entry, pack
from hugepage_qa.qemu.installed_emulator import NotOffered, installed_emulator, rpm_package
from hugepage_qa.sizes import format_size

#: part of a guest that has to be on transparent pages: what is at the ends of its memory may not be
MOSTLY = 0.9


def expect_pages(tree: Tree, pid: int, backing: Backing, memory: int, share: float = MOSTLY) -> int:
    """Return how many bytes of a guest are on huge pages, and expect its pages to be what they are called.

    Expect all ``memory`` bytes of a guest, whose QEMU is ``pid`` and has touched them all, on ``backing``.

    Raises Unavailable where THP has less than a ``share`` of it, as the kernel had too few pages, InputError where QEMU
    is on other pages than it was told.
    """
    guest = f"guest of {format_size(memory)} on {backing.name}"
    # an emulator's translated code is large, too
    large = (one for one in read_smaps(tree, pid) or () if one.size >= memory and "x" not in one.permissions)
    found = next(large, None)
    if found is None:
        raise InputError(f"{guest}: its QEMU has no memory of this size, expected it to run")
    static = found.hugetlb
    transparent = found.anon_huge_pages + found.shmem_pmd_mapped
    seen = (
        f"{format_size(static)} of it are on static pages of {format_size(found.kernel_page_size)}"
        if found.is_hugetlb
        else f"{format_size(transparent)} of it are on transparent pages"
    )
    if found.is_hugetlb != (backing.kind is Kind.STATIC):
        raise InputError(f"{guest}: {seen}")
    if backing.kind is Kind.STATIC and (found.kernel_page_size != backing.page_size or static < memory):
        raise InputError(f"{guest}: {seen}, expected all of it on its own")
    if backing.kind is Kind.BASE and transparent:
        raise InputError(f"{guest}: {seen}, expected none")
    if backing.kind is Kind.TRANSPARENT and transparent < share * memory:
        raise Unavailable(f"{guest}: {seen}, the kernel gave no more")
    return static + transparent


_NAME = "bench"
_BOOT_SECONDS = 300.0
_VERSION_SECONDS = 60.0


def emulator() -> tuple[Program, ...]:
    """Return the emulator of this machine's architecture, nothing where none is known."""
    board = BOARDS.get(platform.machine())
    if board is None:
        return ()
    return (Program(installed_emulator(board) or board.qemu, board.debian_qemu, rpm_package(board)),)


@dataclass(frozen=True)
class GuestProfile:
    """``memory`` of a guest in bytes, its CPUs, ``words`` for its kernel and ``devices`` as options of QEMU."""

    memory: int
    cpus: int
    words: str = ""
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunningGuest:
    """A guest whose shell waits for commands. ``pid`` is its QEMU.

    ``huge`` are the bytes of it that are on huge pages; ``memory_seconds`` is how long it took until all of its memory
    was there, ``boot_seconds`` until the shell was.
    """

    pid: int
    console: Path
    huge: int = 0
    memory_seconds: float = 0.0
    boot_seconds: float = 0.0

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
            site = default_site(cache_directory(), None, lambda _line: None)
            # the kernel unpacks both archives
            both = directory / "initramfs"
            both.write_bytes(Path(site.initramfs).read_bytes() + archive)
            self._site = replace(site, initramfs=str(both), directory=str(directory))
            self._driver = QemuDriver(self._site)
        except (NotHere, InputError) as error:
            raise Unavailable(f"guests: {error}") from error

    @property
    def version(self) -> str:
        """What QEMU calls itself."""
        return run_program([self._site.emulator, "--version"], deadline=_VERSION_SECONDS).splitlines()[0]

    @property
    def facts(self) -> dict[str, Fact]:
        """What of the guests has to agree between two measurements."""
        return {
            "guest.accelerator": self._site.accelerator,
            "guest.machine": self._site.machine,
            "guest.cpu": self._site.cpu,
        }

    @contextmanager
    def running(
        self, backing: Backing, profile: GuestProfile, name: str = _NAME, share: float = MOSTLY
    ) -> Iterator[RunningGuest]:
        """Boot a guest, called ``name``, whose memory is on ``backing``, THP at least a ``share`` of it.

        It has ended after the block.

        Raises Unavailable when QEMU refuses or the kernel has no such pages for it, InputError when it does not come up
        or is on other pages.
        """
        self._driver.define(name, _definition(name, backing, profile, self._site))
        began = time.monotonic()
        try:
            self._driver.start(name, False)
            with_memory = time.monotonic()
        except (GuestError, NotOffered) as error:
            raise Unavailable(f"QEMU: {error}") from error
        try:
            try:
                self._driver.await_output(name, READY, _BOOT_SECONDS)
            except GuestError as error:
                raise InputError(f"guest: {error}") from error
            booted = time.monotonic()
            pid = self._driver.pid(name)
            huge = expect_pages(DirectoryTree(Path("/")), pid, backing, profile.memory, share)
            console = Path(self._site.console(name))
            running = RunningGuest(pid, console, huge, with_memory - began, booted - began)
            # a shell starts nothing in the background without /dev/null
            running.run("/bin/busybox mount -a; /bin/busybox mount -t devtmpfs devtmpfs /dev", _BOOT_SECONDS)
            yield running
        finally:
            self._driver.destroy(name)

    def close(self) -> None:
        """End what the driver has started."""
        self._driver.close()


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


_LIBRARY = re.compile(r"(?:=> )?(?P<path>/[^ ]+) \(0x[0-9a-f]+\)")
_DEADLINE_SECONDS = 60.0
_DIRECTORY = stat.S_IFDIR | 0o755


def program_archive(
    programs: Iterable[Path], trees: Iterable[Path] = (), files: dict[str, bytes] | None = None
) -> bytes:
    """Return a newc archive of ``programs``, of what lies below the directories ``trees``, and of ``files``.

    The kernel unpacks it after another one that it stands behind. Raises InputError when a library is not found.
    """
    wanted = {path: path for path in programs}
    wanted |= {path: path for tree in trees for path in sorted(tree.rglob("*")) if path.is_file()}
    # modules bring libraries of their own
    binaries = [path for path in wanted if path.suffix == ".so" or os.access(path, os.X_OK)]
    wanted |= {path: path for binary in binaries for path in libraries_of(binary)}
    contents = {str(path).lstrip("/"): path.read_bytes() for path in wanted} | (files or {})
    modes = {str(path).lstrip("/"): stat.S_IFREG | (path.stat().st_mode & 0o777) for path in wanted}
    parents = {str(parent) for name in contents for parent in PurePosixPath(name).parents} - {"."}
    entries = [Entry(name, _DIRECTORY) for name in sorted(parents)]
    entries += [Entry(name, modes.get(name, stat.S_IFREG | 0o755), content) for name, content in contents.items()]
    return pack(entries)


def libraries_of(program: Path) -> list[Path]:
    """Return the libraries and the loader that ``program`` needs; none for one that is static, or is a script."""
    try:
        output = run_program(["ldd", program], deadline=_DEADLINE_SECONDS)
    except InputError:
        return []
    return parse_ldd(output, program)


def parse_ldd(output: str, program: Path) -> list[Path]:
    """Return the paths in what ldd prints. Raises InputError for a library that it does not find."""
    if "not found" in output:
        missing = next(line for line in output.splitlines() if "not found" in line)
        raise InputError(f"{program}: a library is missing ({missing.strip()})")
    return [Path(found["path"]) for found in _LIBRARY.finditer(output)]
