"""tmt's ``provision: how: lab``: the guest is a system machine of the lab.

Loaded by tmt through its entry point alone; nothing else of the suite needs tmt.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tmt.guest
import tmt.log
import tmt.steps.provision
import tmt.utils
from tmt.container import field
from tmt.guest import RebootMode
from tmt.utils import Command, ShellScript
from tmt.utils.wait import Waiting

from hugepage_qa.cache import cache_directory
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.system.machine_registry import Registry
from hugepage_qa.qemu.system.secure_shell import ADDRESS
from hugepage_qa.qemu.system.system_launch import SystemOptions, bring_up, parse_nodes
from hugepage_qa.qemu.system.system_machine import SystemMachine


def _normalize_nodes(_key: str, value: Any, _logger: tmt.log.Logger) -> str | None:
    if value is None:
        return None
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@dataclass
class LabGuestData(tmt.guest.GuestSshData):
    """Keys of the plan, and the name of the machine that was made of them."""

    _OPTIONLESS_FIELDS = (*tmt.guest.GuestSshData._OPTIONLESS_FIELDS, "machine")

    memory: str | None = field(
        default=None, option="--memory", metavar="SIZE", help="Memory of all NUMA nodes together, 4G by default."
    )
    nodes: str | None = field(
        default=None,
        option="--nodes",
        metavar="NUMBER|SIZES",
        help="Number of NUMA nodes, or the memory of each, such as 3G,1G.",
        normalize=_normalize_nodes,
    )
    cpus: int = field(
        default=2,
        option="--cpus",
        metavar="NUMBER",
        help="CPUs, shared by the nodes.",
        normalize=tmt.utils.normalize_int,
    )
    kernel: str | None = field(
        default=None,
        option="--kernel",
        metavar="PATH",
        help="Kernel image, booted directly, or kernel package, installed; the distribution's kernel by default.",
    )
    append: str = field(default="", option="--append", metavar="WORDS", help="Further kernel arguments.")
    arch: str = field(
        default=SystemOptions.architecture, option="--arch", metavar="ARCH", help="Architecture, the host's by default."
    )
    machine: str | None = None


@dataclass
class ProvisionLabData(LabGuestData, tmt.steps.provision.ProvisionStepData):
    """Keys of the plan."""


@contextmanager
def _for_tmt() -> Iterator[None]:
    """Turn our errors into those that tmt shows as one line."""
    try:
        yield
    except InputError as error:
        raise tmt.utils.ProvisionError(str(error)) from error


@dataclass
class _Console(tmt.guest.GuestLog):
    """The serial log, which also tells what happened while ssh did not answer."""

    source: Path = Path()

    def update(self, *, logger: tmt.log.Logger) -> None:
        with self.staging_file(self.filepath, logger) as staging:
            shutil.copyfile(self.source, staging)


class GuestLab(tmt.guest.GuestSsh):
    """A system machine of the lab, of this run alone: its disk goes away with it."""

    _data_class = LabGuestData

    memory: str | None
    nodes: str | None
    cpus: int
    kernel: str | None
    append: str
    arch: str
    machine: str | None

    @property
    def _machine(self) -> SystemMachine:
        return Registry(cache_directory()).find(self.machine)

    @property
    def is_ssh_multiplexing_enabled(self) -> bool:
        """Before 1.80 tmt looks only every 30 s whether its shared connection is up, once in each step and reboot."""
        return hasattr(tmt.guest, "SSH_MASTER_START_WAIT_TICK") and super().is_ssh_multiplexing_enabled

    def start(self) -> None:
        """Bring the machine up and wait for its ssh."""
        if self.is_dry_run:
            return
        with _for_tmt():
            options = SystemOptions(
                parse_nodes(self.memory, self.nodes),
                self.cpus,
                Path(self.kernel) if self.kernel else None,
                self.append,
                self.arch,
            )
            machine = bring_up(cache_directory(), options, report=lambda line: self.info("lab", line))
            self.machine = machine.record.name
            self.primary_address = self.topology_address = ADDRESS
            self.port = machine.record.port
            self.key = tmt.utils.normalize_path_list("key", str(machine.record.key), self._logger)
        self._collect_console(machine)
        self.verbose("machine", f"{machine.record.name}, {machine.record.kernel}")
        self.assert_reachable()

    def wake(self) -> None:
        """Find the machine of an earlier tmt command again."""
        if self.machine is None:
            return
        with _for_tmt():
            self._collect_console(self._machine)

    def _collect_console(self, machine: SystemMachine) -> None:
        self.guest_logs.append(_Console("console.txt", self, source=machine.serial_log))
        self.setup_logs(logger=self._logger)

    def reboot(
        self,
        mode: RebootMode = RebootMode.SOFT,
        command: Command | ShellScript | None = None,
        waiting: Waiting | None = None,
    ) -> bool:
        """Reboot: soft by the system itself, hard by the reset button, or the power button if QEMU has ended."""
        if mode != RebootMode.HARD:
            return super().reboot(mode=mode, command=command, waiting=waiting)
        return self.perform_reboot(mode, self._press_button, waiting or tmt.guest.default_reboot_waiting())

    def perform_reboot(
        self,
        mode: RebootMode,
        action: Callable[[], Any],
        wait: Waiting,
        post_trigger_action: Callable[[], None] | None = None,
        post_wait: Callable[[], None] | None = None,
    ) -> bool:
        """Reboot as tmt does, but look ourselves when the machine is up again.

        QEMU's user network takes a connection to a machine that is down, and tmt's ssh waits a minute for an answer.
        """
        machine = self._machine
        before = machine.shell.boot_id()

        def look_until_up() -> None:
            if post_trigger_action is not None:
                post_trigger_action()
            try:
                machine.wait(wait.deadline.time_left.total_seconds(), other_than=before)
            except InputError as error:
                self.warn(str(error))

        # systemd's soft reboot keeps kernel and boot id
        after_trigger = post_trigger_action if mode == RebootMode.SYSTEMD_SOFT else look_until_up
        return super().perform_reboot(mode, action, wait, post_trigger_action=after_trigger, post_wait=post_wait)

    def _press_button(self) -> None:
        with _for_tmt():
            machine = self._machine
            if machine.running:
                machine.press_reset()
            else:
                machine.start()

    def stop(self) -> None:
        """Take the power away: nothing on the disk is needed any more."""
        super().stop()
        if self.machine is not None:
            with _for_tmt():
                self._machine.power_cut()

    def remove(self) -> None:
        """Remove the machine's disk and all that is left of it."""
        if self.machine is not None:
            with _for_tmt():
                Registry(cache_directory()).drop(self.machine)
            self.machine = None


@tmt.steps.provides_method("lab")
class ProvisionLab(tmt.steps.provision.ProvisionPlugin[ProvisionLabData]):
    """
    Provision a throwaway system with NUMA nodes and huge pages in QEMU.

    The root is built from the distribution's packages, boots through a real
    boot loader, and comes from a cache after the first time.

    .. code-block:: yaml

        provision:
            how: lab
            memory: 4G
            nodes: 2
            append: hugepagesz=1G hugepages=1
    """

    _data_class = ProvisionLabData
    _guest_class = GuestLab
    _thread_safe = True

    def go(self, *, logger: tmt.log.Logger | None = None) -> None:
        """Bring the guest up."""
        super().go(logger=logger)
        data = LabGuestData.from_plugin(self)
        data.show(verbose=self.verbosity_level, logger=self._logger)
        if data.hardware and data.hardware.constraint:
            self.warn("The 'lab' provision plugin takes memory, nodes and cpus instead of hardware requirements.")
        guest = GuestLab(logger=self._logger, data=data, name=self.name, parent=self.step)
        self._guest = guest
        guest.start()
        guest.setup()
