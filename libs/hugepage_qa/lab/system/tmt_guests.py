"""The machines of a run of tmt: one that is cut off leaves them behind."""

from pathlib import Path

import yaml

from hugepage_qa.errors import InputError
from hugepage_qa.lab.system.registry import Registry

#: of each plan, written when all guests are up
_GUESTS = "run/plans/**/provision/guests.yaml"


def drop_machines(directory: Path, registry: Registry) -> list[str]:
    """Remove the machines that the run that is kept in ``directory`` has in ``registry``, and return their names.

    Another run may have a machine of that name by now: the port of its ssh tells them apart. Raises InputError.
    """
    guests = [guest for file in sorted(directory.glob(_GUESTS)) for guest in _guests(file)]
    ours = {guest.get("machine"): guest.get("port") for guest in guests}
    left = [name for name in registry.names() if name in ours and registry.find(name).record.port == ours[name]]
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
