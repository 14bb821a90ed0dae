"""Roots in the cache: a disk with the file system made from packages, and what is needed to boot it directly."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.cache import locked, write_atomically
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.system.build_tools import (
    MKE2FS,
    TAR,
    digest_of,
    new_layer,
    program,
    run_as_superuser,
    superuser_directory,
)
from hugepage_qa.qemu.system.debian_root import DebianRoot
from hugepage_qa.qemu.system.root_layout import (
    DISK_SIZE,
    host_authorities,
    overlay,
    root_filesystem_arguments,
    write_partition_table,
    write_root_partition,
)

DISK = "disk.raw"
HOST_KEY = "ssh_host_ed25519_key.pub"

_REMEMBERED_SECONDS = 24 * 3600
"""How long the answer which versions the packages have today is used without asking again."""

Report = Callable[[str], None]


@dataclass(frozen=True)
class SystemRoot:
    """A root in the cache: its disk, the kernels and what boots them directly, in one directory."""

    directory: Path

    @property
    def disk(self) -> Path:
        """The raw image of the whole disk; it is never written again."""
        return self.directory / DISK

    @property
    def release(self) -> str:
        """``uname -r`` of the kernel that the boot loader starts."""
        releases = [file.name.removeprefix("vmlinuz-") for file in self.directory.glob("vmlinuz-*")]
        return releases[0]

    @property
    def kernel(self) -> Path:
        """The image of that kernel."""
        return self.directory / f"vmlinuz-{self.release}"

    @property
    def host_key(self) -> str:
        """The public key by which sshd of the machine identifies itself."""
        return (self.directory / HOST_KEY).read_text(encoding="utf-8").strip()

    def initramfs(self, release: str) -> Path | None:
        """Return the initramfs for kernel ``release``, None when the root has no modules for it."""
        path = self.directory / f"initrd.img-{release}"
        return path if path.exists() else None


def obtain_root(cache: Path, packages: DebianRoot, public_key: str, *, report: Report) -> SystemRoot:
    """Return the root of ``packages`` that ``public_key`` opens; it is built unless it is in the cache.

    Once a day the package indices are asked: new versions make a new root. Without network the root of last time
    serves. Raises InputError when it can neither be found nor built.
    """
    systems = cache / "systems"
    files = overlay(packages.platform, public_key, packages.sources, host_authorities())
    recipe = {**packages.ingredients(), "files": files.hex(), "disk": DISK_SIZE}
    note = systems / "roots" / f"{digest_of(recipe)}.json"
    with locked(systems / "build.lock"):
        remembered = _recall(note)
        if remembered and time.time() - note.stat().st_mtime < _REMEMBERED_SECONDS:
            return remembered
        try:
            versions = packages.resolve()
        except InputError as error:
            if remembered is None:
                raise
            report(f"{error}; using the system image of last time")
            return remembered
        directory = note.with_name(digest_of([recipe, versions]))
        if not directory.is_dir():
            _build(directory, packages, files, versions, report)
        write_atomically(note, json.dumps(directory.name).encode())
    return SystemRoot(directory)


def _recall(note: Path) -> SystemRoot | None:
    try:
        directory = note.with_name(json.loads(note.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return SystemRoot(directory) if directory.is_dir() else None


def _build(final: Path, packages: DebianRoot, files: bytes, versions: Mapping[str, str], report: Report) -> None:
    with new_layer(final) as work, superuser_directory(work) as place:
        started = time.monotonic()
        report(f"installing {len(versions)} packages of Debian {packages.suite} into a new root, about a minute")
        tree, filesystem = place / "root", place / "root.ext4"
        packages.unpack(work, tree)
        run_as_superuser([program(TAR), "-x", "-f", "-", "-C", str(tree), "--no-overwrite-dir"], files)
        _keep_boot_files(tree, work)
        write_partition_table(work / DISK, packages.platform)
        run_as_superuser([program(MKE2FS), *root_filesystem_arguments(packages.platform, filesystem, tree)])
        write_root_partition(work / DISK, packages.platform, filesystem)
        write_atomically(work / "packages.json", json.dumps(versions, indent=1, sort_keys=True).encode())
        report(f"root built in {time.monotonic() - started:.0f} s")


def _keep_boot_files(tree: Path, work: Path) -> None:
    """Copy kernels, their initramfs and the host key of the root ``tree`` into ``work``."""
    boot = tree / "boot"
    kernels = sorted(boot.glob("vmlinuz-*"))
    if len(kernels) != 1:
        raise InputError(f"expected one kernel in /boot of the new root, found {len(kernels)}: see the kernel package")
    for file in [*kernels, *boot.glob("initrd.img-*"), tree / "etc/ssh" / HOST_KEY]:
        (work / file.name).write_bytes(run_as_superuser(["cat", "--", str(file)]))
