"""What carries out the operations of a machine under test, and what such a machine is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hugepage_qa.process.actor import Link


@dataclass(frozen=True)
class MachineKind:
    """What a machine is as long as it runs: ``uname -m``, and the bytes of a base page.

    It need not be that of the machine on which the suite runs. One that ``has_others`` runs what is not the suite's;
    of one that ``is_accounted`` nobody else can have memory, so that all of it is looked at.
    """

    architecture: str
    base_page: int
    has_others: bool = False
    is_accounted: bool = False


class Backend(Protocol):
    """Carries out operations: the machine itself, a recorder of it, or a record of it."""

    @property
    def kind(self) -> MachineKind:
        """What the machine is."""

    def perform(self, operation: str, arguments: Sequence[Any]) -> Any:
        """Carry out one operation; arguments and result are what JSON can hold. Raises OSError as the kernel says."""


class BackendLink:
    """An actor behind a backend, which knows it by a number."""

    def __init__(self, backend: Backend, number: int, pid: int) -> None:
        self._backend = backend
        self._number = number
        self._pid = pid

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._pid

    def request(self, text: str) -> tuple[str, Link | None]:
        """Ask it, and return its answer, and the link to the child that it has forked for that."""
        answer, child = self._backend.perform("request", [self._number, text])
        return answer, BackendLink(self._backend, *child) if child else None

    def exit(self) -> None:
        """Have it end by itself."""
        self._backend.perform("exit", [self._number])

    def end(self) -> None:
        """Kill it and those it forked, and wait until they are gone."""
        self._backend.perform("end", [self._number])
