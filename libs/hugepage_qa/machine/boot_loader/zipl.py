"""zipl, the boot loader of s390x: it writes what it boots into a bootmap, so each change is followed by a run.

Its configuration zipl.conf has sections; one is booted by default, and a file has the kernel arguments of it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.machine.boot_loader.bls import ENTRIES, read_entries, sort_for_zipl
from hugepage_qa.machine.boot_loader.grub_loader import kernel_for_grubby
from hugepage_qa.machine.boot_loader.loader import (
    ArgumentsLost,
    BootLoader,
    append_words,
    drop_words,
    join_words,
    keep_files,
    parse_words,
    read_text,
    replace_text,
    run_tool,
)

# zipl.conf(5): the first of them that there is
_PATHS = ("run/zipl/zipl.conf", "etc/zipl.conf", "usr/lib/s390-tools/zipl.conf", "lib/s390-tools/zipl.conf")
_HEADING = re.compile(r"\s*(?:\[(?P<section>[^]\s]+)\]|:(?P<menu>\w+))\s*")
_ASSIGNMENT = re.compile(r"\s*(?P<key>[\w-]+)\s*=\s*(?P<value>.*?)\s*")
_DEFAULT = "defaultboot"


@dataclass(frozen=True)
class ZiplEntry:
    """What zipl boots by default: the directory of its bootmap, and where the kernel arguments come from.

    ``parameters`` are those in ``path``, after those in ``parmfile`` where there is one.
    """

    path: Path
    section: str
    target: str
    kernel: str
    parameters: str | None
    parmfile: Path | None = None
    is_bls: bool = False


@dataclass
class _Section:
    name: str
    values: dict[str, str] = field(default_factory=dict)
    words: set[str] = field(default_factory=set)


def find_zipl_configuration(root: Path) -> Path | None:
    """Return the zipl.conf that zipl reads, None where there is none."""
    return next((root / path for path in _PATHS if (root / path).is_file()), None)


def default_zipl_entry(root: Path) -> ZiplEntry:
    """Return what zipl boots by default. Raises InputError where the configuration does not say."""
    path = find_zipl_configuration(root)
    if path is None:
        raise InputError(f"{root / _PATHS[1]}: no such file, expected the configuration of zipl")
    sections = _parse(read_text(path))
    boot = sections.get(_DEFAULT)
    if boot is None:
        raise InputError(f"{path}: expected a section [{_DEFAULT}]")
    name, target = _default(sections, boot)
    is_automatic = "defaultauto" in boot.words or "target" in boot.values
    entries = sort_for_zipl(read_entries(root / ENTRIES)) if is_automatic else []
    for entry in entries:
        if name in (None, entry.title):
            return ZiplEntry(entry.path, entry.title, target, entry.kernel, entry.options, is_bls=True)
    if name is None:
        name = next((one for one, section in sections.items() if "image" in section.values), None)
    section = sections.get(name or "")
    if section is None or "image" not in section.values:
        raise InputError(f"{path}: expected a default section with an image, found {name!r}")
    parmfile = section.values.get("parmfile")
    return ZiplEntry(
        path=path,
        section=section.name,
        target=section.values.get("target", target),
        kernel=section.values["image"],
        parameters=section.values.get("parameters"),
        # a load address can follow the name
        parmfile=root / parmfile.partition(",")[0].lstrip("/") if parmfile else None,
    )


def with_parameters(text: str, section: str, parameters: str) -> str:
    """Return zipl.conf ``text`` with ``parameters`` in ``section``, in a line of their own if there is none."""
    quote = "'" if '"' in parameters else '"'
    new = f"parameters = {quote}{parameters}{quote}"
    lines = text.splitlines()
    headings = [(index, match) for index, line in enumerate(lines) if (match := _HEADING.fullmatch(line))]
    start = next(index for index, match in headings if match["section"] == section) + 1
    end = next((index for index, _ in headings if index >= start), len(lines))
    keys = [match["key"] if (match := _ASSIGNMENT.fullmatch(line)) else "" for line in lines[start:end]]
    if "parameters" in keys:
        lines[start + keys.index("parameters")] = new
    else:
        lines.insert(start, new)
    return "\n".join(lines) + "\n"


def _parse(text: str) -> dict[str, _Section]:
    sections: dict[str, _Section] = {}
    section = _Section("")
    for line in text.splitlines():
        if heading := _HEADING.fullmatch(line):
            name = heading["section"] or f":{heading['menu']}"
            section = sections.setdefault(name, _Section(name))
        elif line.strip().startswith("#"):
            continue
        elif assignment := _ASSIGNMENT.fullmatch(line):
            value = assignment["value"]
            is_quoted = len(value) > 1 and value[0] in "\"'" and value[-1] == value[0]
            section.values[assignment["key"]] = value[1:-1] if is_quoted else value
        else:
            section.words.add(line.strip())
    return sections


def _default(sections: Mapping[str, _Section], boot: _Section) -> tuple[str | None, str]:
    """Return the name of the default section, None for the first one, and the directory of the bootmap."""
    menu = boot.values.get("defaultmenu")
    if menu is None:
        return boot.values.get("default"), boot.values.get("target", "/boot")
    section = sections.get(f":{menu}", _Section(menu))
    numbers = {int(key): name for key, name in section.values.items() if key.isdigit()}
    if not numbers:
        raise InputError(f"menu {menu!r} of zipl.conf: expected numbered sections in it")
    number = section.values.get("default", "")
    chosen = numbers.get(int(number)) if number.isdigit() else next(iter(numbers.values()))
    return chosen, section.values.get("target", "/boot")


# the smallest block of a disk, bytes
_BLOCK = 512


class Zipl(BootLoader):
    """The default entry of zipl: a section of zipl.conf, or an entry of the Boot Loader Specification."""

    def __init__(self, root: Path, program: str, grubby: str | None) -> None:
        """Use the zipl at ``program``; where ``grubby`` is installed, it makes the changes to entries."""
        self._root = root
        self._program = program
        self._grubby = grubby if default_zipl_entry(root).is_bls else None
        self.name = "grubby and zipl" if self._grubby else "zipl"

    @property
    def configuration(self) -> tuple[Path, ...]:
        entry = default_zipl_entry(self._root)
        return () if entry.is_bls else (_edited(entry),)

    def arguments(self) -> tuple[str, ...]:
        entry = default_zipl_entry(self._root)
        # the configuration is only what the next run of zipl would write
        if not self._is_written(entry):
            raise InputError(f"{self._bootmap(entry)}: does not hold the parameters in {entry.path}: run zipl first")
        return parse_words(_parameter_line(entry))

    def _append(self, arguments: Sequence[str]) -> None:
        before = self.arguments()
        if self._grubby:
            self._run_grubby("--args", arguments)
        else:
            self._edit(lambda text: append_words(text, arguments))
        self._run_zipl("lost", arguments, before)

    def _drop(self, arguments: Sequence[str]) -> None:
        before = self.arguments()
        if self._grubby:
            self._run_grubby("--remove-args", arguments)
        else:
            self._edit(lambda text: drop_words(text, arguments))
        self._run_zipl("left", arguments, before)

    def _save(self) -> Callable[[], None]:
        put_back = keep_files([_edited(default_zipl_entry(self._root))])

        def undo() -> None:
            put_back()
            # the bootmap is a list of disk blocks: a copy of it would not boot
            run_tool([self._program])

        return undo

    def _run_zipl(self, failure: str, arguments: Sequence[str], before: Sequence[str]) -> None:
        run_tool([self._program])
        if not self._is_written(default_zipl_entry(self._root)):
            raise ArgumentsLost("zipl", failure, arguments, before)

    def _is_written(self, entry: ZiplEntry) -> bool:
        """Tell whether the bootmap has the arguments: they begin a block, and a null byte ends them."""
        # add_component_buffer() in zipl/src/bootmap.c
        line = _parameter_line(entry).encode("utf-8", "surrogateescape") + b"\0"
        content = _read_bytes(self._bootmap(entry))
        return any(content.startswith(line, start) for start in range(0, len(content), _BLOCK))

    def _bootmap(self, entry: ZiplEntry) -> Path:
        return self._root / entry.target.lstrip("/") / "bootmap"

    def _run_grubby(self, option: str, arguments: Sequence[str]) -> None:
        kernel = kernel_for_grubby(default_zipl_entry(self._root).kernel)
        run_tool([self._grubby or "grubby", f"--update-kernel={kernel}", f"{option}={join_words(arguments)}"])

    def _edit(self, change: Callable[[str], str]) -> None:
        entry = default_zipl_entry(self._root)
        path = _edited(entry)
        text = read_text(path)
        if path == entry.parmfile:
            replace_text(path, change(" ".join(text.splitlines())) + "\n")
        elif entry.is_bls:
            replace_text(path, _with_options(text, change(entry.parameters or "")))
        else:
            replace_text(path, with_parameters(text, entry.section, change(entry.parameters or "")))


def _edited(entry: ZiplEntry) -> Path:
    """Return the file that the last of the kernel arguments stand in."""
    return entry.parmfile if entry.parmfile and entry.parameters is None else entry.path


def _parameter_line(entry: ZiplEntry) -> str:
    """Return the kernel arguments as zipl puts them together (get_parmline() in zipl/src/job.c)."""
    parts = [" ".join(read_text(entry.parmfile).splitlines())] if entry.parmfile else []
    return " ".join([*parts, *([entry.parameters] if entry.parameters else [])])


def _with_options(text: str, options: str) -> str:
    lines = text.splitlines()
    position = next((index for index, line in enumerate(lines) if line.split()[:1] == ["options"]), len(lines))
    return "\n".join([*lines[:position], f"options {options}", *lines[position + 1 :]]) + "\n"


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): run zipl first, as root") from error
