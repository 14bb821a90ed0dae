"""Print the programs that this run of make qa needs: program or file, Debian package, RPM package, one word a line.

With --all those that any plan needs.
"""

import platform
import sys
import sysconfig
from collections.abc import Iterator

from hugepage_qa.bench import gate_settings
from hugepage_qa.bench.workloads import choose_workloads
from hugepage_qa.cases.result import ExitCode
from hugepage_qa.commands.qa_request import GATES, KERNEL, QaRequest
from hugepage_qa.errors import InputError
from hugepage_qa.process.static_program import NAMES
from hugepage_qa.qemu.boards import BOARDS, find_board
from hugepage_qa.qemu.guest.guest_site import NotHere
from hugepage_qa.qemu.guest.libvirt_daemon import CONFIGURATION, find_daemon
from hugepage_qa.qemu.installed_emulator import installed_emulator, rpm_package
from hugepage_qa.qemu.system.build_tools import (
    TO_BUILD,
    TO_START,
    find_firmware,
    find_program,
)
from hugepage_qa.qemu.system.platforms import PLATFORMS, Platform, find_platform
from hugepage_qa.qemu.system.system_launch import SystemOptions

#: builds the actor; Debian's gcc alone comes without the headers of the C library
COMPILER = ("cc", "build-essential", "gcc")
#: builds libvirt-python
BINDING = (
    ("pkg-config", "pkg-config", "pkgconf-pkg-config"),
    ("/usr/include/libvirt/libvirt.h", "libvirt-dev", "libvirt-devel"),
    (f"{sysconfig.get_path('include')}/Python.h", "python3-dev", "python3-devel"),
)
#: for make lint and make packages
PACKAGING = (("rpmlint", "rpmlint", "rpmlint"), ("rpmbuild", "rpm", "rpm-build"))
#: where the daemon is looked for, and QEMU's driver for it; Fedora's package of the driver has a daemon of its own
LIBVIRT = (
    ("/usr/sbin/libvirtd", "libvirt-daemon", "libvirt-daemon-driver-qemu"),
    ("libvirt_driver_qemu.so", "libvirt-daemon-driver-qemu", "libvirt-daemon-driver-qemu"),
    (str(CONFIGURATION), "libvirt-clients", "libvirt-daemon-driver-qemu"),
)
#: without which avocado-vt does not bootstrap, whether a test uses them or not (virttest.bootstrap)
AVOCADO_VT = (
    ("xz", "xz-utils", "xz"),
    ("tcpdump", "tcpdump", "tcpdump"),
    ("nc", "netcat-openbsd", "nmap-ncat"),
    ("ip", "iproute2", "iproute"),
    ("arping", "iputils-arping", "iputils"),
    ("diff", "diffutils", "diffutils"),
    ("gcc", "gcc", "gcc"),
)


def main() -> int:
    """Return 3 when make's variables ask for something that there is not."""
    try:
        wanted = _of_all_plans() if "--all" in sys.argv[1:] else _of_request(QaRequest.from_environment())
        programs = dict.fromkeys(wanted)
    except InputError as error:
        print(f"make qa: {error}", file=sys.stderr)
        return ExitCode.BROKEN
    for program in programs:
        print(*program, sep="\n")
    return ExitCode.GOOD


def _of_all_plans() -> Iterator[tuple[str, str, str]]:
    yield from _emulators(tuple(BOARDS))
    for system in PLATFORMS.values():
        yield from _of_system_machines(system)
    yield COMPILER
    yield from PACKAGING
    yield from _of_agents(tuple(BOARDS))
    yield from _of_guests()
    yield from _of_workloads("")


def _of_request(request: QaRequest) -> Iterator[tuple[str, str, str]]:
    yield from _emulators(request.architectures)
    if request.in_lab:
        yield from _of_system_machines(find_platform(SystemOptions.architecture))
    elif not request.architectures:
        yield COMPILER
    elif request.plan == KERNEL:
        yield from _of_agents(request.architectures)
    if request.has_guests and not request.in_lab:
        yield from _of_guests()
    if request.needs_vt and not request.in_lab:
        yield from AVOCADO_VT
    if request.plan in GATES:
        yield from _of_workloads(request.test_environment.get(gate_settings.WORKLOADS, ""))


def _of_agents(architectures: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """Yield what builds the agents of throwaway machines, and their disks; Fedora has no C library to cross to."""
    yield COMPILER
    for program, package in (("mke2fs", "e2fsprogs"), ("mkfs.xfs", "xfsprogs"), ("mkfs.btrfs", "btrfs-progs")):
        yield f"/usr/sbin/{program}", package, package
    for architecture in architectures:
        if architecture != platform.machine():
            gnu, _zig = NAMES[architecture]
            compiler = f"gcc-{gnu}"
            yield f"{gnu}-gcc", compiler, compiler
            library = f"libc6-dev-{find_board(architecture).debian_architecture}-cross"
            yield f"/usr/{gnu}/include/stdio.h", library, compiler


def _of_guests() -> Iterator[tuple[str, str, str]]:
    if platform.machine() in BOARDS:
        yield from _emulators((platform.machine(),))
    try:
        find_daemon()
    except NotHere:
        yield from LIBVIRT
    yield from BINDING


def _of_workloads(names: str) -> Iterator[tuple[str, str, str]]:
    for workload in choose_workloads(names.split()):
        for program in workload.programs:
            yield program.installed(), program.debian, program.rpm


def _emulators(architectures: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    for board in (find_board(architecture) for architecture in architectures):
        yield installed_emulator(board) or board.qemu, board.debian_qemu, rpm_package(board)


def _of_system_machines(system: Platform) -> Iterator[tuple[str, str, str]]:
    yield from _emulators((system.board.architecture,))
    for tool in dict.fromkeys((*TO_BUILD, *TO_START)):
        # a user's PATH may lack the directories of some that are there
        if find_program(tool) is None:
            yield tool.program, tool.debian, tool.rpm
    if find_firmware(system) is None:
        yield str(system.firmware[0].code), system.debian_firmware, system.rpm_firmware


if __name__ == "__main__":
    sys.exit(main())
