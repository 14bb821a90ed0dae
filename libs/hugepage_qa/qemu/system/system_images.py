"""Bootable images in the cache: a thin layer over a root whose first boot has installed the boot loader.

The kernel arguments asked for stand in this layer, in /etc/default/grub and grub.cfg as on any installed system, and
arrive in /proc/cmdline unchanged. Other arguments cost another short boot, not another root. Roots and images that
nobody needs any more are removed; each root takes more than a GiB of the cache.
"""

import json
import os
import re
import struct
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.cache import locked
from hugepage_qa.errors import InputError
from hugepage_qa.process.child import PIPE, Child, run_to_end
from hugepage_qa.qemu.boards import Board
from hugepage_qa.qemu.emulator import Emulator
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.system.build_tools import QEMU_IMG, digest_of, new_layer, program, remove
from hugepage_qa.qemu.system.platforms import Platform
from hugepage_qa.qemu.system.root_layout import FINISH
from hugepage_qa.qemu.system.system_arguments import DISK, finishing_devices, root_words
from hugepage_qa.qemu.system.system_roots import SystemRoot
from hugepage_qa.qemu.virtual_machine import VirtualMachine
from hugepage_qa.sizes import GIB

_PRINTABLE = re.compile(r"[ -~]*")
# what GRUB's own script language would take for itself (GRUB manual, Quoting); ';' ends a command, and
# thp_anon= needs one
_SPECIAL = re.compile(r"[$;|&<>{}#*?~]")
# grub_create_loader_cmdline() (grub-core/lib/cmdline.c) writes a backslash before each of them
_CHANGED_BY_GRUB = re.compile(r"""[\\'"]""")

# within double quotes (POSIX shell, 2.2.3)
_SPECIAL_TO_SHELL = re.compile(r"""[\\"$`]""")

_DEFAULTS = """\
GRUB_DEFAULT=0
GRUB_TIMEOUT=0
GRUB_RECORDFAIL_TIMEOUT=0
GRUB_CMDLINE_LINUX_DEFAULT=""
GRUB_CMDLINE_LINUX="{words}"
GRUB_TERMINAL=console
GRUB_DISABLE_OS_PROBER=true
"""


def check_words(board: Board, words: str) -> None:
    """Raise InputError unless kernel arguments ``words`` are one printable line that the kernel takes in full."""
    if not _PRINTABLE.fullmatch(words):
        raise InputError(f"kernel arguments {words!r}: expected one line of printable ASCII characters")
    # what stands before them: BOOT_IMAGE=, root=, and the words of the board
    limit = board.command_line_size - 256
    if len(words) > limit:
        raise InputError(f"kernel arguments of {len(words)} bytes: expected {limit} at most")


def default_grub(board: Board, words: str) -> str:
    """Return /etc/default/grub for a machine whose kernel gets ``words`` besides what the lab needs.

    The file is read by a shell, and what it says is written into grub.cfg, which GRUB reads as a script. Raises
    InputError for what GRUB cannot hand on unchanged.
    """
    if _CHANGED_BY_GRUB.search(words):
        raise InputError(f"kernel arguments {words!r}: GRUB hands on no quotes and backslashes, leave them out")
    for_grub = _SPECIAL.sub(_behind_backslash, words)
    return _DEFAULTS.format(words=_SPECIAL_TO_SHELL.sub(_behind_backslash, f"{board.kernel_words} {for_grub}".strip()))


def _behind_backslash(match: re.Match[str]) -> str:
    return f"\\{match[0]}"


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
        """By which machines that lie over it name it: its directory."""
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
    done = run_to_end(command)
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
    kernel = KernelImage(root.kernel, board.architecture, root.release, None)
    words = root_words(f"init={FINISH}")
    machine = VirtualMachine(kernel, board.default_cpu, (GIB,), words, cpus=2, accelerator=accelerator)
    command = machine.qemu_command(initramfs, finishing_devices(work / DISK, work / "settings"))
    started = time.monotonic()
    with Emulator(Child(command, output=PIPE, errors=PIPE)) as emulator:
        has_ended = emulator.wait(_DEADLINE)
        if not has_ended or emulator.exit_code != 0 or _SUCCESS not in emulator.serial:
            lines = [line.strip() for line in (emulator.serial + emulator.why_it_ended).splitlines() if line.strip()]
            raise InputError(f"first boot of the new system failed: {' | '.join(lines[-5:])}")
    (work / "settings").unlink()
    report(f"boot loader installed in {time.monotonic() - started:.0f} s")


_KEPT_SECONDS = 14 * 24 * 3600
"""How long a root stays that nobody asks for; asking renews it once a day."""

# QEMU documentation, The QCOW2 image format: magic, version, backing file offset and size
_QCOW2_HEADER = ">4sIQI"


def prune(cache: Path, in_use: Collection[str]) -> None:
    """Remove roots that were superseded or not asked for in two weeks, and their images, none that is ``in_use``."""
    roots, images = cache / "systems" / "roots", cache / "systems" / "images"
    with locked(cache / "systems" / "build.lock"):
        root_of = {image.name: _root_of(image / DISK) for image in images.glob("*") if image.is_dir()}
        kept = {_noted(note) for note in roots.glob("*.json")} | {root_of.get(name) for name in in_use}
        for name, root in root_of.items():
            if root not in kept:
                remove(images / name)
        for root_directory in roots.glob("*"):
            if root_directory.is_dir() and root_directory.name not in kept:
                remove(root_directory)


def _noted(note: Path) -> str | None:
    """Return the root that ``note`` remembers; a note of long ago is forgotten."""
    if time.time() - note.stat().st_mtime > _KEPT_SECONDS:
        note.unlink()
        return None
    try:
        return str(json.loads(note.read_text()))
    except ValueError:
        return None


def _root_of(disk: Path) -> str | None:
    """Return the name of the root that qcow2 file ``disk`` lies over, None when it is no such file."""
    try:
        with disk.open("rb") as file:
            header = file.read(struct.calcsize(_QCOW2_HEADER))
            magic, _, offset, size = struct.unpack(_QCOW2_HEADER, header)
            file.seek(offset)
            backing = file.read(size)
    except (OSError, struct.error):
        return None
    return Path(backing.decode(errors="replace")).parent.name if magic == b"QFI\xfb" else None
