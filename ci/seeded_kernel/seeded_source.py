"""The sources of a kernel with faults in them: what was unpacked is kept, edits are made anew each time.

A file is written only where it changes, so that the next build makes what depends on it, and nothing else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.seeded_kernel.faults import Fault
from ci.seeded_kernel.source_edits import HEADER, Edit, Place, constant, edit_files

from hugepage_qa.errors import InputError
from hugepage_qa.version import KernelVersion

#: what the kernel calls itself healthy
HEALTHY = "none"
_CODE = Path(__file__).with_name("seeded_fault.c")
_MAKEFILE = "mm/Makefile"
_OBJECT = "obj-y += seeded_fault.o\n"
_AT_BOOT = Edit(
    "choice at boot",
    ("init/main.c",),
    ("parse_early_param",),
    Place.AFTER,
    r"if \( done \) return;",
    "seeded_fault_at_boot(boot_command_line);",
)
_HEADER = """\
/* SPDX-License-Identifier: GPL-2.0-only */
/* Made by ci/seeded_kernel: the faults that are seeded into this kernel. */
#ifndef _LINUX_SEEDED_FAULT_H
#define _LINUX_SEEDED_FAULT_H

#include <linux/compiler.h>

enum seeded_fault {{ {constants} }};
#define SEEDED_FAULT_NAMES {names}

extern enum seeded_fault seeded_fault;
void seeded_fault_at_boot(const char *command_line);
void seeded_fault_wait(unsigned int milliseconds);

#define SEEDED(name) unlikely(READ_ONCE(seeded_fault) == SEEDED_##name)

#endif
"""


@dataclass(frozen=True)
class SeededSource:
    """The source of a kernel in ``tree``; ``originals`` has the files of it that were edited as they were."""

    tree: Path
    originals: Path

    @property
    def version(self) -> KernelVersion:
        """The version that its Makefile tells. Raises InputError where it is no source of a kernel."""
        try:
            lines = (self.tree / "Makefile").read_text(encoding="utf-8").splitlines()
            told = dict(line.replace(" ", "").split("=", 1) for line in lines[:6] if "=" in line)
            return KernelVersion(int(told["VERSION"]), int(told["PATCHLEVEL"]), int(told["SUBLEVEL"]))
        except (OSError, KeyError, ValueError) as error:
            raise InputError(f"{self.tree}: expected the source of a kernel, with its Makefile") from error

    def read(self, name: str) -> str | None:
        """Return the file ``name`` as it was unpacked, None where it is not there."""
        for place in (self.originals / name, self.tree / name):
            if place.is_file():
                return place.read_text(encoding="utf-8")
        return None

    def edit(self, faults: Iterable[Fault]) -> tuple[dict[str, str], list[str]]:
        """Return file -> text with ``faults``, and what cannot be applied; nothing is written."""
        version = self.version
        edits = [_AT_BOOT, *(edit for fault in faults for edit in fault.edits_for(version))]
        return edit_files(self.read, edits)

    def seed(self, faults: Sequence[Fault]) -> None:
        """Write ``faults`` into the tree, and take away all others. Raises InputError for what cannot be applied."""
        texts, failures = self.edit(faults)
        if failures:
            raise InputError(f"{self.tree}: {failures[0]} (and {len(failures) - 1} more)")
        makefile = self.read(_MAKEFILE)
        if makefile is None:
            raise InputError(f"{self.tree}: no {_MAKEFILE}")
        texts[_MAKEFILE] = makefile + _OBJECT
        names = [fault.name for fault in faults if fault.edits_for(self.version)]
        for name, text in texts.items():
            self._keep(name)
            _write(self.tree / name, text)
        for kept in self.originals.rglob("*"):
            name = str(kept.relative_to(self.originals))
            if kept.is_file() and name not in texts:
                _write(self.tree / name, kept.read_text(encoding="utf-8"))
        _write(self.tree / "include" / HEADER, header(names))
        _write(self.tree / "mm" / _CODE.name, _CODE.read_text(encoding="utf-8"))

    def _keep(self, name: str) -> None:
        original = self.originals / name
        if not original.exists():
            original.parent.mkdir(parents=True, exist_ok=True)
            original.write_bytes((self.tree / name).read_bytes())


def header(names: Sequence[str]) -> str:
    """Return the C header that knows faults by their ``names``, in this order."""
    every = (HEALTHY, *names)
    constants = ", ".join(f"SEEDED_{constant(name)}" for name in every)
    return _HEADER.format(constants=constants, names=", ".join(f'"{name}"' for name in every))


def _write(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
