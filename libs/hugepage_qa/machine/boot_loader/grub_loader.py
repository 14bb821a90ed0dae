"""GRUB with a generated grub.cfg (/etc/default/grub), or with entries that grubby changes, on s390x for zipl, too.

The configuration is made by update-grub or grub2-mkconfig.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path, PurePosixPath

from hugepage_qa.errors import InputError
from hugepage_qa.machine.boot_loader.bls import ENTRIES, BlsEntry, read_entries, sort_for_grub
from hugepage_qa.machine.boot_loader.loader import (
    BootLoader,
    append_words,
    drop_words,
    join_words,
    keep_files,
    parse_words,
    read_optional_text,
    read_text,
    remove_file,
    replace_text,
    run_tool,
    without_last,
)

#: GRUB calls its directory grub or, where GRUB 1 had that name, grub2
GRUB_DIRECTORIES = ("boot/grub2", "boot/grub")

_REFERENCE = re.compile(r"(?<!\\)\$(?:\{(?P<braced>\w+)\}|(?P<bare>\w+))")
_COMMAND_ENDS = ";&|"


def find_in_grub_directory(root: Path, name: str) -> Path | None:
    """Return the file ``name`` of GRUB's directory below ``root``, None where there is none."""
    paths = (root / directory / name for directory in GRUB_DIRECTORIES)
    return next((path for path in paths if path.is_file()), None)


def read_grub_environment(root: Path) -> dict[str, str]:
    """Return the variables in grubenv; none where there is no such file. Raises InputError if it cannot be read."""
    path = find_in_grub_directory(root, "grubenv")
    text = (read_optional_text(path) if path else None) or ""
    lines = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {name: value.replace("\\\\", "\\") for name, equals, value in lines if equals}


def parse_grub_words(text: str, variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words that GRUB makes of the kernel arguments ``text``, without quotes.

    A variable that is not set is nothing, and what follows a ``;`` without quotes is no argument. Raises InputError
    for a quote that has no end.
    """
    expanded = _REFERENCE.sub(lambda match: variables.get(match["braced"] or match["bare"], ""), text)
    # GRUB quotes as a shell does
    lexer = shlex.shlex(expanded, posix=True, punctuation_chars=_COMMAND_ENDS)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return tuple(takewhile(lambda word: not word or word.strip(_COMMAND_ENDS), lexer))
    except ValueError as error:
        raise InputError(f"kernel arguments {text!r}: expected what GRUB can read ({error})") from error


_DEFAULTS = "etc/default/grub"
# the drop-ins are read in the order of their names; kdump-tools and cloud images have some, too
_DROP_IN = "etc/default/grub.d/zz-hugepage-qa.cfg"
# of the entries that are no recovery ones, this variable's words come last
_VARIABLE = "GRUB_CMDLINE_LINUX_DEFAULT"
_ASSIGNMENT = re.compile(rf'{_VARIABLE}="\$\{{{_VARIABLE}\}} (?P<words>.*)" # hugepage-qa')
# what other scripts put before it, the administrator's own entries for one, does not get the variables
_GENERATED = "### BEGIN /etc/grub.d/10_linux ###"
_LINUX = re.compile(r"^[ \t]*linux(?:16|efi)?[ \t]+\S+(?P<words>.*)", re.MULTILINE)
_SHELL_SPECIAL = re.compile(r'([\\"$`])')


class Grub(BootLoader):
    """GRUB whose grub.cfg holds the kernel arguments of each entry."""

    def __init__(self, root: Path, menu: Path, mkconfig: Path, update: str | None) -> None:
        """Use the menu ``menu`` (grub.cfg), written by the script ``mkconfig``, or by ``update`` (update-grub)."""
        self._root = root
        self._menu = menu
        self._command = [update] if update else [str(mkconfig), "-o", str(menu)]
        self.name = Path(self._command[0]).name
        drop_in = root / _DROP_IN
        reads_drop_ins = drop_in.parent.is_dir() and "default/grub.d" in (read_optional_text(mkconfig) or "")
        self._fragment = drop_in if reads_drop_ins else root / _DEFAULTS

    @property
    def configuration(self) -> tuple[Path, ...]:
        return (self._fragment,)

    def arguments(self) -> tuple[str, ...]:
        text = read_text(self._menu)
        entry = _LINUX.search(text, max(0, text.find(_GENERATED)))
        if entry is None:
            raise InputError(f"{self._menu}: expected an entry that boots Linux")
        return parse_grub_words(entry["words"], read_grub_environment(self._root))

    def _append(self, arguments: Sequence[str]) -> None:
        self._write(append_words(self._read(), arguments))
        run_tool(self._command)

    def _drop(self, arguments: Sequence[str]) -> None:
        text = self._read()
        foreign = [word for word in without_last(arguments, parse_words(text)) if word in self.arguments()]
        if foreign:
            raise InputError(f"{' '.join(foreign)}: not added by us, remove it in {self._root / _DEFAULTS} or below it")
        self._write(drop_words(text, arguments))
        run_tool(self._command)

    def _save(self) -> Callable[[], None]:
        return keep_files((self._fragment, self._menu))

    def _read(self) -> str:
        """Return the words that we have added before, as GRUB reads them."""
        text = read_optional_text(self._fragment) or ""
        matches = (_ASSIGNMENT.fullmatch(line) for line in text.splitlines())
        return next((re.sub(r"\\(.)", r"\1", match["words"]) for match in matches if match), "")

    def _write(self, words: str) -> None:
        lines = (read_optional_text(self._fragment) or "").splitlines()
        kept = [line for line in lines if not _ASSIGNMENT.fullmatch(line)]
        if words:
            escaped = _SHELL_SPECIAL.sub(r"\\\1", words)
            kept.append(f'{_VARIABLE}="${{{_VARIABLE}}} {escaped}" # hugepage-qa')
        if kept:
            replace_text(self._fragment, "\n".join(kept) + "\n")
        else:
            remove_file(self._fragment)


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
