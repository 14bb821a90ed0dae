"""Image based systems: rpm-ostree, and bootc where that is not installed. Arguments belong to a deployment there."""

from collections.abc import Callable, Sequence
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.machine.boot_loader.bls import ENTRIES, read_entries
from hugepage_qa.machine.boot_loader.loader import BootLoader, parse_words, quote, run_tool, without_last

#: there is such a file when the machine has booted a deployment
BOOTED = "run/ostree-booted"
# a deployment that is only written at the next shutdown (ostree-finalize-staged.service)
_STAGED = "run/ostree/staged-deployment"
# names the deployment itself, and so changes with every one
_DEPLOYMENT = "ostree="


class Ostree(BootLoader):
    """The deployment that boots next, changed with ``ostree admin instutil set-kargs``."""

    name = "ostree"

    def __init__(self, root: Path, program: str) -> None:
        self._root = root
        self._program = program

    def arguments(self) -> tuple[str, ...]:
        entries = [entry for entry in read_entries(self._root / ENTRIES) if entry.version.isdigit()]
        if not entries:
            raise InputError(f"{self._root / ENTRIES}: expected entries of ostree")
        # their versions are numbers, and the highest one is booted
        newest = max(entries, key=lambda entry: int(entry.version))
        return _without_deployment(parse_words(newest.options))

    def _append(self, arguments: Sequence[str]) -> None:
        self._set((*self.arguments(), *arguments))

    def _drop(self, arguments: Sequence[str]) -> None:
        self._set(without_last(self.arguments(), arguments))

    def _set(self, words: Sequence[str]) -> None:
        if (self._root / _STAGED).exists():
            raise InputError("a deployment is staged: reboot first, its kernel arguments cannot be changed")
        # without --merge the list begins empty
        run_tool([self._program, "admin", "instutil", "set-kargs", *(f"--append={quote(word)}" for word in words)])

    def _save(self) -> Callable[[], None]:
        before = self.arguments()

        def undo() -> None:
            if self.arguments() != before:
                self._set(before)

        return undo


class RpmOstree(Ostree):
    """The deployment that boots next, changed with ``rpm-ostree kargs``."""

    name = "rpm-ostree"

    def arguments(self) -> tuple[str, ...]:
        # the entry of a staged deployment is not written yet; the tool reads the deployment
        if (self._root / _STAGED).exists():
            return _without_deployment(parse_words(run_tool([self._program, "kargs"])))
        return super().arguments()

    def _set(self, words: Sequence[str]) -> None:
        """Replace the end of the list from the first word that differs.

        ``--delete`` takes the first word that is equal (ostree_kernel_args_delete()), so none of the end may stand
        before it, too.
        """
        before = self.arguments()
        if before == tuple(words):
            return
        pairs = enumerate(zip(before, words, strict=False))
        start = next((index for index, (old, new) in pairs if old != new), min(len(before), len(words)))
        while (repeated := [before.index(word) for word in before[start:]]) and min(repeated) < start:
            start = min(repeated)
        changes = [f"--delete={quote(word)}" for word in before[start:]]
        changes += [f"--append={quote(word)}" for word in words[start:]]
        run_tool([self._program, "kargs", *changes])


def _without_deployment(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for word in words if not word.startswith(_DEPLOYMENT))
