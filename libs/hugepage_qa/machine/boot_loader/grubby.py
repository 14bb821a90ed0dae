"""grubby: entries of the Boot Loader Specification for GRUB, and on s390x for zipl."""

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from hugepage_qa.errors import InputError
from hugepage_qa.machine.boot_loader.bls import ENTRIES, BlsEntry, read_entries, sort_for_grub
from hugepage_qa.machine.boot_loader.boot_files import keep_files
from hugepage_qa.machine.boot_loader.grub_loader import (
    find_in_grub_directory,
    parse_grub_words,
    read_grub_environment,
)
from hugepage_qa.machine.boot_loader.loader import BootLoader, join_words, run_tool


class Grubby(BootLoader):
    """The entry that grubenv chooses, changed with grubby.

    A grub.cfg that chooses another one by itself (a fixed GRUB_DEFAULT, the fallback after boots that failed) is not
    looked into: the machine then boots without the arguments, and its next boot tells.

    grubby replaces arguments: adding ``hugepages=8`` takes every ``hugepages=`` away that was there before
    (update_args() in grubby-bls). What is lost that way is reported as lost.
    """

    name = "grubby"

    def __init__(self, root: Path, program: str) -> None:
        self._root = root
        self._program = program

    def arguments(self) -> tuple[str, ...]:
        return parse_grub_words(self._entry().options, read_grub_environment(self._root))

    def _append(self, arguments: Sequence[str]) -> None:
        run_tool([self._program, f"--update-kernel={self._kernel()}", f"--args={join_words(arguments)}"])

    def _drop(self, arguments: Sequence[str]) -> None:
        run_tool([self._program, f"--update-kernel={self._kernel()}", f"--remove-args={join_words(arguments)}"])

    def _save(self) -> Callable[[], None]:
        # on ppc64le it writes grub.cfg, too
        generated = (find_in_grub_directory(self._root, name) for name in ("grubenv", "grub.cfg"))
        entries = (self._root / ENTRIES).glob("*.conf")
        return keep_files([*entries, *filter(None, generated)])

    def _kernel(self) -> PurePosixPath:
        return kernel_for_grubby(self._entry().kernel)

    def _entry(self) -> BlsEntry:
        """Return the entry of this number, identifier or title; GRUB takes the first one where there is none."""
        menu = sort_for_grub(read_entries(self._root / ENTRIES))
        if not menu:
            raise InputError(f"{self._root / ENTRIES}: expected an entry that boots a kernel")
        environment = read_grub_environment(self._root)
        # grub2-reboot sets the one, grub2-set-default the other
        wanted = environment.get("next_entry") or environment.get("saved_entry", "")
        if wanted.isascii() and wanted.isdigit():
            return menu[int(wanted)] if int(wanted) < len(menu) else menu[0]
        return next((entry for entry in menu if wanted in (entry.identifier, entry.title)), menu[0])


def kernel_for_grubby(kernel: str) -> PurePosixPath:
    """Return the path by which grubby knows ``kernel``: an entry leaves /boot out where that is a partition of its own.

    Not DEFAULT: that is not the entry that boots next after grub2-reboot.
    """
    return PurePosixPath("/boot") / PurePosixPath(kernel).name
