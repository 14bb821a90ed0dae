"""zipl.conf: its sections, which one is booted by default, and the file that its kernel arguments stand in."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.machine.boot_loader.bls import ENTRIES, read_entries, sort_for_zipl
from hugepage_qa.machine.boot_loader.files import read_text

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
    entries = sort_for_zipl(read_entries(root / ENTRIES)) if _is_automatic(boot) else []
    for entry in entries:
        if name in (None, entry.title):
            return ZiplEntry(entry.path, entry.title, target, entry.kernel, entry.options, is_bls=True)
    if name is None:
        name = next((one for one, section in sections.items() if "image" in section.values), None)
    section = sections.get(name or "")
    if section is None or "image" not in section.values:
        raise InputError(f"{path}: expected a default section with an image, found {name!r}")
    return _entry(path, root, section, target)


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
            section.values[assignment["key"]] = _unquote(assignment["value"])
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


def _is_automatic(boot: _Section) -> bool:
    return "defaultauto" in boot.words or "target" in boot.values


def _entry(path: Path, root: Path, section: _Section, target: str) -> ZiplEntry:
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


def _unquote(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] in "\"'" and value[-1] == value[0]
    return value[1:-1] if is_quoted else value
