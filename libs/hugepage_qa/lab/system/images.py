"""Bootable images in the cache: a thin layer over a root whose first boot has installed the boot loader.

The kernel arguments asked for stand in this layer, in /etc/default/grub and grub.cfg as on any installed system.
Other arguments cost another short boot, not another root.
"""

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.lab.cache import locked
from hugepage_qa.lab.emulator import Emulators
from hugepage_qa.lab.system.arguments import DISK, finishing_arguments
from hugepage_qa.lab.system.grub import default_grub
from hugepage_qa.lab.system.layers import digest_of, new_layer
from hugepage_qa.lab.system.platforms import Platform
from hugepage_qa.lab.system.roots import SystemRoot
from hugepage_qa.lab.system.tools import QEMU_IMG, Tool, program

_DEADLINE = 400.0
"""Seconds for the first boot; it takes about 25 under TCG on two cores."""
_SUCCESS = "lab-finish: status 0"
_SECTOR = 512


@dataclass(frozen=True)
class SystemImage:
    """A bootable image in the cache; machines write into overlays of their own."""

    disk: Path
    root: SystemRoot

    @property
    def name(self) -> str:
        """The name of the image in the cache."""
        return self.disk.parent.name


def obtain_image(
    cache: Path, platform: Platform, root: SystemRoot, words: str, accelerator: str, *, report: Callable[[str], None]
) -> SystemImage:
    """Return the image of ``root`` whose boot loader hands ``words`` to the kernel; it is made unless in the cache.

    Raises InputError when the first boot fails.
    """
    settings = default_grub(platform.board, words)
    images = cache / "systems" / "images"
    final = images / digest_of([root.directory.name, settings, platform.grub_target])
    with locked(cache / "systems" / "build.lock"):
        if not final.is_dir():
            with new_layer(final) as work:
                create_overlay(root.disk, "raw", work / DISK)
                _finish(platform, root, work, settings, accelerator, report)
    return SystemImage(final / DISK, root)


def create_overlay(backing: Path, backing_format: str, disk: Path) -> None:
    """Make ``disk`` an empty qcow2 overlay of ``backing``, named relative to it: the cache can be moved."""
    relative = os.path.relpath(backing, disk.parent)
    command = [program(QEMU_IMG), "create", "-q", "-f", "qcow2", "-F", backing_format, "-b", relative, str(disk)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InputError(f"qemu-img cannot create {disk}: {done.stderr.strip()}")


def _finish(
    platform: Platform,
    root: SystemRoot,
    work: Path,
    settings: str,
    accelerator: str,
    report: Callable[[str], None],
) -> None:
    """Boot ``root`` once, straight into the script that installs the boot loader."""
    report("first boot: installing the boot loader")
    content = settings.encode()
    (work / "settings").write_bytes(content.ljust(-(-len(content) // _SECTOR) * _SECTOR, b"\0"))
    board = platform.board
    initramfs = root.initramfs(root.release)
    if initramfs is None:
        raise InputError(f"the kernel package made no initramfs for {root.release} in the new root")
    arguments = finishing_arguments(platform, accelerator, root.kernel, initramfs, work / DISK, work / "settings")
    emulator = program(Tool(board.qemu, board.debian_qemu, board.rpm_qemu))
    started = time.monotonic()
    run = Emulators().run([emulator, *arguments], _DEADLINE, lambda _: None)
    console = run.output.decode(errors="replace")
    if _SUCCESS not in console or run.exit_code != 0:
        lines = [line.strip() for line in (console + run.errors).splitlines() if line.strip()]
        raise InputError(f"first boot of the new system failed: {' | '.join(lines[-5:]) or 'nothing was printed'}")
    (work / "settings").unlink()
    report(f"boot loader installed in {time.monotonic() - started:.0f} s")
