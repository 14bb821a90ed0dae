"""What a libvirt daemon of our own reads in place of the machine's files in /etc: its configuration, and accounts."""

import pwd
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from hugepage_qa.durable import write_durably

# of Debian: made by a package that starts the daemon of the machine; without it QEMU's driver does not come up
_USER = "libvirt-qemu"

#: a QEMU that is said to have this is asked at each start for the 400 properties of its processor one by one, else for
#: all of them at once (qemuMonitorJSONGetGuestCPU, libvirt 5.8): 0.1 s instead of 0.4 s
_EACH_PROPERTY = "cpu-unavailable-features"


@dataclass(frozen=True)
class QemuSettings:
    """What the daemon is told of the QEMU that it starts: hugetlbfs and user.

    ``mounts`` are the hugetlbfs that it may use. With ``looks`` it is not told of them, but finds them, and no others:
    systemd mounts one at /dev/hugepages, and libvirt makes directories in each that it finds, and changes its mode.
    With a ``user`` QEMU is a process of that one, and files that it needs become his while it runs (dynamic_ownership).
    """

    mounts: Sequence[str]
    looks: bool = False
    user: int = 0


def write_configuration(directory: Path, settings: QemuSettings) -> dict[str, str]:
    """Write the daemon's files and return target -> source of those that replace files of the machine.

    Each daemon has a UUID as of a host of its own: else libvirt would migrate nothing from one to another.
    """
    points = ", ".join(f'"{point}"' for point in settings.mounts)
    write_durably(
        directory / "qemu.conf",
        f"""{"" if settings.looks else f"hugetlbfs_mount = [{points}]"}
security_driver = "none"
user = "+{settings.user}"
group = "+{settings.user}"
dynamic_ownership = {int(settings.user != 0)}
namespaces = []
stdio_handler = "file"
capability_filters = ["{_EACH_PROPERTY}"]
""",
    )
    write_durably(
        directory / "daemon.conf",
        f"""host_uuid = "{uuid4()}"
unix_sock_dir = "{directory}"
auth_unix_ro = "none"
auth_unix_rw = "none"
log_outputs = "3:stderr"
""",
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
