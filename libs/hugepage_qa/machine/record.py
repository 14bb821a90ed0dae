"""What a journal holds, and its form as a text."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from hugepage_qa.machine.kept_file import KeptFile
from hugepage_qa.machine.run_lock import Holder
from hugepage_qa.machine.state import MachineState
from hugepage_qa.schema import find_violation, parse_json

_FORMAT = "hugepage-qa journal"
_VERSION = 1


@dataclass(frozen=True)
class KeptArguments:
    """The kernel arguments of the entry that boots next, as the boot loader ``loader`` had them."""

    loader: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class ExpectedReboot:
    """A reboot that a case has asked for; ``arrived`` is the id of the first boot that was seen after it."""

    token: str
    arrived: str | None = None


@dataclass(frozen=True)
class Record:
    """What the journal holds.

    ``state`` is of the boot ``boot_id``; ``scratch`` names directories of the run, ``files`` and ``arguments`` are
    what a reboot does not reset.
    """

    run_id: str
    purpose: str
    holder: Holder
    boot_id: str
    state: MachineState
    scratch: tuple[str, ...] = ()
    files: tuple[KeptFile, ...] = ()
    arguments: KeptArguments | None = None
    expected_reboot: ExpectedReboot | None = None


def format_record(record: Record) -> str:
    """Return ``record`` as a text. Raises ValueError for one that could not be read again."""
    text = json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(record)}, indent=1)
    # as it will be read: tuples are lists there
    violation = find_violation(json.loads(text), __package__, "journal")
    if violation is not None:
        raise ValueError(violation)
    return f"{text}\n"


def parse_record(text: str) -> Record:
    """Return the record in ``text``. Raises ValueError for one that is corrupt, foreign or of a later version."""
    try:
        document = parse_json(text)
    except ValueError as error:
        raise ValueError(f"no JSON ({error})") from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ValueError("not a journal of hugepage-qa")
    version = document.get("version")
    if isinstance(version, int) and version > _VERSION:
        raise ValueError(f"written by a later hugepage-qa (version {version}, this one knows {_VERSION})")
    violation = find_violation(document, __package__, "journal")
    if violation is not None:
        raise ValueError(violation)
    return _record(document)


def _record(document: dict[str, Any]) -> Record:
    arguments = document["arguments"]
    expected = document["expected_reboot"]
    return Record(
        run_id=document["run_id"],
        purpose=document["purpose"],
        holder=Holder(**document["holder"]),
        boot_id=document["boot_id"],
        state=MachineState.from_document(document["state"]),
        scratch=tuple(document["scratch"]),
        files=tuple(KeptFile(**file) for file in document["files"]),
        arguments=arguments and KeptArguments(arguments["loader"], tuple(arguments["arguments"])),
        expected_reboot=expected and ExpectedReboot(**expected),
    )
