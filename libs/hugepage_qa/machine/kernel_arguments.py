"""Kernel arguments of the entry that boots next: put back through the boot loader."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine.boot_loader.loader import BootLoader
from hugepage_qa.machine.kept_file import Repair
from hugepage_qa.machine.saved_state import KeptArguments
from hugepage_qa.oracle.boot.unknown_parameters import PARAMETERS

#: from the root directory of a machine to its boot loader; raises InputError when it is not known
FindBootLoader = Callable[[Path], BootLoader]


def restore_arguments(kept: KeptArguments, find_boot_loader: FindBootLoader, root: Path = Path("/")) -> list[Repair]:
    """Remove what was not there, add what is missing, and return what that took; empty when nothing had changed.

    Raises InputError when the boot loader is not the one that was kept, or does not do as told.
    """
    loader = find_boot_loader(root)
    if loader.name != kept.loader:
        raise InputError(f"boot loader {loader.name}: expected {kept.loader}, whose kernel arguments were kept")
    before = loader.arguments()
    if before == kept.arguments:
        return []
    if added := _without(before, kept.arguments):
        loader.remove(added)
    if missing := _without(kept.arguments, loader.arguments()):
        loader.add(missing)
    after = loader.arguments()
    return [Repair(f"kernel arguments ({loader.name})", *map(" ".join, (kept.arguments, before, after)))]


def still_running(kept: KeptArguments, root: Path = Path("/")) -> tuple[str, ...]:
    """Return the huge page words that this boot was started with and that the kept arguments do not have."""
    words = (DirectoryTree(root).read("proc/cmdline") or "").split()
    return tuple(word for word in _without(words, kept.arguments) if word.partition("=")[0] in PARAMETERS)


def _without(words: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return ``words`` less ``others``, each as often as it is too many; the first ones stay."""
    spare = Counter(others)
    left = []
    for word in words:
        if spare[word]:
            spare[word] -= 1
        else:
            left.append(word)
    return left
