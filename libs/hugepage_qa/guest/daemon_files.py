"""What of libvirt is installed, and the files that a daemon of our own is started with."""

import os
import pwd
import shlex
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from hugepage_qa.guest.driver import NotHere
from hugepage_qa.machine.durable import write_durably

#: the one with the drivers of QEMU alone where there is one (since libvirt 5.6)
_PROGRAMS = ("virtqemud", "libvirtd")
_PLACES = ("/usr/sbin", "/usr/bin", "/usr/local/sbin")
_DRIVER = "libvirt/connection-driver/libvirt_driver_qemu.so"

# of Debian: made by a package that starts the daemon of the machine; without it QEMU's driver does not come up
_USER = "libvirt-qemu"

#: over it lies what our own daemon reads; on Debian the packages of the daemon alone do not make it
CONFIGURATION = Path("/etc/libvirt")

_EXECUTABLE = 0o755


def find_daemon() -> tuple[Path, Path]:
    """Return the daemon that is installed, and QEMU's driver for it. Raises NotHere."""
    for name in _PROGRAMS:
        for place in _PLACES:
            program = Path(place, name)
            if os.access(program, os.X_OK):
                if not CONFIGURATION.is_dir():
                    raise NotHere(f"libvirt is installed without {CONFIGURATION} (Debian: package libvirt-clients)")
                return program, _find_driver()
    raise NotHere("no libvirt daemon is installed: neither virtqemud nor libvirtd is in /usr/sbin")


def _find_driver() -> Path:
    for place in ("/usr/lib64", "/usr/lib", *map(str, Path("/usr/lib").glob("*-linux-gnu*"))):
        if (driver := Path(place, _DRIVER)).exists():
            return driver
    raise NotHere(f"libvirt is installed without its driver for QEMU: no {Path(_DRIVER).name}")


def driver_directory(directory: Path, driver: Path) -> Path:
    """Return a directory below ``directory`` that has ``driver`` and no other."""
    drivers = directory / "drivers"
    drivers.mkdir()
    (drivers / driver.name).symlink_to(driver)
    return drivers


def write_emulator(directory: Path, emulator: str, environment: Mapping[str, str]) -> Path:
    """Return a program that is ``emulator`` with ``environment``, which libvirt takes from all that it starts."""
    program = directory / "bin" / Path(emulator).name
    program.parent.mkdir()
    words = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
    write_durably(program, f'#!/bin/sh\n{words}exec {shlex.quote(emulator)} "$@"\n'.encode(), mode=_EXECUTABLE)
    return program


def write_configuration(directory: Path, mounts: Iterable[str]) -> dict[str, str]:
    """Write the daemon's files and return target -> source of those that replace files of the machine."""
    points = ", ".join(f'"{point}"' for point in mounts)
    write_durably(
        directory / "qemu.conf",
        f"""hugetlbfs_mount = [{points}]
security_driver = "none"
user = "root"
group = "root"
dynamic_ownership = 0
namespaces = []
stdio_handler = "file"
""".encode(),
    )
    write_durably(
        directory / "daemon.conf",
        f"""unix_sock_dir = "{directory}"
auth_unix_ro = "none"
auth_unix_rw = "none"
log_outputs = "3:stderr"
""".encode(),
    )
    return {"/etc/libvirt/qemu.conf": str(directory / "qemu.conf"), **_accounts(directory)}


def _accounts(directory: Path) -> dict[str, str]:
    with suppress(KeyError):
        pwd.getpwnam(_USER)
        return {}
    for name, line in (("passwd", f"{_USER}:x:64055:64055::/:/usr/sbin/nologin"), ("group", f"{_USER}:x:64055:")):
        shutil.copyfile(Path("/etc", name), directory / name)
        with (directory / name).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    return {f"/etc/{name}": str(directory / name) for name in ("passwd", "group")}
