"""The programs and files of the host that system machines need; what is missing is said at once, in one line."""

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass

from hugepage_qa.errors import InputError
from hugepage_qa.lab.system.platforms import Firmware, Platform


@dataclass(frozen=True)
class Tool:
    """A program and the packages that hold it."""

    program: str
    debian: str
    rpm: str


MMDEBSTRAP = Tool("mmdebstrap", "mmdebstrap", "mmdebstrap")
SFDISK = Tool("sfdisk", "fdisk", "util-linux")
MKE2FS = Tool("mke2fs", "e2fsprogs", "e2fsprogs")
TAR = Tool("tar", "tar", "tar")
QEMU_IMG = Tool("qemu-img", "qemu-utils", "qemu-img")
SSH = Tool("ssh", "openssh-client", "openssh-clients")
SSH_KEYGEN = Tool("ssh-keygen", "openssh-client", "openssh")

TO_BUILD = (MMDEBSTRAP, SFDISK, MKE2FS, TAR, QEMU_IMG, SSH_KEYGEN)
TO_START = (QEMU_IMG, SSH)


def find_program(tool: Tool) -> str | None:
    """Return the path of ``tool``, also where only root has its directory in PATH; None when it is not installed."""
    return shutil.which(tool.program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def program(tool: Tool) -> str:
    """Return the path of ``tool``; InputError when it is not installed."""
    path = find_program(tool)
    if path is None:
        raise InputError(_missing([tool]))
    return path


def find_firmware(platform: Platform) -> Firmware | None:
    """Return the firmware that is installed for ``platform``, None when there is none."""
    return next((one for one in platform.firmware if one.code.is_file() and one.variables.is_file()), None)


def require(platform: Platform, tools: Iterable[Tool]) -> None:
    """Raise InputError naming all that is missing of ``tools``, the emulator and the firmware of ``platform``."""
    board = platform.board
    wanted = [Tool(board.qemu, board.debian_qemu, board.rpm_qemu), *tools]
    missing = [tool for tool in wanted if find_program(tool) is None]
    if find_firmware(platform) is None:
        missing.append(Tool("UEFI firmware", platform.debian_firmware, platform.rpm_firmware))
    if missing:
        raise InputError(_missing(missing))


def _missing(tools: list[Tool]) -> str:
    names = ", ".join(tool.program for tool in tools)
    debian = " ".join(dict.fromkeys(tool.debian for tool in tools))
    rpm = " ".join(dict.fromkeys(tool.rpm for tool in tools))
    return f"not installed: {names}: apt-get install {debian}, or dnf install {rpm}"
