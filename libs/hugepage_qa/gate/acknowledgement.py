"""Changes that somebody answers for: one file each beside the baseline, ``<metric>.<date>-<commit>.ack.json``."""

import json
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from hugepage_qa.gate.input_file import check_document, read_json
from hugepage_qa.machine.durable import write_durably

FORMAT = "hugepage-qa acknowledgement"
VERSION = 1

_READABLE = 0o644
_COMMIT_SHOWN = 12


@dataclass(frozen=True)
class Acknowledgement:
    """Who accepted which change, why, and where it comes from. ``change`` is a share, + is worse."""

    metric: str
    configuration: str
    by: str
    on: date
    reason: str
    commit: str
    change: float
    #: seals of the blocks that start the new baseline
    blocks: tuple[str, ...]


def write_acknowledgement(baseline: Path, acknowledgement: Acknowledgement) -> Path:
    """Write ``acknowledgement`` beside the file ``baseline`` and return where. Raises OSError."""
    commit = "".join(letter for letter in acknowledgement.commit if letter.isalnum())[:_COMMIT_SHOWN]
    path = baseline.with_name(f"{baseline.stem}.{acknowledgement.on.isoformat()}-{commit}.ack.json")
    document = {
        "format": FORMAT,
        "version": VERSION,
        **asdict(acknowledgement),
        "on": acknowledgement.on.isoformat(),
        "change": round(acknowledgement.change, 6),
    }
    write_durably(path, f"{json.dumps(document, indent=1, sort_keys=True)}\n".encode(), mode=_READABLE)
    return path


def read_acknowledgements(baseline: Path) -> list[Acknowledgement]:
    """Return what was acknowledged for the file ``baseline``, oldest first. Raises InputError for a damaged file."""
    found = []
    for path in sorted(baseline.parent.iterdir()):
        if path.name.startswith(f"{baseline.stem}.") and path.name.endswith(".ack.json"):
            document = read_json(path)
            check_document(document, path, FORMAT, VERSION, "acknowledgement")
            facts = {key: value for key, value in document.items() if key not in ("format", "version")}
            on = date.fromisoformat(facts["on"])
            found.append(Acknowledgement(**{**facts, "on": on, "blocks": tuple(facts["blocks"])}))
    return found
