"""Entries of the Boot Loader Specification: /boot/loader/entries/*.conf, as GRUB and zipl read them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cmp_to_key
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.machine.boot_loader.loader import read_text

ENTRIES = "boot/loader/entries"

_SEGMENT = re.compile(r"[0-9]+|[A-Za-z]+|~|\+")
_NAME_VERSION_RELEASE = 3


@dataclass(frozen=True)
class BlsEntry:
    """One entry; ``options`` may hold variables of GRUB, such as $kernelopts."""

    path: Path
    title: str
    version: str
    kernel: str
    options: str

    @property
    def identifier(self) -> str:
        """The name that boot loaders know it by."""
        return self.path.stem


def read_entries(directory: Path) -> list[BlsEntry]:
    """Return the entries in ``directory`` that boot a kernel, in no order. Raises InputError if it cannot be read."""
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix == ".conf")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(f"{directory}: cannot be read ({error.strerror}): expected to be root") from error
    return [entry for path in paths if (entry := _parse(path)).kernel]


def sort_for_grub(entries: Iterable[BlsEntry]) -> list[BlsEntry]:
    """Return ``entries`` as GRUB's menu shows them: by file name, the highest version first."""

    # bls_cmp() in grub-core/commands/blscfg.c: the suffix takes part
    def compare(one: BlsEntry, other: BlsEntry) -> int:
        pairs = zip(_split(one.path.name), _split(other.path.name), strict=True)
        return next((order for pair in pairs if (order := compare_versions(*pair))), 0)

    return sorted(entries, key=cmp_to_key(compare), reverse=True)


def sort_for_zipl(entries: Iterable[BlsEntry]) -> list[BlsEntry]:
    """Return ``entries`` in the order of zipl's menu: the highest version first, by file name if one has none."""
    # bls_scandir() in zipl/src/scan.c
    entries = list(entries)
    have_versions = all(entry.version for entry in entries)

    def compare(one: BlsEntry, other: BlsEntry) -> int:
        texts = [entry.version if have_versions else entry.path.name for entry in (one, other)]
        return compare_versions(*texts)

    return sorted(entries, key=cmp_to_key(compare), reverse=True)


def compare_versions(one: str, other: str) -> int:
    """Return -1, 0 or 1 as rpm orders versions: numbers by value, ``~`` before the end, ``+`` after it."""
    ours, theirs = _SEGMENT.findall(one), _SEGMENT.findall(other)
    for left, right in zip(ours, theirs, strict=False):
        if left != right and (order := _compare_segments(left, right)):
            return order
    longer, sign = (ours, 1) if len(ours) > len(theirs) else (theirs, -1)
    if len(ours) == len(theirs):
        return 0
    return -sign if longer[min(len(ours), len(theirs))] == "~" else sign


def _compare_segments(left: str, right: str) -> int:
    for separator in ("~", "+"):
        if separator in (left, right):
            return -1 if left == separator else 1
    if left.isdigit() != right.isdigit():
        return 1 if left.isdigit() else -1
    if left.isdigit():
        return (int(left) > int(right)) - (int(left) < int(right))
    return (left > right) - (left < right)


def _split(name: str) -> tuple[str, str, str]:
    """Return name, version and release of a file name; empty where it has no dash."""
    parts = name.rsplit("-", 2)
    padded = [*parts, "", ""][:_NAME_VERSION_RELEASE]
    return padded[0], padded[1], padded[2]


def _parse(path: Path) -> BlsEntry:
    fields: dict[str, str] = {}
    for line in read_text(path).splitlines():
        name, _, value = line.strip().partition(" ") if " " in line else line.strip().partition("\t")
        if name and not name.startswith("#"):
            # of a repeated field the first one counts, as in GRUB
            fields.setdefault(name, value.strip())
    return BlsEntry(
        path=path,
        title=fields.get("title", ""),
        version=fields.get("version", ""),
        kernel=fields.get("linux", ""),
        options=fields.get("options", ""),
    )
