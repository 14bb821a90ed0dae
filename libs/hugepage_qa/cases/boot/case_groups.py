"""The groups of named cases, by name: whoever only names them reads none."""

from collections.abc import Sequence
from functools import cache
from importlib import resources

from hugepage_qa.errors import InputError


@cache
def groups() -> tuple[str, ...]:
    """Return the names of all groups, sorted."""
    folder = resources.files(__package__) / "cases"
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def choose_groups(names: Sequence[str]) -> tuple[str, ...]:
    """Return the groups ``names``, without names all. Raises InputError for a group that is not there."""
    for name in names:
        if name not in groups():
            raise InputError(f"group {name!r}: expected one of {', '.join(groups())}")
    return tuple(names) or groups()
