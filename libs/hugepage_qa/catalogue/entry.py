"""A case, and the test that runs it, as a reader wants to know them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One case: its name, what it asserts, the source of that rule, and where it runs."""

    name: str
    statement: str
    source: str
    where: str = ""


def anchor(case: str) -> str:
    """Return the anchor of ``case`` in the page of its area."""
    return case.replace("/", "-")


@dataclass(frozen=True)
class CataloguedTest:
    """A test of fmf. Without ``entries`` it is one case itself, and its description says what it asserts."""

    name: str
    summary: str
    description: str
    duration: str
    entries: tuple[Entry, ...]

    @property
    def area(self) -> str:
        """The folder below tests/ that it lies in."""
        return self.name.split("/")[2]
