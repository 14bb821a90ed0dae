"""What was not as saved, and how it stands after it was put back."""

from collections.abc import Iterable
from dataclasses import dataclass

#: stands for a file, a mount or a value that is not there
NOTHING = "nothing"


@dataclass(frozen=True)
class Repair:
    """One subject that was not as ``wanted``: its value ``before`` it was put back, and ``after``."""

    subject: str
    wanted: str
    before: str
    after: str

    @property
    def succeeded(self) -> bool:
        """Whether it is as wanted now."""
        return self.after == self.wanted

    def __str__(self) -> str:
        if self.succeeded and self.wanted == NOTHING:
            return f"{self.subject}: removed, was {self.before}"
        if self.succeeded:
            return f"{self.subject}: put back to {self.wanted}, was {self.before}"
        return f"{self.subject}: NOT put back: wanted {self.wanted}, found {self.after}"


def unrestored(repairs: Iterable[Repair]) -> tuple[Repair, ...]:
    """Return those of ``repairs`` that did not succeed."""
    return tuple(repair for repair in repairs if not repair.succeeded)
