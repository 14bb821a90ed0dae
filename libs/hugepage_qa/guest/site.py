"""What guests are started with on this machine."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Site:
    """Everything about the machine that a definition of a guest depends on.

    ``machine`` and ``cpu`` are values of QEMU's options, ``words`` go to the guest's kernel, ``mounts`` is page size in
    bytes -> hugetlbfs, ``directory`` is for consoles and sockets, ``environment`` marks QEMU as ours.
    """

    architecture: str
    machine: str
    cpu: str
    accelerator: str
    emulator: str
    kernel: str
    initramfs: str
    words: str
    directory: str
    mounts: Mapping[int, str]
    environment: Mapping[str, str]

    def console(self, guest: str) -> str:
        """Return the socket of a guest's serial console."""
        return f"{self.directory}/{guest}.console"

    def log(self, guest: str) -> str:
        """Return the file that keeps what a guest prints there."""
        return f"{self.directory}/{guest}.log"

    def document(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Site":
        """Return the site of a ``document``."""
        mounts = {int(size): point for size, point in document["mounts"].items()}
        return cls(**{**document, "mounts": mounts})
