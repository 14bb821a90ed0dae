"""The machine that is rebooted: what the cases read of it and have done to it.

It tells which files of the system set switches of transparent huge pages at boot. sysctl.d is not among them: none of
these switches lies below /proc/sys.
"""

import platform
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from hugepage_qa.cases.reboot.run_time_settings import (
    OWN_FILE,
    Persisted,
    RunTimeReservation,
    own_text,
    read_persisted,
    reserve_at_run_time,
)
from hugepage_qa.durable import remove_durably, write_durably
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.facts import Facts, read_facts
from hugepage_qa.kernel.log import PATH as LOG_PATH
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine.boot_loader.find_loader import find_boot_loader
from hugepage_qa.machine.boot_loader.loader import BootLoader
from hugepage_qa.machine.journal import read_boot_id
from hugepage_qa.machine.protection import Protection, protected_machine
from hugepage_qa.process.child import run_to_end
from hugepage_qa.qemu.kernel_image import read_running_config
from hugepage_qa.sizes import MIB

_TUNED = "etc/tuned/active_profile"
_TUNED_PROFILES = ("etc/tuned", "etc/tuned/profiles", "usr/lib/tuned", "usr/lib/tuned/profiles")
_INCLUDE = re.compile(r"^\s*include\s*=\s*(?P<names>.+)$", re.MULTILINE)
#: tmpfiles.d(5), systemd.unit(5), sysfsutils, udev(7), and the script of old
_PLACES = (
    *(f"{place}/tmpfiles.d/*.conf" for place in ("etc", "run", "usr/local/lib", "usr/lib")),  # noqa: S108 - of settings
    *(f"{place}/systemd/system/**/*.{kind}" for place in ("etc", "run", "usr/lib") for kind in ("service", "conf")),
    "etc/sysfs.conf",
    "etc/sysfs.d/*.conf",
    "etc/udev/rules.d/*.rules",
    "usr/lib/udev/rules.d/*.rules",
    "etc/rc.local",
    "etc/rc.d/rc.local",
)
_LONGEST = MIB


def find_settings(switch: str, value: str, root: Path = Path("/")) -> list[str]:
    """Return the files below ``root`` with a line that sets ``switch`` to ``value``.

    ``switch`` is a file below the transparent_hugepage directory, such as ``khugepaged/defrag``. Read are the files
    that systemd, udev and sysfsutils may use, used or not, and the active profile of tuned with those it includes.
    """
    # tuned has names of its own for two of them
    tuned = {"enabled": r"|transparent_hugepages?\s*=", "defrag": r"|transparent_hugepage\.defrag\s*="}
    names = re.compile(rf"transparent_hugepage/{re.escape(switch)}\b{tuned.get(switch, '')}")
    wanted = re.compile(rf"(?<![\w+]){re.escape(value)}(?![\w+])")
    return [
        f"/{file.relative_to(root)}"
        for file in _files(root)
        if any(names.search(line) and wanted.search(line) for line in _lines(file))
    ]


def _files(root: Path) -> Iterator[Path]:
    for place in _PLACES:
        yield from sorted(root.glob(place))
    yield from _tuned_files(root)


def _tuned_files(root: Path) -> Iterator[Path]:
    waiting, seen = " ".join(_lines(root / _TUNED)).split(), set[str]()
    while waiting:
        name = waiting.pop(0)
        if name in seen or "/" in name:
            continue
        seen.add(name)
        for place in _TUNED_PROFILES:
            file = root / place / name / "tuned.conf"
            for include in _INCLUDE.finditer("\n".join(_lines(file))):
                waiting += re.split(r"[\s,]+", include["names"].strip())
            yield file


def _lines(file: Path) -> list[str]:
    """Return the lines of a file but for comments; none where it cannot be read or is no settings file at all."""
    try:
        if not file.is_file() or file.stat().st_size > _LONGEST:
            return []
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if not line.lstrip().startswith(("#", ";"))]


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


class MachineUnderTest:
    """The running machine, which can be rebooted; ``tmt_reboot`` is the program that asks tmt for that."""

    def __init__(self, tmt_reboot: str) -> None:
        self._tmt_reboot = tmt_reboot

    @property
    def applies_sysctl(self) -> bool:
        """Whether sysctl.d is applied at boot."""
        return _SYSTEMD.is_dir()

    def read(self) -> tuple[Facts, str]:
        """Return what the machine shows, and its kernel log. Raises InputError."""
        _output(_STARTED, _START_DEADLINE)
        tree = _TreeWithLog()
        return read_facts(tree, machine=platform.machine()), tree.log

    def kernel_config(self, release: str) -> Mapping[str, str] | None:
        """Return the configuration of the running kernel."""
        return read_running_config(release)

    def boot_id(self) -> str:
        """Return the random id of this boot (random(4))."""
        return read_boot_id()

    def boot_loader(self) -> BootLoader:
        """Return the boot loader. Raises InputError where it is not known."""
        return find_boot_loader()

    def persisted(self) -> Persisted | None:
        """Return vm.nr_hugepages as sysctl.d has it."""
        return read_persisted()

    def thp_settings(self, switch: str, value: str) -> Sequence[str]:
        """Return the files of the system that set a switch of transparent huge pages to ``value``."""
        return find_settings(switch, value)

    def persist(self, pages: int | None) -> None:
        """Set vm.nr_hugepages in our own file of sysctl.d, or remove that. Raises InputError."""
        try:
            if pages is None:
                remove_durably(OWN_FILE)
            else:
                write_durably(OWN_FILE, own_text(pages))
        except OSError as error:
            raise InputError(f"{OWN_FILE}: cannot be written ({error.strerror}): expected to be root") from error

    def reserve_at_run_time(self, pages: int, size: int) -> RunTimeReservation:
        """Ask for pages on fragmented memory and put the pool back. Raises InputError."""
        return reserve_at_run_time(pages, size)

    def protect(self, token: str) -> AbstractContextManager[Protection]:
        """Save the machine and put it back after the body, unless that has asked for a reboot."""
        return protected_machine("hugepage-qa reboot-cases", token=token)

    def reboot(self) -> None:
        """Have the machine rebooted and this test started again. Raises InputError."""
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
    with suppress(OSError):
        return run_to_end(command, seconds=deadline).stdout
    return ""
