"""Files out of distribution packages (kernel image, configuration, busybox), and RPM packages through dnf.

Packages of any RPM architecture are downloaded; nothing is installed.
"""

import hashlib
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hugepage_qa.errors import InputError
from hugepage_qa.process.child import complaint, run_to_end


@dataclass(frozen=True)
class Package:
    """A package of a distribution, downloaded."""

    name: str
    version: str
    files: tuple[Path, ...]
    """Its file first, then those of packages that its contents were spread over."""


_WANTED = (
    re.compile(r"boot/(?P<name>(?:vmlinu[xz]|config)-(?P<release>[^/]+))"),
    # Fedora, and Debian from kernel 6.18 or so on; usr/ is missing in packages from before the merge
    re.compile(r"(?:usr/)?lib/modules/(?P<release>[^/]+)/(?P<name>vmlinu[xz]|config)"),
    re.compile(r"(?:usr/)?s?bin/(?P<name>busybox)"),
    # what a guest needs to have memory plugged in, to give some back, and to tell that it panics; its network; a serial
    # port and disks of virtio, and ext4, XFS and btrfs, loop devices, KVM, and RDMA without hardware, with what they
    # depend on: for throwaway machines with an agent
    re.compile(
        r"(?:usr/)?lib/modules/[^/]+/kernel/(?:[\w-]+/)+"
        r"(?P<name>(?:virtio\w*|net_failover|failover|ext4|jbd2|mbcache|crc16|crc32c_generic|crc32c-cryptoapi|libcrc32c"
        r"|crc32_generic|hwpoison-inject|pvpanic(?:-mmio|-pci)?|xfs|btrfs|raid6_pq|xor|xor-neon|zstd_compress|libblake2b"
        r"|fuse|loop|kvm(?:-amd|-intel)?|irqbypass|ccp|rng-core"
        r"|ib_core|ib_uverbs(?:_support)?|rdma_rxe|udp_tunnel|ip6_udp_tunnel)"
        r"\.ko(?:\.(?:gz|xz|zst))?)"
    ),
)
#: another one for each other choice of files
CHOICE = hashlib.sha256("\n".join(pattern.pattern for pattern in _WANTED).encode()).digest()


def kept_name(member: str) -> str | None:
    """Return the name under which file ``member`` of a package is kept, None when it is not wanted."""
    for pattern in _WANTED:
        match = pattern.fullmatch(member.removeprefix("./").removeprefix("/"))
        if match:
            release = match.groupdict().get("release")
            return match["name"] if release is None or match["name"].endswith(release) else f"{match['name']}-{release}"
    return None


def unpack(package: Path, directory: Path) -> None:
    """Put the wanted files of ``package`` (.deb or .rpm) into ``directory``, without their folders.

    Almost all modules stay behind: they are most of a kernel package, and a probe machine loads none.
    """
    if package.suffix == ".rpm":
        _unpack_rpm(package, directory)
    else:
        _unpack_deb(package, directory)


def _unpack_deb(package: Path, directory: Path) -> None:
    if shutil.which("dpkg-deb") is None:
        raise InputError(f"{package.name}: cannot be unpacked, install dpkg")
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            _keep_wanted(process.stdout, directory)
        except tarfile.TarError as error:
            raise InputError(f"{package.name}: dpkg-deb cannot unpack it ({error})") from error
        if process.wait() != 0:
            raise InputError(f"{package.name}: dpkg-deb cannot unpack it")


def _keep_wanted(stream: IO[bytes] | None, directory: Path) -> None:
    """Put the wanted files of a tar archive into ``directory``. Raises TarError."""
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            name = kept_name(member.name)
            content = archive.extractfile(member) if name and member.isfile() else None
            if name and content:
                with (directory / name).open("wb") as target:
                    shutil.copyfileobj(content, target)


def rpm_commands(package: Path, directory: Path) -> list[list[str]]:
    """Return the pipeline that unpacks ``package`` in ``directory``; bsdtar alone can read RPM."""
    if shutil.which("bsdtar"):
        return [["bsdtar", "-x", "-f", str(package), "-C", str(directory)]]
    if shutil.which("rpm2cpio") and shutil.which("cpio"):
        unpacker = ["cpio", "--extract", "--make-directories", "--no-absolute-filenames", "--quiet"]
        return [["rpm2cpio", str(package)], [*unpacker, "--directory", str(directory)]]
    raise InputError(f"{package.name}: cannot be unpacked, install bsdtar")


def _unpack_rpm(package: Path, directory: Path) -> None:
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".rpm-") as name:
        whole = Path(name)
        commands = rpm_commands(package, whole)
        content: bytes | None = None
        for command in commands:
            done = subprocess.run(command, input=content, capture_output=True, check=False)
            if done.returncode != 0:
                raise InputError(f"{package.name}: {command[0]} cannot unpack it")
            content = done.stdout
        for file in whole.rglob("*"):
            kept = kept_name(str(file.relative_to(whole)))
            if kept and file.is_file() and not file.is_symlink():
                file.rename(directory / kept)


# what rpm -qp prints for one package: name and version as the file name has them
_FILE = re.compile(r"(?P<name>.+)-(?P<version>[^-]+-[^-]+)\.(?P<architecture>[^.]+)\.rpm")


class DnfRoot:
    """Downloads for one architecture, with dnf's own cache in a directory of ours."""

    def __init__(self, root: Path, architecture: str, release: str | None, report: Callable[[str], None]) -> None:
        """``release`` is a value of --releasever, None for that of the machine."""
        self._root = root
        self._architecture = architecture
        self._release = release
        self._report = report

    def fetch_kernel(self, package: str) -> Package:
        """Download kernel ``package``; ``kernel`` itself is empty, its image lies in ``kernel-core``."""
        return self.fetch("kernel-core" if package == "kernel" else package)

    def fetch(self, package: str) -> Package:
        """Download the newest ``package``; InputError with dnf's own message when that fails."""
        downloads = self._root / "downloads"
        downloads.mkdir(parents=True, exist_ok=True)
        for file in downloads.glob("*.rpm"):
            file.unlink()
        self._report(f"downloading {package} ({self._architecture})")
        done = run_to_end(self._command(package, downloads))
        if done.returncode != 0:
            raise InputError(f"dnf download failed: {complaint(done)}")
        found = [(file, match) for file in downloads.glob("*.rpm") if (match := _FILE.fullmatch(file.name))]
        for file, match in found:
            if match["name"] == package:
                return Package(match["name"], match["version"], (file,))
        raise InputError(f"package {package} for {self._architecture}: dnf downloaded nothing of that name")

    def _command(self, package: str, downloads: Path) -> list[str]:
        release = [f"--releasever={self._release}"] if self._release else []
        return [
            *("dnf", "--quiet", "--assumeyes", f"--forcearch={self._architecture}", *release),
            f"--setopt=cachedir={self._root / 'cache'}",
            # without it every version in the repositories would come
            *("download", "--latest-limit=1", f"--arch={self._architecture}", f"--destdir={downloads}", package),
        ]
