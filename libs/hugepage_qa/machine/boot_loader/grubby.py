"""grubby: entries of the Boot Loader Specification for GRUB, and on s390x for zipl."""

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from hugepage_qa.machine.boot_loader.bls import ENTRIES
from hugepage_qa.machine.boot_loader.boot_files import keep_files
from hugepage_qa.machine.boot_loader.grub_environment import find_in_grub_directory
from hugepage_qa.machine.boot_loader.grub_menu import next_grub_entry
from hugepage_qa.machine.boot_loader.loader import BootLoader, join_words, run_tool


class Grubby(BootLoader):
    """The entry that GRUB boots next, changed with grubby.

    grubby replaces arguments: adding ``hugepages=8`` takes every ``hugepages=`` away that was there before
    (update_args() in grubby-bls). What is lost that way is reported as lost.
    """

    name = "grubby"

    def __init__(self, root: Path, program: str) -> None:
        """Use the grubby at ``program``."""
        self._root = root
        self._program = program

    def arguments(self) -> tuple[str, ...]:
        return next_grub_entry(self._root).words

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
        return kernel_for_grubby(next_grub_entry(self._root).kernel)


def kernel_for_grubby(kernel: str) -> PurePosixPath:
    """Return the path by which grubby knows ``kernel``: an entry leaves /boot out where that is a partition of its own.

    Not DEFAULT: that is not the entry that boots next after grub2-reboot.
    """
    return PurePosixPath("/boot") / PurePosixPath(kernel).name
