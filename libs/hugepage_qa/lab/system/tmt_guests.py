"""The machines of a run of tmt: one that is cut off leaves them behind."""

from pathlib import Path

import yaml

from hugepage_qa.errors import InputError
from hugepage_qa.lab.system.registry import Registry

#: of a plan's directory, written when all guests are up
_GUESTS = "plans/**/provision/guests.yaml"


def drop_machines(run: Path, registry: Registry) -> list[str]:
    """Remove the machines that the run in the directory ``run`` has in ``registry``, and return their names."""
    named = [guest.get("machine") for file in sorted(run.glob(_GUESTS)) for guest in _guests(file)]
    left = [name for name in registry.names() if name in named]
    for name in left:
        registry.drop(name)
    return left


def _guests(file: Path) -> list[dict[str, object]]:
    """Return the guests in ``file``. Raises InputError when it was cut off while it was written."""
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"{file}: expected the guests of a run of tmt: {error}") from error
    guests = document.values() if isinstance(document, dict) else []
    return [guest for guest in guests if isinstance(guest, dict)]
