"""What the cases need of the machine that they run on; ``this_machine`` is the real one."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from hugepage_qa.kernel.facts import Facts
from hugepage_qa.machine.boot_loader import BootLoader
from hugepage_qa.machine.protection import Protection
from hugepage_qa.reboot.persisted import Persisted
from hugepage_qa.reboot.run_time import RunTimeReservation


class MachineUnderTest(Protocol):
    """A machine that can be rebooted."""

    @property
    def applies_sysctl(self) -> bool:
        """Whether sysctl.d is applied at boot."""

    def read(self) -> tuple[Facts, str]:
        """Return what the machine shows, and its kernel log. Raises InputError."""

    def kernel_config(self, release: str) -> Mapping[str, str] | None:
        """Return the configuration of the running kernel."""

    def boot_id(self) -> str:
        """Return the id of the running boot."""

    def boot_loader(self) -> BootLoader:
        """Return the boot loader. Raises InputError where it is not known."""

    def persisted(self) -> Persisted | None:
        """Return vm.nr_hugepages as sysctl.d has it."""

    def thp_settings(self, switch: str, value: str) -> Sequence[str]:
        """Return the files of the system that set a switch of transparent huge pages to ``value``."""

    def persist(self, pages: int | None) -> None:
        """Set vm.nr_hugepages in our own file of sysctl.d, or remove that. Raises InputError."""

    def reserve_at_run_time(self, pages: int, size: int) -> RunTimeReservation:
        """Ask for pages on fragmented memory and put the pool back. Raises InputError."""

    def protect(self, token: str) -> AbstractContextManager[Protection]:
        """Save the machine and put it back after the body, unless that has asked for a reboot."""

    def reboot(self) -> None:
        """Have the machine rebooted and this test started again. Raises InputError."""
