"""The menu that GRUB makes of grub.cfg, grubenv and the entries of the Boot Loader Specification, and its default."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.machine.boot_loader.bls import ENTRIES, BlsEntry, read_entries, sort_for_grub
from hugepage_qa.machine.boot_loader.boot_files import read_text
from hugepage_qa.machine.boot_loader.grub_environment import find_in_grub_directory, read_grub_environment
from hugepage_qa.machine.boot_loader.grub_language import Command, Condition, Node, expand, parse_script

# what GRUB 2 sets before it runs grub.cfg
_FEATURES = {"feature_menuentry_id": "y", "feature_timeout_style": "y", "feature_default_font_path": "y"}
_VALUE_OPTIONS = frozenset({"--class", "--users", "--hotkey", "--source", "--id"})
_LINUX = frozenset({"linux", "linux16", "linuxefi"})


@dataclass(frozen=True)
class BootEntry:
    """The entry that boots next: kernel, as a path that GRUB reads, and its arguments without quotes."""

    kernel: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class _MenuEntry:
    title: str
    identifier: str
    block: tuple[Node, ...]
    is_submenu: bool = False


def next_grub_entry(root: Path) -> BootEntry:
    """Return the entry that GRUB boots next. Raises InputError where grub.cfg does not say, or boots no Linux."""
    path = find_in_grub_directory(root, "grub.cfg")
    if path is None:
        raise InputError(f"{root / 'boot'}: expected grub2/grub.cfg or grub/grub.cfg")
    script = _Script(root, read_grub_environment(root))
    script.run(parse_script(read_text(path), str(path)))
    return script.boot_default(str(path))


class _Script:
    """Runs as much of grub.cfg as decides about menu, default and kernel arguments."""

    def __init__(self, root: Path, environment: dict[str, str]) -> None:
        self._root = root
        self._environment = environment
        self._variables = dict(_FEATURES)
        self._menu: list[_MenuEntry] = []
        self._linux: list[str] | None = None

    def run(self, nodes: Sequence[Node]) -> bool:
        """Run ``nodes`` and return whether the last one succeeded."""
        succeeded = True
        for node in nodes:
            succeeded = self._run_condition(node) if isinstance(node, Condition) else self._run_command(node)
        return succeeded

    def boot_default(self, path: str) -> BootEntry:
        """Return what the default entry of the menu boots."""
        rest = self._variables.get("default", "")
        self._linux = None
        while self._menu:
            first, rest = _split_path(rest)
            entry = _select(self._menu, first)
            self._menu = []
            self.run(entry.block)
        if not self._linux:
            raise InputError(f"{path}: expected a default entry that boots Linux, found none for {rest!r}")
        return BootEntry(self._linux[0], tuple(self._linux[1:]))

    def _run_condition(self, condition: Condition) -> bool:
        for test, body in condition.branches:
            if not test or self.run(test):
                return self.run(body)
        return True

    def _run_command(self, command: Command) -> bool:
        words = expand(command.words, self._variables)
        if not words:
            return True
        name, *arguments = words
        if name in ("[", "test"):
            return self._test(arguments[:-1] if name == "[" else arguments)
        if name == "set" or ("=" in name and not arguments):
            self._set(arguments[0] if name == "set" and arguments else name)
        elif name == "unset":
            for variable in arguments:
                self._variables.pop(variable, None)
        elif name == "load_env":
            self._variables |= self._environment
        elif name in ("menuentry", "submenu"):
            self._menu.append(_menu_entry(arguments, command.block, name == "submenu"))
        elif name in ("blscfg", "bls_import"):
            self._menu += map(self._bls_entry, sort_for_grub(read_entries(self._root / ENTRIES)))
        elif name in _LINUX:
            self._linux = arguments
        # other commands load and show things; as a condition (keystatus, cmostest) they ask for a key that nobody holds
        return name == "true"

    def _set(self, assignment: str) -> None:
        variable, equals, value = assignment.partition("=")
        if equals:
            self._variables[variable] = value

    def _test(self, words: Sequence[str]) -> bool:
        """Evaluate test(1) as grub.cfg uses it: no parentheses, -o binds weaker than -a."""
        if "-o" in words:
            position = words.index("-o")
            return self._test(words[:position]) or self._test(words[position + 1 :])
        if "-a" in words:
            position = words.index("-a")
            return self._test(words[:position]) and self._test(words[position + 1 :])
        result = False
        match list(words):
            case ["!", *rest]:
                result = not self._test(rest)
            case ["-n", text] | [text]:
                result = text != ""
            case ["-z", text]:
                result = text == ""
            case ["-f" | "-s" | "-e" | "-d", file]:
                # of all files that it asks for, only grubenv makes a difference to what is booted
                result = file.endswith("grubenv") and bool(self._environment)
            case [left, "=" | "==", right]:
                result = left == right
            case [left, "!=", right]:
                result = left != right
        return result

    def _bls_entry(self, entry: BlsEntry) -> _MenuEntry:
        # GRUB makes a script of the entry, in which ; ends a command and quotes are taken off
        script = f"linux {entry.kernel} {entry.expanded_options(self._variables)}\n"
        return _MenuEntry(entry.title, entry.identifier, parse_script(script, str(entry.path)))


def _menu_entry(arguments: Sequence[str], block: tuple[Node, ...], is_submenu: bool) -> _MenuEntry:
    title, identifier = "", ""
    rest = iter(arguments)
    for argument in rest:
        if argument in _VALUE_OPTIONS:
            value = next(rest, "")
            identifier = value if argument == "--id" else identifier
        elif not argument.startswith("--") and not title:
            title = argument
    return _MenuEntry(title, identifier or title, block, is_submenu)


def _split_path(text: str) -> tuple[str, str]:
    """Return the first part of ``submenu>entry`` and the rest; ``>>`` is a > in a title."""
    first, _, rest = text.replace(">>", "\0").partition(">")
    return first.replace("\0", ">"), rest.replace("\0", ">>")


def _select(menu: Sequence[_MenuEntry], wanted: str) -> _MenuEntry:
    """Return the entry with this number, title or identifier; GRUB takes the first one where there is none."""
    if wanted.isascii() and wanted.isdigit():
        return menu[int(wanted)] if int(wanted) < len(menu) else menu[0]
    return next((entry for entry in menu if wanted in (entry.title, entry.identifier)), menu[0])
