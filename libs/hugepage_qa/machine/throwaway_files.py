"""The files of a throwaway machine: what the agent reads and writes, disks with file systems, modules, and swap."""

import errno
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.uapi import find_uapi
from hugepage_qa.machine.backend import MachineKind
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.machine.libc import BUSY_SECONDS, retry_while_busy
from hugepage_qa.machine.swap_file import HEADER_OFFSET, MAGIC, swap_header
from hugepage_qa.qemu.agent_channel import AgentChannel, ReadAhead
from hugepage_qa.qemu.empty_disks import MAKERS
from hugepage_qa.qemu.kernel_modules import Module, load_order
from hugepage_qa.sizes import MIB

_SCRATCH = "/tmp"  # noqa: S108 - of a machine that nobody else is on
#: where a disk is mounted, as swap and programs with text need one
_DISK = "/var/tmp"  # noqa: S108
_DISK_FILE_SYSTEM = "ext4"
#: what btrfs asks the crypto API for, at a mount, and does not depend on (softdep); 6.16 has it under another name; and
#: what rdma_rxe asks it for before 6.14
_CHECKSUMS = ("crc32c_generic", "crc32c_cryptoapi", "crc32_generic")
#: of AMD's processors and of Intel's
_KVM = ("kvm_amd", "kvm_intel")
_UPLOAD = MIB
#: of what is executed there
PROGRAM_MODE = 0o755


class ThrowawayFiles:
    """The files below the root of a machine, named without a leading slash where they are read and written."""

    def __init__(self, channel: AgentChannel, ahead: ReadAhead, kind: MachineKind, modules: Sequence[Path]) -> None:
        self._channel = channel
        self._ahead = ahead
        self._kind = kind
        self._modules = modules
        #: file system -> where the disk with it is mounted
        self._disks: dict[str, str] = {}
        self._mounts = 0
        self._loaded: set[str] = set()
        self._disk_refusal = self._mount_disk()

    def read(self, path: str) -> str | None:
        """Return the text of a file, None where it cannot be read. Raises InputError for one that is too large."""
        try:
            return self._ahead.read("r", f"/{path}")[0].decode(errors="replace")
        except OSError as error:
            if error.errno == errno.EFBIG:
                # the agent says so, and no kernel: a part of a file would be judged as all of it
                raise InputError(f"/{path}: larger than the 64 MiB that the agent reads") from error
            # sysfs answers EINVAL or EIO for files that exist but have nothing to say
            return None

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a directory, none where there is no such directory."""
        try:
            return sorted(name.decode(errors="surrogateescape") for name in self._ahead.read("n", f"/{path}"))
        except OSError:
            return []

    def write(self, path: str, text: str) -> None:
        """Write ``text`` in one write. Raises OSError."""
        self._channel.ask("w", f"/{path}", text.encode())

    def mount_point(self, file_system: str) -> str:
        """Make a directory to mount a ``file_system`` on, and return its path."""
        self._mounts += 1
        point = f"{_SCRATCH}/{file_system}-{self._mounts}"
        self._channel.ask("d", point)
        return point

    def mount(self, options: str, file_system: str) -> str:
        """Mount a new ``file_system`` in a new directory, and return its path. Raises OSError."""
        point = self.mount_point(file_system)
        try:
            self._channel.ask("M", "hugepage-qa", point, file_system, options)
        except OSError:
            self._channel.ask("D", point)
            raise
        return point

    def unmount(self, point: str, seconds: float = BUSY_SECONDS) -> None:
        """Unmount ``point`` and remove it. Raises OSError where it is busy for ``seconds``."""
        retry_while_busy(partial(self._channel.ask, "U", point), seconds)
        self._channel.ask("D", point)

    def file_system(self, point: str) -> tuple[int, ...]:
        """Return what statvfs(2) tells of the file system at ``point``."""
        return tuple(int(field) for field in self._channel.ask("s", point))

    def store(self, path: str, content: bytes, mode: int) -> None:
        """Write a new file. Raises OSError."""
        for offset in range(0, max(len(content), 1), _UPLOAD):
            self._channel.ask("f", path, offset, content[offset : offset + _UPLOAD])
        self._channel.ask("c", path, f"{mode:o}")

    def _mount_disk(self) -> str:
        """Mount the machine's disk; return why there is none."""
        device = self._disk_named(_DISK_FILE_SYSTEM)
        if device is None:
            return f"the machine has no disk with {_DISK_FILE_SYSTEM}: none is there"
        try:
            self._channel.ask("M", device, _DISK, _DISK_FILE_SYSTEM, "")
        except OSError as error:
            return f"the machine has no disk with {_DISK_FILE_SYSTEM}: {error.strerror}"
        return ""

    def _disk_named(self, file_system: str) -> str | None:
        """Return the disk that was named to the emulator so: s390x finds disks in any order, and vda may be any."""
        for name in self.names("sys/block"):
            if (self.read(f"sys/block/{name}/serial") or "").strip() == file_system:
                return f"/dev/{name}"
        return None

    def disk(self, file_system: str) -> str:
        """Return where the disk with an empty ``file_system`` is mounted, which is done as soon as one wants it.

        Raises CannotRun where the machine has none, or its kernel cannot mount it.
        """
        if file_system == _DISK_FILE_SYSTEM:
            return self.own_disk()
        if file_system not in self._disks:
            device, kind = self._find_disk(file_system), MAKERS[file_system].file_system
            for module in load_order(self._modules, [*_CHECKSUMS, kind]):
                self._load(module)
            point = self.mount_point(file_system)
            try:
                self._channel.ask("M", device, point, kind, "")
            except OSError as error:
                raise CannotRun(f"this kernel mounts no {kind}: {error.strerror}") from error
            self._disks[file_system] = point
        return self._disks[file_system]

    def _find_disk(self, file_system: str) -> str:
        if device := self._disk_named(file_system):
            return device
        maker = MAKERS[file_system]
        if maker.find() is None:
            raise CannotRun(f"a disk with {file_system} needs {maker.program}, which is not installed here")
        raise CannotRun("this kernel has no virtio disks")

    def load_kvm(self) -> None:
        """Load KVM, if the kernel has it as modules."""
        for module in load_order(self._modules, _KVM):
            self._load(module)

    def _load(self, module: Module) -> None:
        if module.name in self._loaded:
            return
        self._loaded.add(module.name)
        path = f"{_SCRATCH}/{module.name}.ko"
        self.store(path, module.content, PROGRAM_MODE)
        # one that is there, and one that the processor does not suit: whether it is missed is seen at the mount
        with suppress(OSError):
            self._channel.ask("i", path)
        self._channel.ask("x", path)

    def has_modules(self, names: list[str]) -> bool:
        """Load these modules, and tell whether all are there, as modules or in the kernel."""
        if not self._are_loaded(names):
            for module in load_order(self._modules, [*_CHECKSUMS, *names]):
                self._load(module)
        return self._are_loaded(names)

    def _are_loaded(self, names: list[str]) -> bool:
        return all(self.names(f"sys/module/{name}") for name in names)

    def own_disk(self) -> str:
        """Return where the disk for swap and programs is mounted. Raises CannotRun where there is none."""
        if self._disk_refusal:
            raise CannotRun(self._disk_refusal)
        return _DISK

    def add_swap(self, size: int) -> str:
        """Swap to a new file of ``size`` bytes, and return its path. Raises CannotRun without a disk, OSError."""
        disk = self.own_disk()
        self._mounts += 1
        name = f"{disk}/swap-{self._mounts}"
        page = self._kind.base_page
        header = swap_header(size, page, find_uapi(self._kind.architecture).byte_order)
        self._channel.ask("z", name, size)
        self._channel.ask("f", name, HEADER_OFFSET, header)
        self._channel.ask("f", name, page - len(MAGIC), MAGIC)
        try:
            self._channel.ask("+", name)
        except OSError:
            self._channel.ask("x", name)
            raise
        return name

    def remove_swap(self, name: str) -> None:
        """Bring back what was swapped to that file, and remove it. Raises OSError."""
        self._channel.ask("-", name)
        self._channel.ask("x", name)
