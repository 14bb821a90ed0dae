"""A kernel that make seeded-kernel built, and the files beside it."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from ci.seeded_kernel.faults import Fault

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.kernel_image import KernelImage, identify
from hugepage_qa.version import KernelVersion

_FAULTS = "faults.json"
_CONFIGURATION = "config"


@dataclass(frozen=True)
class SeededImage:
    """The image in the file ``path``. Beside it are its configuration, and the digests of the faults that it has."""

    path: Path

    @property
    def kernel(self) -> KernelImage:
        """What kernel it is. Raises InputError where it is none."""
        return identify(self.path)

    @property
    def version(self) -> KernelVersion:
        """Its version, with errors of ``kernel``."""
        return self.kernel.version

    @property
    def base(self) -> str:
        """What changes with the healthy kernel, and with none of its faults. Raises InputError as ``kernel``."""
        configuration = self.path.with_name(_CONFIGURATION)
        told = configuration.read_bytes() if configuration.is_file() else b""
        return sha256(self.kernel.release.encode() + told).hexdigest()[:16]

    def note(self, faults: Iterable[Fault]) -> None:
        """Write down that it has ``faults``."""
        told = {fault.name: fault.digest for fault in faults if fault.edits_for(self.version)}
        self.path.with_name(_FAULTS).write_text(json.dumps(told, indent=1), encoding="utf-8")

    def choose(self, faults: Sequence[Fault]) -> list[Fault]:
        """Return those of ``faults`` that kernels of its version can have.

        Raises InputError where it was built with others, or with none.
        """
        try:
            built = json.loads(self.path.with_name(_FAULTS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            built = {}
        chosen = [fault for fault in faults if fault.edits_for(self.version)]
        for fault in chosen:
            if built.get(fault.name) != fault.digest:
                raise InputError(f"{self.path}: fault {fault.name} is not in it as it is described: make seeded-kernel")
        return chosen
