"""The system machines of this cache: their names, their directories, what is left of those that died.

A run of tmt that is cut off leaves its machines behind.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from hugepage_qa.cache import write_atomically
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.system.build_tools import remove
from hugepage_qa.qemu.system.system_arguments import PID_FILE, serial_log
from hugepage_qa.qemu.system.system_machine import Record, SystemMachine, kill_emulator, running_pid
from hugepage_qa.schema import build, read_document

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
_RECORD = "machine.json"
_MOST_MACHINES = 1000


def check_name(name: str) -> str:
    """Return ``name``; InputError unless it is 1 to 32 lower case letters, digits and inner hyphens."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"machine name {name!r}: expected at most 32 lower case letters, digits and hyphens, such as lab1"
        )
    return name


@dataclass(frozen=True)
class Registry:
    """The machines below one cache directory."""

    cache: Path

    @property
    def _machines(self) -> Path:
        return self.cache / "machines"

    def directory(self, name: str) -> Path:
        """Return the directory of machine ``name``; InputError for what cannot be a name."""
        return self._machines / check_name(name)

    def names(self) -> list[str]:
        """Return the names of all machines, running or not."""
        if not self._machines.is_dir():
            return []
        return sorted(entry.name for entry in self._machines.iterdir() if _NAME.fullmatch(entry.name))

    def one_name(self, name: str | None) -> str:
        """Return ``name`` if there is such a machine, for None that of the only one; InputError names all there are."""
        names = self.names()
        known = f"there are {', '.join(names)}" if names else "there is none, hugepage-qa lab up starts one"
        if name is None and len(names) != 1:
            raise InputError(f"which machine? {known}")
        if name is not None and check_name(name) not in names:
            raise InputError(f"no machine {name}: {known}")
        return name or names[0]

    def find(self, name: str | None) -> SystemMachine:
        """Return machine ``name``; InputError as in ``one_name``, and when its record is damaged."""
        return self._load(self.one_name(name))

    def images_in_use(self) -> set[str]:
        """Return the names of the images that machines lie over; errors as in ``find``."""
        return {self._load(name).record.image for name in self.names()}

    @contextmanager
    def new_directory(self, name: str | None) -> Iterator[Path]:
        """Yield a new directory for machine ``name``, for the next free name without one; an error removes it.

        Its serial log stays behind for whoever looks for the cause. Raises InputError when there is such a machine
        already.
        """
        self._machines.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = self._claim(name)
        try:
            yield directory
        except BaseException:
            kill_emulator(directory / PID_FILE)
            remove(directory)
            raise

    def _claim(self, name: str | None) -> Path:
        for candidate in [name] if name is not None else (f"lab{number}" for number in range(1, _MOST_MACHINES)):
            directory = self.directory(candidate)
            try:
                directory.mkdir(mode=0o700)
            except FileExistsError:
                continue
            _serial_log(directory).unlink(missing_ok=True)
            return directory
        raise InputError(
            f"there is a machine {name or 'of every name'} already: hugepage-qa lab down {name or '--all'}"
        )

    def keep(self, record: Record) -> SystemMachine:
        """Write ``record`` into the directory of its machine and return the machine."""
        directory = self.directory(record.name)
        # the path of the key is the only value that JSON does not know
        write_atomically(directory / _RECORD, json.dumps(asdict(record), indent=1, default=str).encode())
        return SystemMachine(record, directory)

    def drop(self, name: str) -> bool:
        """End machine ``name`` and remove all that is left of it, even of a damaged one; true if it was running."""
        directory = self.directory(self.one_name(name))
        running = running_pid(directory / PID_FILE) is not None
        kill_emulator(directory / PID_FILE)
        remove(directory)
        _serial_log(directory).unlink(missing_ok=True)
        return running

    def _load(self, name: str) -> SystemMachine:
        path = self.directory(name) / _RECORD
        advice = f"hugepage-qa lab down {name} removes the machine"
        if not path.exists():
            raise InputError(
                f"{path}: it is not there (the machine is being made, or its making was cut off): {advice}"
            )
        return SystemMachine(build(Record, read_document(path, __package__, "machine", advice)), path.parent)


def _serial_log(directory: Path) -> Path:
    return directory.parent / Path(serial_log(directory.name)).name


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
