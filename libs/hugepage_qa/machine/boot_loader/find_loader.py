"""Which boot loader the machine has: the first one whose traces and tools are there."""

from collections.abc import Callable, Sequence
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.machine.boot_loader.bls import ENTRIES
from hugepage_qa.machine.boot_loader.grub_loader import Grub, Grubby, find_in_grub_directory
from hugepage_qa.machine.boot_loader.loader import BootLoader, read_optional_text
from hugepage_qa.machine.boot_loader.ostree import BOOTED, Ostree, RpmOstree
from hugepage_qa.machine.boot_loader.systemd_boot import SystemdBoot
from hugepage_qa.machine.boot_loader.zipl import Zipl, find_zipl_configuration
from hugepage_qa.process.child import find_installed

# the loader that has booted the machine says its name there (Boot Loader Interface of systemd)
_LOADER_INFO = "sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
_ATTRIBUTES = 4  # bytes before the value of an EFI variable
_LOOKED_FOR = (
    f"/{BOOTED} with rpm-ostree or ostree, systemd-boot in LoaderInfo of EFI with bootctl and kernel-install, "
    f"zipl.conf with zipl, /{ENTRIES} with grubby, /boot/grub2/grub.cfg or /boot/grub/grub.cfg with update-grub, "
    "grub2-mkconfig or grub-mkconfig"
)


def find_boot_loader(root: Path = Path("/")) -> BootLoader:
    """Return the boot loader of the machine whose files lie below ``root``.

    Raises InputError, which names what was looked for, for a machine with none that is known.
    """
    finders: Sequence[Callable[[Path], BootLoader | None]] = (_ostree, _systemd_boot, _zipl, _grubby, _grub)
    try:
        for find in finders:
            if (loader := find(root)) is not None:
                return loader
    except PermissionError as error:
        # /boot/grub2 is root's alone on Fedora
        raise InputError(f"{error.filename}: cannot be read ({error.strerror}): expected to be root") from error
    raise InputError(f"no boot loader that is known: looked for {_LOOKED_FOR}")


def _ostree(root: Path) -> BootLoader | None:
    if not (root / BOOTED).exists():
        return None
    if program := find_installed("rpm-ostree"):
        return RpmOstree(root, program)
    program = find_installed("ostree")
    return Ostree(root, program) if program else None


def _systemd_boot(root: Path) -> BootLoader | None:
    bootctl, kernel_install = find_installed("bootctl"), find_installed("kernel-install")
    if not (bootctl and kernel_install and _loader_info(root).startswith("systemd-boot")):
        return None
    return SystemdBoot(root, bootctl, kernel_install)


def _loader_info(root: Path) -> str:
    try:
        return (root / _LOADER_INFO).read_bytes()[_ATTRIBUTES:].decode("utf-16-le", errors="replace")
    except OSError:
        return ""


def _zipl(root: Path) -> BootLoader | None:
    program = find_installed("zipl")
    return Zipl(root, program, find_installed("grubby")) if program and find_zipl_configuration(root) else None


def _grubby(root: Path) -> BootLoader | None:
    program = find_installed("grubby")
    has_entries = any((root / ENTRIES).glob("*.conf"))
    return Grubby(root, program) if program and has_entries and find_in_grub_directory(root, "grub.cfg") else None


def _grub(root: Path) -> BootLoader | None:
    menu = find_in_grub_directory(root, "grub.cfg")
    mkconfig = find_installed("grub2-mkconfig", "grub-mkconfig")
    if menu is None or mkconfig is None:
        return None
    if "\nblscfg" in (read_optional_text(menu) or ""):
        raise InputError(f"{menu}: takes its entries from /{ENTRIES}: expected grubby to change them, install it")
    return Grub(root, menu, Path(mkconfig), find_installed("update-grub"))
