"""Show that each fault of a seeded kernel acts: its program prints something else than on the healthy kernel.

    python -m ci.seeded_kernel.proofs build/seeded-kernel/6.1/bzImage

Most programs run twice healthy and once with the fault in one machine; those of boot parameters in a boot of their own.
What is live is kept beside the image in proofs.json, and is not shown again unless it has changed.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum
from hashlib import sha256
from pathlib import Path
from stat import S_IFCHR, S_IFDIR, S_IFREG
from typing import BinaryIO

from ci.seeded_kernel.faults import Fault, choose, read_faults
from ci.seeded_kernel.seeded_image import SeededImage
from ci.seeded_kernel.seeded_source import HEALTHY
from ci.seeded_kernel.source_edits import constant

from hugepage_qa.cache import cache_directory, scratch_directory, write_atomically
from hugepage_qa.cases.result import ExitCode
from hugepage_qa.commands.argument_parser import Parser
from hugepage_qa.errors import InputError
from hugepage_qa.process.child import Child
from hugepage_qa.process.static_program import build_static
from hugepage_qa.qemu.boards import find_board
from hugepage_qa.qemu.initramfs import Entry, pack
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.virtual_machine import VirtualMachine
from hugepage_qa.sizes import GIB, MIB

_MACHINE = Path(__file__).with_name("proof_machine.c")
_RUN = re.compile(r"@begin (\S+) (\S+)\r?\n(.*?)@end", re.DOTALL)
_BEGUN = re.compile(r"@begin (\S+) (\S+)")
_OF_THE_KERNEL = re.compile(r"\[ *\d+\.\d+\].*")
#: the program looks at what the machine was booted with, and nothing is put back for it
_AS_BOOTED = "as-booted"
_ENDED = "the machine ended\n"
_NODES = (6 * GIB, 6 * GIB)
_DISK = 64 * MIB
_WORDS = "init_on_alloc=0"
#: a machine that says nothing for so long is lost: it comes up in less, and programs end themselves before
_SILENT_SECONDS = 120.0
_POLL_SECONDS = 0.5
_MACHINES = 2


class Shown(Enum):
    """What a proof shows of a fault."""

    LIVE = "live"
    NOT_LIVE = "not live"
    UNSTEADY = "unsteady"
    """The program prints this and that on the healthy kernel."""


@dataclass(frozen=True)
class Seen:
    """What the program of a fault printed on the ``healthy`` kernel, and with the fault (``seeded``)."""

    shown: Shown
    healthy: str
    seeded: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Show the faults of an image and return the exit code: 0 when all are live, 1 when one is not."""
    parser = Parser("proofs", description="Show that each fault of a seeded kernel acts.")
    parser.add_argument("kernel", type=Path, help="image that make seeded-kernel built")
    parser.add_argument("--fault", action="append", default=[], help="this fault alone; repeatable  [all]")
    parser.add_argument("--again", action="store_true", help="also what is known to be live")
    options = parser.parse_args(arguments)
    try:
        image = SeededImage(options.kernel)
        kernel = image.kernel
        faults = image.choose(choose(read_faults(), options.fault))
        kept = Kept(image)
        wanted = [fault for fault in faults if options.again or not kept.is_live(fault)]
        print(f"{kernel.release}: {len(faults)} faults, {len(wanted)} to show", flush=True)
        for fault, seen in show(wanted, kernel, cache_directory()):
            kept.keep(fault, seen)
            print(f"{fault.name}: {seen.shown.value}: {seen.healthy!r} -> {seen.seeded!r}", flush=True)
    except InputError as error:
        print(f"proofs: {error}", file=sys.stderr)
        return ExitCode.BROKEN
    live = [fault for fault in faults if kept.is_live(fault)]
    print(f"{len(live)} of {len(faults)} faults are live")
    return ExitCode.GOOD if len(live) == len(faults) else ExitCode.BAD


class Kept:
    """What was shown of the faults of an image, in a file beside it."""

    def __init__(self, image: SeededImage) -> None:
        self._file = image.path.with_name("proofs.json")
        self._base = image.base
        try:
            self._entries: dict[str, dict[str, str]] = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self._entries = {}

    def is_live(self, fault: Fault) -> bool:
        """Tell whether ``fault`` was shown to be live, and neither it nor its proof nor the kernel has changed."""
        entry = self._entries.get(fault.name, {})
        wanted = self._about(fault) | {"shown": Shown.LIVE.value}
        return all(entry.get(key) == value for key, value in wanted.items())

    def keep(self, fault: Fault, seen: Seen) -> None:
        """Keep ``seen``."""
        self._entries[fault.name] = asdict(seen) | {"shown": seen.shown.value} | self._about(fault)
        write_atomically(self._file, json.dumps(self._entries, indent=1).encode())

    def _about(self, fault: Fault) -> dict[str, str]:
        proof = sha256(repr(fault.proof).encode()).hexdigest()[:16]
        return {"kernel": self._base, "fault": fault.digest, "proof": proof}


def show(faults: Sequence[Fault], kernel: KernelImage, cache: Path) -> Iterator[tuple[Fault, Seen]]:
    """Yield each of ``faults`` with what its program printed on ``kernel``. Raises InputError for what cannot boot."""
    if not faults:
        return
    with scratch_directory(cache) as scratch:
        source = scratch / "proofs.c"
        source.write_text(program_text(faults), encoding="utf-8")
        program = build_static(source, kernel.architecture)
        machines = _Machines(kernel, program, scratch)
        running = [fault for fault in faults if not fault.proof.words]
        yield from _show_running(running, machines)
        booted = [fault for fault in faults if fault.proof.words]
        with ThreadPoolExecutor(_MACHINES) as pool:
            yield from zip(booted, pool.map(lambda fault: _show_booted(fault, machines), booted), strict=True)


def program_text(faults: Iterable[Fault]) -> str:
    """Return the C source of the init that has the programs of ``faults``."""
    text = _MACHINE.read_text(encoding="utf-8")
    table = []
    for fault in faults:
        name = f"proof_{constant(fault.name)}"
        body = "".join(f"\t{line}\n" for line in fault.proof.program.splitlines())
        text += f"\nstatic void {name}(void)\n{{\n{body}}}\n"
        table.append(f'\t{{ "{fault.name}", {name} }},\n')
    return f"{text}\nconst struct proof proofs[] = {{\n{''.join(table)}\t{{ NULL, NULL }},\n}};\n"


def _show_running(faults: Sequence[Fault], machines: "_Machines") -> Iterator[tuple[Fault, Seen]]:
    """Switch each fault on while the machine runs; where one ends the machine, the next ones get a new one."""
    left = list(faults)
    while left:
        lists = [f"{fault.name} {HEALTHY} {HEALTHY} {fault.name}" for fault in left]
        printed = machines.run(lists, _WORDS)
        done = _runs(printed)
        told = [fault for fault in left if _is_over(done.get(fault.name, ()))]
        # in a new machine it leaves no room for its own second run
        told = told or [fault for fault in left[:1] if fault.name in done]
        for fault in told:
            yield fault, judge(done[fault.name])
        if not told:
            raise InputError(f"{machines.kernel.path}: no proof ran: {printed[-300:]!r}")
        left = [fault for fault in left if fault not in told]


def _is_over(runs: Sequence[tuple[str, str]]) -> bool:
    """Tell whether all three ``runs`` of a proof are there, or one of them ended the machine."""
    return len(runs) > 2 or any(printed.endswith(_ENDED) for _on, printed in runs)  # noqa: PLR2004


def _show_booted(fault: Fault, machines: "_Machines") -> Seen:
    """Compare a boot of the healthy kernel with one that has the fault, both with the words of its proof."""
    outcomes = []
    for choice in (HEALTHY, fault.name):
        words = f"{fault.proof.words} seeded_fault={choice} {_WORDS}"
        printed = machines.run([f"{fault.name} {_AS_BOOTED}"], words)
        outcomes += _runs(printed).get(fault.name, [(choice, "the machine did not come up\n")])
    (_, healthy), (_, seeded) = outcomes
    return judge([("", healthy), ("", healthy), ("", seeded)])


def _runs(printed: str) -> dict[str, list[tuple[str, str]]]:
    """Return name -> what was on and what was printed, of each run; the last one may have ended the machine."""
    runs: dict[str, list[tuple[str, str]]] = {}
    ends = 0
    for match in _RUN.finditer(printed):
        runs.setdefault(match[1], []).append((match[2], _clean(match[3])))
        ends = match.end()
    if begun := _BEGUN.search(printed, ends):
        runs.setdefault(begun[1], []).append((begun[2], f"{_clean(printed[begun.end() :])[:200]}{_ENDED}"))
    return runs


def _clean(printed: str) -> str:
    """Return what the program printed: neither lines of the kernel nor carriage returns."""
    lines = (line.strip() for line in printed.splitlines())
    return "".join(f"{line}\n" for line in lines if line and not _OF_THE_KERNEL.fullmatch(line))


def judge(runs: Sequence[tuple[str, str]]) -> Seen:
    """Return what two healthy runs and one with the fault show; fewer ones ended the machine before."""
    healthy, *more = [text for _on, text in runs]
    again, seeded = more if len(more) > 1 else (healthy, more[0] if more else healthy)
    if healthy != again or len(more) < 2:  # noqa: PLR2004 - two healthy runs and one with the fault
        return Seen(Shown.UNSTEADY, healthy, again)
    return Seen(Shown.LIVE if seeded != healthy else Shown.NOT_LIVE, healthy, seeded)


@dataclass(frozen=True)
class _Machines:
    """Throwaway machines of one kernel, with one program as their init."""

    kernel: KernelImage
    program: Path
    scratch: Path

    def run(self, lists: Sequence[str], words: str) -> str:
        """Boot a machine for these runs and return what is on its console when it has ended."""
        board = find_board(self.kernel.architecture)
        machine = VirtualMachine(self.kernel, board.default_cpu, _NODES, words, cpus=len(_NODES))
        with self._files(lists) as (initramfs, disk):
            drive = f"file={disk},format=raw,if=none,id=disk,cache=unsafe"
            devices = ("-drive", drive, "-device", f"virtio-blk-{board.virtio_bus},drive=disk")
            command = machine.qemu_command(initramfs, devices)
            with (self.scratch / f"{disk.stem}.console").open("w+b") as console:
                _run_watched(command, console)
                console.seek(0)
                return console.read().decode(errors="replace")

    @contextmanager
    def _files(self, lists: Sequence[str]) -> Iterator[tuple[Path, Path]]:
        """Yield initramfs and an empty ext4 for one machine."""
        content = "".join(f"{line}\n" for line in lists).encode()
        digest = sha256(content).hexdigest()[:16]
        initramfs = self.scratch / f"{digest}.cpio"
        disk = self.scratch / f"{digest}-{id(content)}.ext4"
        initramfs.write_bytes(_archive(self.program.read_bytes(), content))
        with disk.open("wb") as stream:
            stream.truncate(_DISK)
        made = subprocess.run(["/sbin/mke2fs", "-q", "-F", "-t", "ext4", str(disk)], capture_output=True, check=False)
        if made.returncode != 0:
            raise InputError(f"mke2fs makes no file system: {made.stderr.decode(errors='replace').strip()[:200]}")
        try:
            yield initramfs, disk
        finally:
            disk.unlink()


def _run_watched(command: Sequence[str], console: BinaryIO) -> None:
    """Run the emulator, with its output to ``console``, until it ends or says nothing for too long."""
    with Child(command, output=console) as child:
        size, heard = 0, time.monotonic()
        while not child.has_ended and time.monotonic() - heard < _SILENT_SECONDS:
            time.sleep(_POLL_SECONDS)
            if (now := os.fstat(console.fileno()).st_size) != size:
                size, heard = now, time.monotonic()


def _archive(program: bytes, proofs: bytes) -> bytes:
    entries: Mapping[str, Entry] = {
        "dev": Entry("dev", S_IFDIR | 0o755),
        # the kernel opens it for init before anything could be mounted
        "console": Entry("dev/console", S_IFCHR | 0o600, device=(5, 1)),
        "init": Entry("init", S_IFREG | 0o755, program),
        "proofs": Entry("proofs", S_IFREG | 0o644, proofs),
    }
    return pack(list(entries.values()))


if __name__ == "__main__":
    sys.exit(main())
