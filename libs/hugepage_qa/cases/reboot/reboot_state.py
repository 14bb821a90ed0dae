"""Where a chain of reboot cases is, kept between the boots: a file in the test's data directory."""

import json
import secrets
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from hugepage_qa.cases.result import Result, Verdict, because
from hugepage_qa.durable import write_durably
from hugepage_qa.errors import InputError
from hugepage_qa.schema import build, read_document

_FORMAT = "hugepage-qa reboot cases"
_VERSION = 1
_TOKEN_BYTES = 16


@dataclass(frozen=True)
class Baseline:
    """The machine before any change: what boots it, and what it showed."""

    loader: str
    arguments: tuple[str, ...]
    command_line: str
    observations: dict[str, int | str]


@dataclass
class ChainState:
    """A chain of reboot cases; ``token`` is the journal's word for it.

    ``boots`` is the number of reboots asked for, ``boot_id`` names the boot that asked last, ``memory`` is what
    fractions are of (bytes). ``running`` is the case that the last reboot is for, ``started`` when it was set up
    (seconds since the epoch), ``evidence`` what was found out before that reboot. The logs of what is ``done`` are
    names of files beside that of the chain.
    """

    token: str
    boot_id: str
    memory: int
    baseline: Baseline
    waiting: list[str] = field(default_factory=list)
    boots: int = 0
    running: str | None = None
    started: float = 0.0
    evidence: dict[str, str] = field(default_factory=lambda: {"summary": "", "log": ""})
    done: list[Result] = field(default_factory=list)


def new_token() -> str:
    """Return a random word by which a chain knows its journal after a reboot."""
    return secrets.token_hex(_TOKEN_BYTES)


class StateFile:
    """The file; it is written whole, and on the disk when ``save`` returns: a reboot follows."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "reboot-cases.json"

    def load(self) -> ChainState | None:
        """Return the chain, None when there is no file. Raises InputError for a file that we did not write so."""
        if not self.path.exists():
            return None
        document = read_document(self.path, __package__, "chain", "expected what the boot before this one wrote")
        done = [
            Result(
                one["name"],
                Verdict(one["verdict"]),
                because(one["reason"]),
                one["seconds"],
                logs=(Path(one["log"]),) if one["log"] else (),
            )
            for one in document["done"]
        ]
        return replace(build(ChainState, {**document, "done": []}), done=done)

    def save(self, chain: ChainState) -> None:
        """Write ``chain``. Raises InputError when it cannot be on the disk."""
        done = [
            {
                "name": one.name,
                "verdict": one.verdict.value,
                "reason": one.reason,
                "seconds": one.seconds,
                "log": one.logs[0].name if one.logs else None,
            }
            for one in chain.done
        ]
        document = {"format": _FORMAT, "version": _VERSION, **asdict(chain), "done": done}
        try:
            write_durably(self.path, (json.dumps(document, indent=1) + "\n"))
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written ({error.strerror}): free its disk") from error
