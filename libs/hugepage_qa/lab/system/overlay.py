"""The files that turn a bare root into a system machine: network, key, quiet services, the finishing script."""

import io
import os
import tarfile
from pathlib import Path

from hugepage_qa.lab.system.layout import ROOT_PARTUUID, partitions
from hugepage_qa.lab.system.platforms import Platform

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
    archive.add("etc/ssh/sshd_config.d/lab.conf", "PasswordAuthentication no\nUseDNS no\n")
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
