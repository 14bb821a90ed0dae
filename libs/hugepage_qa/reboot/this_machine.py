"""The machine that we run on, as the chain of reboots needs it."""

import platform
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.facts import Facts, read_facts
from hugepage_qa.kernel.log import PATH as LOG_PATH
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.lab.image import read_running_config
from hugepage_qa.machine.boot_loader import BootLoader, find_boot_loader
from hugepage_qa.machine.durable import remove_durably, write_durably
from hugepage_qa.machine.journal import read_boot_id
from hugepage_qa.machine.protection import Protection, protected_machine
from hugepage_qa.machine.thp_settings import find_settings
from hugepage_qa.reboot.persisted import OWN_FILE, Persisted, own_text, read_persisted
from hugepage_qa.reboot.run_time import RunTimeReservation, reserve_at_run_time

# the journal has the whole boot; the ring buffer may have been emptied (the dmesg check of tmt does that) or overrun
_LOGS = (
    ("journalctl", "--dmesg", "--boot", "--output=short-monotonic", "--no-pager", "--quiet"),
    ("dmesg", "--raw"),
)
_BANNER = "Linux version "
_LOG_DEADLINE = 60.0

# services may set huge pages, too; a machine without systemd, or a degraded one, goes as it is
_STARTED = ("systemctl", "is-system-running", "--wait")
_START_DEADLINE = 300.0

_SYSTEMD = Path("/run/systemd/system")
_SYSCTL_MODE = 0o644


class ThisMachine:
    """The running machine; ``tmt_reboot`` is the program that asks tmt for a reboot."""

    def __init__(self, tmt_reboot: str) -> None:
        self._tmt_reboot = tmt_reboot

    @property
    def applies_sysctl(self) -> bool:
        return _SYSTEMD.is_dir()

    def read(self) -> tuple[Facts, str]:
        _output(_STARTED, _START_DEADLINE)
        tree = _TreeWithLog()
        return read_facts(tree, machine=platform.machine()), tree.log

    def kernel_config(self, release: str) -> Mapping[str, str] | None:
        return read_running_config(release)

    def boot_id(self) -> str:
        return read_boot_id()

    def boot_loader(self) -> BootLoader:
        return find_boot_loader()

    def persisted(self) -> Persisted | None:
        return read_persisted()

    def thp_settings(self, switch: str, value: str) -> Sequence[str]:
        return find_settings(switch, value)

    def persist(self, pages: int | None) -> None:
        try:
            if pages is None:
                remove_durably(OWN_FILE)
            else:
                write_durably(OWN_FILE, own_text(pages).encode(), mode=_SYSCTL_MODE)
        except OSError as error:
            raise InputError(f"{OWN_FILE}: cannot be written ({error.strerror}): expected to be root") from error

    def reserve_at_run_time(self, pages: int, size: int) -> RunTimeReservation:
        return reserve_at_run_time(pages, size)

    def protect(self, token: str) -> AbstractContextManager[Protection]:
        return protected_machine("hugepage-qa reboot-cases", token=token)

    def reboot(self) -> None:
        try:
            done = subprocess.run([self._tmt_reboot], stdin=subprocess.DEVNULL, check=False)
        except OSError as error:
            raise InputError(f"{self._tmt_reboot}: cannot be run ({error.strerror})") from error
        if done.returncode != 0:
            raise InputError(f"{self._tmt_reboot}: ended with exit code {done.returncode}: no reboot")


class _TreeWithLog(DirectoryTree):
    """The files below /, and the kernel log of this boot as a further one."""

    def __init__(self) -> None:
        super().__init__(Path("/"))
        self.log = _read_log()

    def read(self, path: str) -> str | None:
        return self.log if path == LOG_PATH else super().read(path)


def _read_log() -> str:
    for command in _LOGS:
        text = _output(command, _LOG_DEADLINE)
        if _BANNER in text:
            return text
    raise InputError(
        "kernel log: its beginning is neither in journalctl -k -b nor in dmesg: expected one of them, as root"
    )


def _output(command: tuple[str, ...], deadline: float) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
