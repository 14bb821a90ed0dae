"""What guests are started with on this machine: emulator, kernel, and a tiny initramfs with a shell on the console."""

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.process.static_program import BUSY_MEMORY, build_static
from hugepage_qa.qemu.boards import BOARDS, find_cpu
from hugepage_qa.qemu.guest.file_server import find_virtiofsd
from hugepage_qa.qemu.initramfs import probe_initramfs
from hugepage_qa.qemu.installed_emulator import NotOffered, expect_offered, find_emulator
from hugepage_qa.qemu.kernel_image import identify
from hugepage_qa.qemu.packages import distribution_kernel, static_busybox
from hugepage_qa.qemu.probe_machine import Lab
from hugepage_qa.qemu.unpacked_kernel import entered_directly
from hugepage_qa.qemu.virtual_machine import VirtualMachine, machine_and_cpu
from hugepage_qa.sizes import GIB


class NotHere(Exception):
    """This machine has no such driver of guests; the message is the fact that proves it."""


@dataclass(frozen=True)
class Site:
    """Everything about the machine that a definition of a guest depends on.

    ``machine`` and ``cpu`` are values of QEMU's options, ``words`` go to the guest's kernel, ``mounts`` is page size in
    bytes -> hugetlbfs, ``directory`` is for consoles and sockets, ``environment`` marks QEMU as ours.
    """

    architecture: str
    machine: str
    cpu: str
    accelerator: str
    emulator: str
    kernel: str
    initramfs: str
    words: str
    directory: str = ""
    mounts: Mapping[int, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    #: why the initramfs has no program that is busy in memory; empty where it has
    never_busy: str = ""
    #: the program that shares files with guests through their memory; empty where it is not installed
    virtiofsd: str = ""

    def console(self, guest: str) -> str:
        """Return the socket of a guest's serial console."""
        return f"{self.directory}/{guest}.console"

    def peer(self, guest: str) -> str:
        """Return the socket of the process that serves a guest's network device."""
        return f"{self.directory}/{guest}.peer"

    def file_server(self, guest: str) -> str:
        """Return the socket of the virtiofsd of a guest."""
        return f"{self.directory}/{guest}.virtiofsd"

    def shared(self, guest: str, file: str = "") -> str:
        """Return the directory that a guest shares, or ``file`` in it."""
        return f"{self.directory}/{guest}.shared/{file}".rstrip("/")

    def disk(self, guest: str) -> str:
        """Return the file of a guest's disk."""
        return f"{self.directory}/{guest}.disk"

    def nvdimm(self, guest: str, device: str, page: int | None) -> str:
        """Return the file of an NVDIMM: in hugetlbfs of pages of ``page`` bytes, an ordinary one for None."""
        return f"{self.directory if page is None else self.mounts[page]}/{guest}-{device}.nvdimm"

    def log(self, guest: str) -> str:
        """Return the file that keeps what a guest prints there."""
        return f"{self.directory}/{guest}.log"


#: what keeps memory busy in a guest (process/programs/busy_memory.c)
BUSY_PROGRAM = "busy-memory"
#: what names of modules begin with that guests load
_DRIVERS = ("virtio", "failover", "net_failover", "pvpanic", "fuse")
#: what the guest prints when it waits for commands
READY = "@ready"
# an interactive shell would edit the lines that it reads, and wrap them
_SHELL = f"set -f; echo {READY}; while read -r line; do eval $line; done"


def default_site(cache: Path, kernel: Path | None, report: Callable[[str], None]) -> Site:
    """Return the site of guests of this machine's architecture with ``kernel``, or the distribution's.

    What is built for it is below ``cache``; it has no directory, mounts and environment yet. Raises NotHere without an
    emulator that has such a machine, InputError when a package cannot be had.
    """
    board = BOARDS.get(platform.machine())
    if board is None:
        raise NotHere(f"no QEMU machine is known for {platform.machine()}")
    try:
        emulator = find_emulator(board)
    except InputError as error:
        raise NotHere(str(error)) from error
    cpu = find_cpu(board, None)
    if kernel is None:
        image = distribution_kernel(board.architecture, cache, report=report)
    else:
        image = identify(kernel, board.architecture)
    booted = VirtualMachine(image, cpu.name, (GIB,))
    try:
        accelerator = Lab(cache, report=report).accelerator(booted)
        machine, model = machine_and_cpu(board, cpu, accelerator)
        expect_offered(emulator, ("-machine", machine, "-cpu", model))
    except NotOffered as error:
        raise NotHere(str(error)) from error
    busybox = static_busybox(board.architecture, cache, report=report)
    drivers = [file for file in image.modules if file.name.startswith(_DRIVERS)]
    # what unpacks itself over the emulator's translation costs it a quarter of each boot, and more of a reset
    entered = entered_directly(replace(booted, accelerator=accelerator), cache)
    programs, never_busy = _programs(board.architecture)
    return Site(
        architecture=board.architecture,
        emulator=emulator,
        accelerator=accelerator,
        machine=machine,
        cpu=model,
        kernel=str(entered.kernel.path),
        initramfs=str(probe_initramfs(busybox, cache, drivers, programs)),
        never_busy=never_busy,
        virtiofsd=find_virtiofsd(),
        # without tests of ciphers, a tenth of an emulated boot; a panic ends the guest; behind -- are arguments of init
        words=f'{board.kernel_words} cryptomgr.notests panic=-1 loglevel=1 rdinit=/bin/busybox -- sh -c "{_SHELL}"',
    )


def _programs(architecture: str) -> tuple[dict[str, Path], str]:
    """Return the programs of the initramfs, and why one of them is missing: most guests do without."""
    try:
        return {BUSY_PROGRAM: build_static(BUSY_MEMORY, architecture)}, ""
    except InputError as error:
        return {}, str(error)
