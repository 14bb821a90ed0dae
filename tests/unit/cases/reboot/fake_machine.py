"""A machine that reboots in an instant: it shows what real kernels showed with the words that it boots with."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from tests.unit.cases.reboot.conftest import all_cases, facts_of, load, nothing_set, with_pool

from hugepage_qa.cases.reboot.reboot_chain import Chain
from hugepage_qa.cases.reboot.reboot_judge import booted_words
from hugepage_qa.cases.reboot.reboot_machine import MachineUnderTest
from hugepage_qa.cases.reboot.run_time_settings import OWN_FILE, Persisted, RunTimeReservation
from hugepage_qa.cases.result import Result
from hugepage_qa.kernel.facts import Facts, read_facts
from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.machine.boot_loader.loader import ArgumentsLost, BootLoader, without_last
from hugepage_qa.machine.kept_file import Repair
from hugepage_qa.machine.protection import Protection

BASE = booted_words(facts_of("plain"))


@dataclass
class FakeLoader:
    """The words of the entry that boots next; ``loses`` and ``leaves`` are words that its tool has trouble with."""

    words: tuple[str, ...] = BASE
    loses: str = ""
    leaves: str = ""
    name: str = "grubby"
    configuration: tuple[Path, ...] = (Path("/etc/default/grub"),)

    def arguments(self) -> tuple[str, ...]:
        return self.words

    def add(self, arguments: Sequence[str]) -> None:
        if self.loses in arguments:
            raise ArgumentsLost(self.name, "lost", [self.loses], self.words)
        self.words = (*self.words, *arguments)

    def remove(self, arguments: Sequence[str]) -> None:
        if self.leaves in arguments:
            raise ArgumentsLost(self.name, "left", [self.leaves], self.words)
        self.words = without_last(self.words, arguments)


@dataclass
class FakeJournal:
    """What was kept, and whether a reboot is expected."""

    kept: list[str] = field(default_factory=list)
    token: str | None = None

    def keep_file(self, path: Path) -> None:
        self.kept.append(str(path))

    def keep_arguments(self, loader: str, arguments: Sequence[str]) -> None:
        self.kept.append(f"{loader}: {len(arguments)}")

    def expect_reboot(self, token: str) -> None:
        self.token = token


@dataclass
class FakeProtection:
    """What the chain reads of a protection."""

    journal: FakeJournal
    resumed: bool
    unrestored: tuple[Repair, ...] = ()


@dataclass
class FakeMachine(MachineUnderTest):
    """The machine under test; the fields are what can be wrong with it."""

    loader: FakeLoader = field(default_factory=FakeLoader)
    boots: int = 0
    applies_sysctl: bool = True
    #: files of the machine whose text is another one: case -> path -> text
    falsified: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: this reboot does not come about
    stuck: int | None = None
    #: the boot loader boots another entry than the one that got the words
    boots_another: bool = False
    #: in this boot the machine was put back by somebody else before
    taken_over: int | None = None
    other_sysctl: Persisted | None = None
    comes_at_run_time: int = 300
    unrestored: tuple[Repair, ...] = ()
    pages: int | None = None
    journals: list[FakeJournal] = field(default_factory=list)
    _booted: tuple[str, ...] = BASE
    _id: int = 0

    def read(self) -> tuple[Facts, str]:
        persisted = self.persisted()
        tree = with_pool(load(self.case), persisted.pages) if persisted else load(self.case)
        tree = CapturedTree({**tree.files, **self.falsified.get(self.case, {})})
        return read_facts(tree), f"Linux version of boot {self.boots}\n"

    @property
    def case(self) -> str:
        """The case that the machine was booted for, by its words; "plain" for none."""
        words = self._booted[len(BASE) :]
        return next((name for name, case in all_cases().items() if words and case.words == words), "plain")

    def kernel_config(self, _release: str) -> Mapping[str, str] | None:
        return None

    def boot_id(self) -> str:
        return f"{self._id:036x}"

    def boot_loader(self) -> BootLoader:
        return cast(BootLoader, self.loader)

    def persisted(self) -> Persisted | None:
        if self.other_sysctl or self.pages is None:
            return self.other_sysctl
        return Persisted(self.pages, OWN_FILE)

    def thp_settings(self, switch: str, value: str) -> Sequence[str]:
        return nothing_set(switch, value)

    def persist(self, pages: int | None) -> None:
        self.pages = pages

    def reserve_at_run_time(self, pages: int, _size: int) -> RunTimeReservation:
        return RunTimeReservation(pages, self.comes_at_run_time, 4096, "--- /proc/buddyinfo, fragmented\nNode 0")

    def protect(self, _token: str) -> AbstractContextManager[Protection]:
        return cast(AbstractContextManager[Protection], self._protect())

    @contextmanager
    def _protect(self) -> Iterator[FakeProtection]:
        resumed = bool(self.journals and self.journals[-1].token) and self.boots != self.taken_over
        protection = FakeProtection(FakeJournal(), resumed)
        self.journals.append(protection.journal)
        try:
            yield protection
        except BaseException:
            protection.journal.token = None
            raise
        finally:
            if protection.journal.token is None:
                self.loader.words, self.pages, protection.unrestored = BASE, None, self.unrestored

    def reboot(self) -> None:
        self.boots += 1
        if self.boots != self.stuck:
            self._id += 1
            self._booted = BASE if self.boots_another else self.loader.words


def run_chain(machine: FakeMachine, data: Path, *names: str) -> dict[str, Result]:
    """Start the test again and again, as tmt does, until no reboot is asked for; return the results by short name."""
    results: list[Result] = []

    def report(found: Sequence[Result]) -> None:
        results[:] = found

    for boot in range(30):
        if not Chain(machine, data, report, lambda _: None).start(boot, names):
            break
    return {result.name.rpartition("/")[2]: result for result in results}
