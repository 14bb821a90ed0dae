"""What an importer is told about files that do not say it themselves: machine, subject, configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hugepage_qa.gate.samples import Scalar


@dataclass(frozen=True)
class Origin:
    """Where samples come from: facts that the importer adds to those in the file, and overrides them."""

    suite: str = "default"
    environment: Mapping[str, Scalar] = field(default_factory=dict)
    subject: Mapping[str, Scalar] = field(default_factory=dict)
    configuration: str = ""


def session_of(path: Path) -> str:
    """Return the name of the session that a file stands for: programs write one file per session."""
    return path.stem
