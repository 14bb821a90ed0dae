"""The disk of a system machine, made without mounts, and the files that turn a bare root into one.

It is GPT with an EFI system partition and a root partition. Partition devices of loop devices do not appear in
containers and without udev, so the root file system is copied to its place in the disk image, and the EFI one is made
by the machine itself (finish.sh).
"""

import errno
import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.process.child import run_to_end
from hugepage_qa.qemu.system.build_tools import SFDISK, program
from hugepage_qa.qemu.system.platforms import Platform
from hugepage_qa.sizes import GIB, KIB, MIB

SECTOR = 512
DISK_SIZE = 8 * GIB
"""Bytes of the disk; it is sparse, a fresh root takes less than one GiB of it."""

#: the same on every disk: a kernel without an initramfs finds its root by it
ROOT_PARTUUID = "6f2a9d1e-0c37-4b58-9a64-1d5e8f7b2c03"

_PIECE = 16 * MIB
_ESP_TYPE = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"


@dataclass(frozen=True)
class Partition:
    """One partition; start and size in bytes."""

    name: str
    type: str
    start: int
    size: int
    uuid: str


_ESP_START = MIB
_ROOT_START = _ESP_START + 64 * MIB
# the last MiB keeps the second copy of the partition table
_ROOT_SIZE = DISK_SIZE - _ROOT_START - MIB


def partitions(platform: Platform) -> tuple[Partition, Partition]:
    """Return the EFI system partition and the root partition."""
    esp_uuid = "0b7c41d5-52e9-4e0f-8f0e-6a2f3c9d7e11"
    return (
        Partition("esp", _ESP_TYPE, _ESP_START, _ROOT_START - _ESP_START, esp_uuid),
        Partition("root", platform.root_type, _ROOT_START, _ROOT_SIZE, ROOT_PARTUUID),
    )


def write_partition_table(disk: Path, platform: Platform) -> None:
    """Make ``disk`` a sparse image with an empty partition of each kind; InputError when sfdisk refuses."""
    with disk.open("wb") as image:
        image.truncate(DISK_SIZE)
    lines = [
        f"start={one.start // SECTOR}, size={one.size // SECTOR}, type={one.type}, uuid={one.uuid}, name={one.name}"
        for one in partitions(platform)
    ]
    script = "\n".join(["label: gpt", *lines, ""])
    command = [program(SFDISK), "--quiet", str(disk)]
    done = run_to_end(command, given=script)
    if done.returncode != 0:
        raise InputError(f"sfdisk cannot write a partition table to {disk}: {done.stderr.strip()}")


def root_filesystem_arguments(platform: Platform, filesystem: Path, root: Path) -> list[str]:
    """Return mke2fs's arguments that make ``filesystem`` of the files below ``root``, as large as its partition."""
    _, partition = partitions(platform)
    size = f"{partition.size // KIB}k"
    return ["-q", "-t", "ext4", "-L", "root", "-d", str(root), "-E", "root_owner=0:0", str(filesystem), size]


def write_root_partition(disk: Path, platform: Platform, filesystem: Path) -> None:
    """Copy the image ``filesystem`` into the root partition of ``disk``; its holes stay holes."""
    _, partition = partitions(platform)
    with filesystem.open("rb") as source, disk.open("r+b") as target:
        for start, end in _extents(source.fileno()):
            source.seek(start)
            target.seek(partition.start + start)
            left = end - start
            while left:
                piece = source.read(min(left, _PIECE))
                target.write(piece)
                left -= len(piece)


def _extents(file: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of every part of ``file`` that is no hole."""
    end, size = 0, os.fstat(file).st_size
    while end < size:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError as error:
            # no data until the end
            if error.errno == errno.ENXIO:
                return
            raise
        end = os.lseek(file, start, os.SEEK_HOLE)
        yield start, end


FINISH = "/usr/local/sbin/lab-finish"
"""Where the finishing script lies in the root; it removes itself."""

_FSTAB = """\
PARTUUID={root} / ext4 errors=remount-ro 0 1
PARTUUID={esp} /boot/efi vfat umask=0077,nofail,x-systemd.automount 0 2
"""

# addresses of QEMU's user network; static, because waiting for DHCP costs boot time
_NETWORK = """\
[Match]
Type=ether

[Network]
Address=10.0.2.15/24
Gateway=10.0.2.2
DNS=10.0.2.3
LinkLocalAddressing=no
IPv6AcceptRA=no
"""
# of Debian and of Fedora
_AUTHORITIES = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/pki/tls/certs/ca-bundle.crt"))
_RESOLV_CONF = "nameserver 10.0.2.3\n"

# what nobody waits for on a throwaway machine, and what would change it or take its CPU while a test runs
_MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "man-db.timer",
    "systemd-networkd-wait-online.service",
)


# pip brings a list of authorities of its own, which a mirror with another one is not on
_PIP_CONF = "[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n"


def overlay(platform: Platform, public_key: str, sources: str, authorities: str) -> bytes:
    """Return a tar archive of these files; the same input gives the same bytes.

    ``public_key`` may log in as root; ``sources`` are the package sources in deb822 format; ``authorities`` are the
    certificates (PEM) that the machine trusts, none for those of its distribution.
    """
    esp, _ = partitions(platform)
    archive = _Archive()
    archive.add("etc/fstab", _FSTAB.format(root=ROOT_PARTUUID, esp=esp.uuid))
    archive.add("etc/hostname", "lab\n")
    archive.add("etc/hosts", "127.0.0.1 localhost lab\n::1 localhost\n")
    archive.add("etc/resolv.conf", _RESOLV_CONF)
    archive.add("etc/systemd/network/80-lab.network", _NETWORK)
    archive.link(
        "etc/systemd/system/multi-user.target.wants/systemd-networkd.service",
        "/lib/systemd/system/systemd-networkd.service",
    )
    for unit in _MASKED:
        archive.link(f"etc/systemd/system/{unit}", "/dev/null")
    archive.add("etc/apt/sources.list.d/lab.sources", sources)
    if authorities:
        archive.add("etc/ssl/certs/ca-certificates.crt", authorities)
        archive.add("etc/pip.conf", _PIP_CONF)
    # a session of PAM starts a systemd of its own for each of the many commands of tmt
    archive.add("etc/ssh/sshd_config.d/lab.conf", "PasswordAuthentication no\nUsePAM no\nUseDNS no\n")
    archive.directory("root/.ssh", 0o700)
    archive.add("root/.ssh/authorized_keys", public_key, 0o600)
    archive.add("usr/local/bin/apt-file", _script("apt-file.sh"), 0o755)
    finish = _script("finish.sh").replace("@GRUB_TARGET@", platform.grub_target)
    archive.add(FINISH.removeprefix("/"), finish, 0o755)
    return archive.close()


def host_authorities() -> str:
    """Return the certificates (PEM) of the authorities that the host trusts, empty where they cannot be found.

    A machine reaches the package mirrors of its host, which may be behind an authority of the host's own.
    """
    readable = (path for path in _AUTHORITIES if os.access(path, os.R_OK))
    return next((path.read_text(encoding="utf-8") for path in readable), "")


def _script(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


class _Archive:
    """A tar archive whose entries belong to root and have no times."""

    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._bytes, mode="w", format=tarfile.GNU_FORMAT)  # noqa: SIM115

    def add(self, name: str, text: str, mode: int = 0o644) -> None:
        content = text.encode()
        entry = self._entry(name, tarfile.REGTYPE, mode)
        entry.size = len(content)
        self._tar.addfile(entry, io.BytesIO(content))

    def link(self, name: str, target: str) -> None:
        entry = self._entry(name, tarfile.SYMTYPE, 0o777)
        entry.linkname = target
        self._tar.addfile(entry)

    def directory(self, name: str, mode: int) -> None:
        self._tar.addfile(self._entry(name, tarfile.DIRTYPE, mode))

    def close(self) -> bytes:
        self._tar.close()
        return self._bytes.getvalue()

    @staticmethod
    def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
        entry = tarfile.TarInfo(name)
        entry.type = kind
        entry.mode = mode
        return entry
