"""What every boot loader can do, and the check that its tool did what it was asked for."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.machine.boot_loader.words import join_words, refuse_unquotable, without_last


class ArgumentsLost(Exception):
    """A tool reported success, and the entry that boots next does not have the kernel arguments that it must have.

    The fault is the tool's: to a test this is a failure of the product, which the message names.
    """

    def __init__(self, tool: str, what: str, arguments: Sequence[str], found: Sequence[str]) -> None:
        """Tell that ``tool`` did ``what`` (``lost``) to ``arguments``, and what it left."""
        super().__init__(f"{tool} {what} {join_words(arguments)}: the entry that boots next has {join_words(found)!r}")
        self.tool = tool
        self.arguments = tuple(arguments)
        self.found = tuple(found)


class BootLoader(ABC):
    """The kernel arguments of the entry that boots next.

    A change that fails is undone before its error is raised: the configuration is then as before.
    """

    #: the tool that makes the changes, as messages name it
    name: str

    @property
    def configuration(self) -> tuple[Path, ...]:
        """The files of the administrator that ``add`` may change or make, besides those that the tool generates."""
        return ()

    @abstractmethod
    def arguments(self) -> tuple[str, ...]:
        """Return the arguments of the entry that boots next, in order and without quotes.

        They are read from what the boot loader reads at boot, neither from /proc/cmdline nor from the source of a
        generated configuration. Raises InputError where that cannot be read.
        """

    def add(self, arguments: Sequence[str]) -> None:
        """Append ``arguments``, one word each and without quotes, in order; repeated words are legal.

        Raises InputError for a word that cannot be quoted and for a tool that refuses or fails, ArgumentsLost for a
        tool that lost, moved or changed an argument, these or others.
        """
        refuse_unquotable(arguments)
        if not arguments:
            return
        before = self.arguments()
        with self._undone_on_error():
            self._append(arguments)
            self._check_added(before, arguments, self.arguments())

    def remove(self, arguments: Sequence[str]) -> None:
        """Remove the last occurrence of each of ``arguments``; one that is not there is removed already.

        Raises InputError for a tool that refuses or fails, ArgumentsLost for a tool that left one of them, or that
        lost, moved or changed another one.
        """
        refuse_unquotable(arguments)
        if not arguments:
            return
        before = self.arguments()
        with self._undone_on_error():
            self._drop(arguments)
            self._check_removed(without_last(before, arguments), self.arguments())

    @abstractmethod
    def _append(self, arguments: Sequence[str]) -> None:
        """Have the tool append ``arguments``."""

    @abstractmethod
    def _drop(self, arguments: Sequence[str]) -> None:
        """Have the tool remove the last occurrences of those of ``arguments`` that are there."""

    @abstractmethod
    def _save(self) -> Callable[[], None]:
        """Return what puts the configuration back to how it is now."""

    @contextmanager
    def _undone_on_error(self) -> Iterator[None]:
        undo = self._save()
        try:
            yield
        except BaseException as error:
            try:
                undo()
            except InputError as trouble:
                raise InputError(f"{error}; it could not be undone: {trouble}") from error
            raise

    def _check_added(self, before: Sequence[str], added: Sequence[str], found: Sequence[str]) -> None:
        self._check_words((*before, *added), found, "put in")
        start = _last_run(found, added)
        names = {_name(word) for word in added}
        # a size before a count says what is counted: what follows the words must not have a word of theirs
        if start is None or any(_name(word) in names for word in found[start + len(added) :]):
            raise ArgumentsLost(self.name, "did not put at the end, in order,", added, found)
        self._check_order(before, [*found[:start], *found[start + len(added) :]], found)

    def _check_removed(self, wanted: Sequence[str], found: Sequence[str]) -> None:
        self._check_words(wanted, found, "left")
        self._check_order(wanted, found, found)

    def _check_words(self, wanted: Sequence[str], found: Sequence[str], excess: str) -> None:
        if lost := list((Counter(wanted) - Counter(found)).elements()):
            raise ArgumentsLost(self.name, "lost", lost, found)
        if more := list((Counter(found) - Counter(wanted)).elements()):
            raise ArgumentsLost(self.name, excess, more, found)

    def _check_order(self, wanted: Sequence[str], others: Sequence[str], found: Sequence[str]) -> None:
        if list(others) != list(wanted):
            raise ArgumentsLost(self.name, "put in another order", wanted, found)


def _last_run(words: Sequence[str], run: Sequence[str]) -> int | None:
    """Return where ``run`` begins the last time that it stands in ``words`` without a gap."""
    starts = reversed(range(len(words) - len(run) + 1))
    return next((start for start in starts if list(words[start : start + len(run)]) == list(run)), None)


def _name(word: str) -> str:
    return word.partition("=")[0].replace("-", "_")
