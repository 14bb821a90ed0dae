"""What ``hugepage-qa run`` asks of the Avocado tests that it starts: one variable of their environment."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from hugepage_qa.cases.selection import EVERYTHING, Selection
from hugepage_qa.schema import build

_VARIABLE = "HUGEPAGE_QA_ASKED"


@dataclass(frozen=True)
class Asked:
    """Which cases to run, of which files where one test runs several, and where results are told as they come."""

    selection: Selection = EVERYTHING
    exit_first: bool = False
    files: tuple[str, ...] = ()
    told_to: Path | None = None

    def to_environment(self) -> dict[str, str]:
        """Return the variable that tells a test."""
        return {_VARIABLE: json.dumps(asdict(self), default=str)}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Asked":
        """Return what a test was told; one that Avocado was asked for by hand runs all that it has."""
        if _VARIABLE not in environment:
            return cls()
        return build(cls, json.loads(environment[_VARIABLE]))
