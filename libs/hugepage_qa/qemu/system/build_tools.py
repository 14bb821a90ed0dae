"""The programs, the rights and the place in the cache that the roots of system machines are built with.

A missing program is told at once, in one line. Files that belong to root are made by root itself or in a user namespace
with subordinate ids, that of ``mmdebstrap --unshare-helper`` (subuid(5)). A directory in the cache is named after what
went into it, and appears whole or not at all.
"""

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.process.child import find_installed
from hugepage_qa.qemu.installed_emulator import installed_emulator, rpm_package
from hugepage_qa.qemu.system.platforms import Firmware, Platform


@dataclass(frozen=True)
class Tool:
    """A program and the packages that hold it."""

    program: str
    debian: str
    rpm: str


MMDEBSTRAP = Tool("mmdebstrap", "mmdebstrap", "mmdebstrap")
UNSHARE = Tool("unshare", "util-linux", "util-linux")
SFDISK = Tool("sfdisk", "fdisk", "util-linux")
MKE2FS = Tool("mke2fs", "e2fsprogs", "e2fsprogs")
TAR = Tool("tar", "tar", "tar")
QEMU_IMG = Tool("qemu-img", "qemu-utils", "qemu-img")
SSH = Tool("ssh", "openssh-client", "openssh-clients")
SSH_KEYGEN = Tool("ssh-keygen", "openssh-client", "openssh")

TO_BUILD = (MMDEBSTRAP, UNSHARE, SFDISK, MKE2FS, TAR, QEMU_IMG, SSH_KEYGEN)
TO_START = (QEMU_IMG, SSH)


def find_program(tool: Tool) -> str | None:
    """Return the path of ``tool``, also where only root has its directory in PATH; None when it is not installed."""
    return find_installed(tool.program)


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
    missing = [] if installed_emulator(board) else [Tool(board.qemu, board.debian_qemu, rpm_package(board))]
    missing += [tool for tool in tools if find_program(tool) is None]
    if find_firmware(platform) is None:
        missing.append(Tool("UEFI firmware", platform.debian_firmware, platform.rpm_firmware))
    if missing:
        raise InputError(_missing(missing))


def _missing(tools: list[Tool]) -> str:
    names = ", ".join(tool.program for tool in tools)
    debian = " ".join(dict.fromkeys(tool.debian for tool in tools))
    rpm = " ".join(dict.fromkeys(tool.rpm for tool in tools))
    return f"not installed: {names}: apt-get install {debian}, or dnf install {rpm}"


_UNFINISHED = ".new-"


def digest_of(ingredients: object) -> str:
    """Return the name of the layer that is made of ``ingredients`` (anything that JSON can hold)."""
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()[:32]


@contextmanager
def new_layer(final: Path) -> Iterator[Path]:
    """Yield an empty directory beside ``final`` that takes this name at the end, and goes away on an error.

    The caller holds a lock against others who build in this directory: what they left when they were killed is removed.
    """
    final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in final.parent.glob(f"{_UNFINISHED}*"):
        remove(left)
    directory = Path(tempfile.mkdtemp(dir=final.parent, prefix=_UNFINISHED))
    try:
        yield directory
        directory.rename(final)
    finally:
        remove(directory)


def remove(directory: Path) -> None:
    """Remove ``directory`` with all that is in it, if it is there.

    Not by shutil: the host's /dev may be mounted in it, by a build of an older version that was killed.
    """
    subprocess.run(["rm", "-rf", "--one-file-system", "--", str(directory)], check=True)  # noqa: S607


def mmdebstrap_mode() -> str:
    """Return the value of mmdebstrap's --mode with which this user can build a root."""
    return "root" if _is_root() else "unshare"


def own_mounts() -> list[str]:
    """Return the words before a command that give it mounts of its own, which end with it however it ends.

    mmdebstrap mounts /dev, /proc and /sys into the root; an ordinary user has a namespace for it in any case.
    """
    return [program(UNSHARE), "--mount"] if _is_root() else []


def _is_root() -> bool:
    return os.geteuid() == 0


def run_as_superuser(command: Sequence[str], content: bytes = b"") -> bytes:
    """Run ``command`` with ``content`` as its input and return its output; InputError with its complaint."""
    superuser = [] if _is_root() else [program(MMDEBSTRAP), "--unshare-helper"]
    done = subprocess.run([*superuser, *command], input=content, capture_output=True, check=False)
    if done.returncode != 0:
        complaint = " | ".join(done.stderr.decode(errors="replace").split("\n")).strip(" |")
        raise InputError(f"{Path(command[0]).name} failed: {complaint or f'exit code {done.returncode}'}")
    return done.stdout


@contextmanager
def superuser_directory(work: Path) -> Iterator[Path]:
    """Yield a directory of the superuser that we can read: below ``work`` if we are root, else below $TMPDIR.

    The subordinate ids of an ordinary user have no way through his private directories.
    """
    parent = work if _is_root() else Path(os.environ.get("TMPDIR") or "/var/tmp")  # noqa: S108 - mktemp claims it
    made = run_as_superuser(["mktemp", "--directory", str(parent / "hugepage-qa-XXXXXXXXXX")])
    directory = Path(made.decode().strip())
    try:
        run_as_superuser(["chmod", "0755", str(directory)])
        yield directory
    finally:
        if _is_root():
            remove(directory)
        else:
            run_as_superuser(["rm", "-rf", "--one-file-system", "--", str(directory)])
