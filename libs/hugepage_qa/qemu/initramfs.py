"""The archive that a probe machine boots into: a static busybox and init.sh, in the kernel's newc cpio format."""

import hashlib
import stat
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from hugepage_qa.cache import write_atomically
from hugepage_qa.qemu.kernel_modules import Module

_BLOCK = 512

# the tmpfs shows which huge= option mounts get by default (transparent_hugepage_tmpfs=)
_FSTAB = b"proc /proc proc\nsysfs /sys sysfs\ntmpfs /tmp tmpfs\n"


class Entry(NamedTuple):
    """One file of the archive; device numbers count only for device nodes."""

    name: str
    mode: int
    content: bytes = b""
    device: tuple[int, int] = (0, 0)


def _padded(data: bytes, size: int) -> bytes:
    return data + b"\0" * (-len(data) % size)


def _pack(number: int, entry: Entry) -> bytes:
    """Return ``entry`` in newc format (Documentation/driver-api/early-userspace/buffer-format.rst)."""
    name = entry.name.encode() + b"\0"
    fields = (
        number,
        entry.mode,
        0,  # uid
        0,  # gid
        1,  # links
        0,  # modification time: the same input gives the same archive
        len(entry.content),
        0,  # major and minor number of the device that holds the file
        0,
        *entry.device,
        len(name),
        0,  # check sum, unused by newc
    )
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(header + name, 4) + _padded(entry.content, 4)


def pack(entries: list[Entry]) -> bytes:
    """Return a newc archive that holds ``entries``; needs no root, device nodes included."""
    packed = [_pack(number, entry) for number, entry in enumerate(entries, start=1)]
    return _padded(b"".join([*packed, _pack(0, Entry("TRAILER!!!", 0))]), _BLOCK)


def probe_archive(
    busybox: bytes, modules: Mapping[str, bytes] | None = None, programs: Mapping[str, bytes] | None = None
) -> bytes:
    """Return the initramfs that prints the facts: ``busybox`` must be a static binary of the guest.

    ``modules`` are files in /modules, which nobody loads, ``programs`` are static ones in /bin, which nobody starts.
    """
    directory = stat.S_IFDIR | 0o755
    program = stat.S_IFREG | 0o755
    init = resources.files("hugepage_qa.qemu").joinpath("init.sh").read_bytes()
    return pack(
        [
            Entry("bin", directory),
            Entry("bin/busybox", program, busybox),
            *(Entry(f"bin/{name}", program, content) for name, content in (programs or {}).items()),
            Entry("dev", directory),
            # the kernel opens it for init before anything could be mounted
            Entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1)),
            Entry("etc", directory),
            Entry("etc/fstab", stat.S_IFREG | 0o644, _FSTAB),
            Entry("init", program, init),
            *([Entry("modules", directory)] if modules else []),
            *(Entry(f"modules/{name}", stat.S_IFREG | 0o644, content) for name, content in (modules or {}).items()),
            Entry("proc", directory),
            Entry("sys", directory),
            Entry("tmp", directory),
        ]
    )


def probe_initramfs(
    busybox: Path, cache: Path, modules: Sequence[Path] = (), programs: Mapping[str, Path] | None = None
) -> Path:
    """Return the initramfs around ``busybox``, ``modules`` and ``programs`` below ``cache``; built once per content."""
    contents = {f"{file.name.partition('.ko')[0]}.ko": Module(file).content for file in modules}
    binaries = {name: file.read_bytes() for name, file in (programs or {}).items()}
    return _keep(probe_archive(busybox.read_bytes(), contents, binaries), cache)


def agent_initramfs(agent: Path, actor: Path, modules: Sequence[Module], serial_port: str, cache: Path) -> Path:
    """Return the initramfs whose init is the program ``agent``, which starts the program ``actor``.

    It loads ``modules`` in this order. ``serial_port`` is what it talks through where there is no virtio port. Built
    once per content, with errors of the file system.
    """
    directory, program, file = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o755, stat.S_IFREG | 0o644
    names = [f"modules/{number}-{module.name}.ko" for number, module in enumerate(modules)]
    return _keep(
        pack(
            [
                *(Entry(name, directory) for name in ("dev", "proc", "sys", "tmp", "var", "var/tmp", "modules")),
                # the kernel opens it for init before anything could be mounted
                Entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1)),
                Entry("init", program, agent.read_bytes()),
                Entry("actor", program, actor.read_bytes()),
                Entry("channel", file, serial_port.encode()),
                *(Entry(name, file, module.content) for name, module in zip(names, modules, strict=True)),
                Entry("modules/order", file, "".join(f"/{name}\n" for name in names).encode()),
            ]
        ),
        cache,
    )


def _keep(archive: bytes, cache: Path) -> Path:
    """Keep ``archive`` below ``cache`` by its content.

    It is not compressed: unpacking costs an emulated CPU more than copying a few megabytes.
    """
    path = cache / "initramfs" / f"{hashlib.sha256(archive).hexdigest()}.cpio"
    if not path.exists():
        write_atomically(path, archive)
    return path
