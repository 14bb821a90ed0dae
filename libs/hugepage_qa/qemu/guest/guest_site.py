"""What guests are started with on this machine: emulator, kernel, and a tiny initramfs with a shell on the console."""

import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.accelerator import TCG
from hugepage_qa.qemu.boards import BOARDS, Board, find_cpu
from hugepage_qa.qemu.initramfs import probe_initramfs
from hugepage_qa.qemu.packages import distribution_kernel, static_busybox
from hugepage_qa.qemu.probe_machine import Lab, ProbeMachine, find_emulator
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
    directory: str
    mounts: Mapping[int, str]
    environment: Mapping[str, str]

    def console(self, guest: str) -> str:
        """Return the socket of a guest's serial console."""
        return f"{self.directory}/{guest}.console"

    def log(self, guest: str) -> str:
        """Return the file that keeps what a guest prints there."""
        return f"{self.directory}/{guest}.log"

    def document(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Site":
        """Return the site of a ``document``."""
        mounts = {int(size): point for size, point in document["mounts"].items()}
        return cls(**{**document, "mounts": mounts})


#: what the guest prints when it waits for commands
READY = "@ready"
# an interactive shell would edit the lines that it reads, and wrap them
_SHELL = f"set -f; echo {READY}; while read -r line; do eval $line; done"


@dataclass(frozen=True)
class Image:
    """What a guest of the machine's own architecture is started with; ``machine`` and ``cpu`` are QEMU's options."""

    board: Board
    emulator: str
    accelerator: str
    machine: str
    cpu: str
    kernel: Path
    initramfs: Path
    words: str

    def site(self, directory: Path, mounts: Mapping[int, str], environment: Mapping[str, str]) -> Site:
        """Return the site of guests with this image; the others are as there."""
        return Site(
            architecture=self.board.architecture,
            machine=self.machine,
            cpu=self.cpu,
            accelerator=self.accelerator,
            emulator=self.emulator,
            kernel=str(self.kernel),
            initramfs=str(self.initramfs),
            words=self.words,
            directory=str(directory),
            mounts=mounts,
            environment=environment,
        )


def default_image(cache: Path, kernel: Path | None, report: Callable[[str], None]) -> Image:
    """Return the image with ``kernel``, or the distribution's, built below ``cache``.

    Raises NotHere without an emulator for this machine's architecture, InputError when a package cannot be had.
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
        package = distribution_kernel(board.architecture, cache, report=report)
        kernel, modules = package.image, package.modules
    else:
        modules = ()
    probe = ProbeMachine(board.architecture, cpu.name, kernel, (GIB,), "")
    accelerator = Lab(cache, report=report).accelerator(probe)
    properties = cpu.machine_options if accelerator == TCG else board.kvm_machine_options
    busybox = static_busybox(board.architecture, cache, report=report)
    return Image(
        board=board,
        emulator=emulator,
        accelerator=accelerator,
        machine=",".join((board.machine, *properties)),
        cpu=cpu.qemu_cpu if accelerator == TCG else cpu.kvm_cpu or cpu.qemu_cpu,
        kernel=kernel,
        initramfs=probe_initramfs(busybox, cache, modules),
        # a panic ends the guest; what stands behind -- are arguments of init
        words=f'{board.kernel_words} panic=-1 loglevel=1 rdinit=/bin/busybox -- sh -c "{_SHELL}"',
    )
