"""What every boot loader can do, and the check that its tool did what it was asked for.

Kernel arguments are words here, and text in the files of boot loaders. A word is an argument without its quotes: what
``dyndbg="file x +p"`` means is ``dyndbg=file x +p``.
"""

import os
import re
import stat
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hugepage_qa.durable import remove_durably, write_durably
from hugepage_qa.errors import InputError
from hugepage_qa.machine.kept_file import read_kept_file, restore_file, unrestored
from hugepage_qa.parameters import canonical_name, parse_parameters
from hugepage_qa.process.child import run_to_end, search_path

# what neither GRUB nor a shell nor the kernel takes for anything but itself
_PLAIN = re.compile(r"[\w@%+=:,./^-]+", re.ASCII)
# each of these means something inside double quotes to one of the programs that a word passes through
_UNQUOTABLE = re.compile(r"[\"'\\$`]|[^\x20-\x7e]")
_RAW = re.compile(r'(?:[^\s"]|"[^"]*(?:"|$))+')


def parse_words(text: str) -> tuple[str, ...]:
    """Return the kernel arguments in ``text``, up to a word ``--``: what follows belongs to init."""
    return tuple(str(parameter) for parameter in parse_parameters(text))


def quote(word: str) -> str:
    """Return ``word`` as it stands in a file: as it is, or in double quotes, which GRUB and the kernel take off."""
    return word if _PLAIN.fullmatch(word) else f'"{word}"'


def join_words(words: Iterable[str]) -> str:
    """Return ``words`` as the text of a command line."""
    return " ".join(map(quote, words))


def refuse_unquotable(words: Iterable[str]) -> None:
    """Raise InputError for a word that would not come through every boot loader as it is."""
    for word in words:
        if not word or word == "--" or _UNQUOTABLE.search(word):
            raise InputError(f"kernel argument {word!r}: expected printable ASCII without quotes, backslash, $ and `")


def append_words(text: str, words: Sequence[str]) -> str:
    """Return the command line ``text`` with ``words`` at its end."""
    return " ".join([*([text.rstrip()] if text.strip() else []), *map(quote, words)])


def drop_words(text: str, words: Sequence[str]) -> str:
    """Return the command line ``text`` without the last occurrence of each of ``words``; the others stay untouched."""
    raw = _RAW.findall(text)
    meanings = [next(iter(parse_words(word)), word) for word in raw]
    for position in sorted(last_positions(meanings, words), reverse=True):
        del raw[position]
    return " ".join(raw)


def without_last(words: Sequence[str], dropped: Sequence[str]) -> tuple[str, ...]:
    """Return ``words`` without the last occurrence of each of ``dropped``; what is not there is none."""
    positions = last_positions(words, dropped)
    return tuple(word for position, word in enumerate(words) if position not in positions)


def last_positions(words: Sequence[str], wanted: Sequence[str]) -> set[int]:
    """Return where in ``words`` the last occurrences of ``wanted`` are; a word that is wanted twice has two."""
    positions: set[int] = set()
    for word in wanted:
        free = (index for index in reversed(range(len(words))) if words[index] == word and index not in positions)
        if (found := next(free, None)) is not None:
            positions.add(found)
    return positions


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
        generated configuration. Of GRUB's script it is the first entry that is generated. Raises InputError where that
        cannot be read.
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
            wanted, found = without_last(before, arguments), self.arguments()
            self._check_words(wanted, found, "left")
            self._check_order(wanted, found, found)

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
        names = {canonical_name(word) for word in added}
        # a size before a count says what is counted: what follows the words must not have a word of theirs
        if start is None or any(canonical_name(word) in names for word in found[start + len(added) :]):
            raise ArgumentsLost(self.name, "did not put at the end, in order,", added, found)
        self._check_order(before, [*found[:start], *found[start + len(added) :]], found)

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


# they build images (kernel-install) or check out a deployment (rpm-ostree) at times
_DEADLINE = 600.0
# their output is read: without translation, colours and pager
_ENVIRONMENT = {"LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": "cat"}


def run_tool(command: Sequence[str]) -> str:
    """Run ``command`` and return what it printed; raises InputError, with its output in one line, when it fails."""
    environment = os.environ | _ENVIRONMENT | {"PATH": search_path()}
    try:
        done = run_to_end(command, environment=environment, seconds=_DEADLINE)
    except TimeoutError as error:
        raise InputError(f"{' '.join(command)}: has not ended after {_DEADLINE:g} s") from error
    except OSError as error:
        raise InputError(f"{command[0]}: cannot be run ({error.strerror})") from error
    if done.returncode != 0:
        printed = " | ".join(line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip())
        raise InputError(f"{' '.join(command)}: ended with exit code {done.returncode}: {printed or 'no output'}")
    return done.stdout


def read_text(path: Path) -> str:
    """Return the text of ``path``. Raises InputError when it cannot be read: many of these files are root's alone."""
    text = read_optional_text(path)
    if text is None:
        raise InputError(f"{path}: no such file, expected the configuration of a boot loader")
    return text


def read_optional_text(path: Path) -> str | None:
    """Return the text of ``path``, None where there is no such file. Raises InputError when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): expected to be root") from error


def replace_text(path: Path, text: str) -> None:
    """Replace or make the file ``path`` as a whole; mode and owner stay. Raises InputError if it cannot be written."""
    path = path.resolve()
    content = text.encode("utf-8", "surrogateescape")
    try:
        status = path.stat() if path.exists() else None
        if status is None:
            write_durably(path, content)
        else:
            write_durably(path, content, mode=stat.S_IMODE(status.st_mode), owner=(status.st_uid, status.st_gid))
    except OSError as error:
        raise _not_writable(path, error) from error


def remove_file(path: Path) -> None:
    """Remove the file ``path`` if it is there. Raises InputError when that cannot be."""
    try:
        remove_durably(path)
    except OSError as error:
        raise _not_writable(path, error) from error


def keep_files(paths: Iterable[Path]) -> Callable[[], None]:
    """Return what puts the files ``paths`` back to how they are now, and removes those that there are not.

    It raises InputError when one cannot be put back.
    """
    # grubenv is a link into the EFI system partition on some systems
    kept = [read_kept_file(path.resolve()) for path in paths]

    def put_back() -> None:
        repairs = [repair for file in kept for repair in restore_file(file)]
        if broken := unrestored(repairs):
            raise InputError(f"the boot loader is not as before: {'; '.join(map(str, broken))}")

    return put_back


def _not_writable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be written ({error.strerror}): expected to be root and a writable disk")
