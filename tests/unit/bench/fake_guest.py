"""A host whose guests answer to commands without being there."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from hugepage_qa.bench.backing import Backing
from hugepage_qa.bench.measured_guest import GuestProfile


@dataclass(frozen=True)
class FakeGuest:
    """Answers to a command with the first of ``answers`` whose key is in it, and else with nothing."""

    pid: int
    answers: Mapping[str, str]
    typed: list[str]
    huge: int = 0
    memory_seconds: float = 2.5
    boot_seconds: float = 9.0

    def run(self, command: str, seconds: float) -> str:  # noqa: ARG002
        self.typed.append(command)
        return next((answer for words, answer in self.answers.items() if words in command), "")


class FakeHost:
    """Starts such guests, and remembers which, and what was typed in each; the newest host is the one that counts."""

    pids: ClassVar[Mapping[str, int]] = {"bench": 1, "beside": 2}
    started: ClassVar[list[tuple[str, str]]] = []
    typed: ClassVar[dict[str, list[str]]] = {}

    version = "QEMU emulator version 7.2"
    facts: ClassVar[Mapping[str, str]] = {"guest.accelerator": "tcg"}

    def __init__(self, answers: Mapping[str, str]) -> None:
        self._answers = answers
        FakeHost.started = []
        FakeHost.typed = {}

    @contextmanager
    def running(
        self,
        backing: Backing,
        profile: GuestProfile,  # noqa: ARG002
        name: str = "bench",
        share: float = 0.9,  # noqa: ARG002
    ) -> Iterator[FakeGuest]:
        self.started.append((name, backing.name))
        yield FakeGuest(self.pids[name], self._answers, self.typed.setdefault(name, []))

    def close(self) -> None:
        pass
