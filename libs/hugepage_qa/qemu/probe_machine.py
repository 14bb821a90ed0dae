"""Boot one probe machine: a kernel and a command line in, its files out, which it prints on its serial port."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.process.child import PIPE, Child
from hugepage_qa.qemu.accelerator import choose_accelerator
from hugepage_qa.qemu.boards import Board, find_cpu
from hugepage_qa.qemu.emulator import OUTPUT_LIMIT, Emulator, Stopped
from hugepage_qa.qemu.initramfs import probe_initramfs
from hugepage_qa.qemu.installed_emulator import NotOffered, find_emulator
from hugepage_qa.qemu.lost_machine import PANIC_SECONDS, Loss, MachineLost, find_panic, has_panicked, is_stuck
from hugepage_qa.qemu.packages import static_busybox
from hugepage_qa.qemu.unpacked_kernel import entered_directly
from hugepage_qa.qemu.virtual_machine import VirtualMachine
from hugepage_qa.sizes import GIB

PREFIX = "@hugepage-qa "
"""What starts each line of init.sh; firmware and kernel print no such thing."""

# CSI sequences, and the two-character ones; firmware clears and sizes the terminal with them
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\^_a-z])")

_SHOWN = 100
"""Characters of a broken line that a message shows."""


class GarbledCapture(Exception):
    """The serial log does not hold one whole capture; the message says what is wrong with it."""


def _records(text: str) -> Iterator[dict[str, object]]:
    for line in _ANSI.sub("", text).split("\n"):
        if not line.startswith(PREFIX):
            continue
        try:
            record = json.loads(line.removeprefix(PREFIX).rstrip("\r"))
        except ValueError as error:
            raise GarbledCapture(f"not JSON ({error}): {_shortened(line)}") from error
        if not isinstance(record, dict):
            raise GarbledCapture(f"not an object: {_shortened(line)}")
        yield record


def _shortened(line: str) -> str:
    return repr(line if len(line) <= _SHOWN else f"{line[: _SHOWN - 30]} ... {line[-30:]}")


def _file(record: dict[str, object]) -> tuple[str, str]:
    path, text = record.get("path"), record.get("text")
    if len(record) != 2 or not isinstance(path, str) or not isinstance(text, str):  # noqa: PLR2004
        raise GarbledCapture(f"expected a path and a text: {_shortened(repr(record))}")
    if not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise GarbledCapture(f"expected a relative path: {path!r}")
    return path, text


def parse_capture(text: str) -> CapturedTree:
    """Return the files that init.sh printed into the serial log ``text``.

    Around them may be firmware output, kernel messages, CR LF and terminal control sequences. Raises
    GarbledCapture for a record that is broken, comes twice or is missing: half a capture would make
    a healthy kernel look as if it had no huge pages.
    """
    files: dict[str, str] = {}
    records = _records(text)
    for record in records:
        if "end" in record:
            if record != {"end": len(files)} or not files:
                raise GarbledCapture(f"end marker {record!r} after {len(files)} files")
            break
        path, content = _file(record)
        if path in files:
            raise GarbledCapture(f"{path} was printed twice")
        files[path] = content
    else:
        raise GarbledCapture(f"no end marker after {len(files)} files")
    for record in records:
        raise GarbledCapture(f"something follows the end marker: {_shortened(repr(record))}")
    return CapturedTree(files)


LONGEST = 5
"""Deadlines that a machine may take which goes on printing: what an emulated machine emulates is that slow."""
_LOOK_SECONDS = 0.2
"""Between two looks at what a machine has printed."""
_LOOKED_AT = 64 << 10
"""Bytes of it: more than an emulated machine prints between two looks."""


@dataclass(frozen=True)
class Boot:
    """What came of a machine that has shown itself and powered off."""

    tree: CapturedTree
    serial: str
    seconds: float
    qemu_command: tuple[str, ...]


def _await_end(emulator: Emulator, deadline: float) -> bool:
    """Wait until a machine has powered off, at most ``deadline`` seconds after its last sign of life; tell if it did.

    Few seconds are left to it after a panic, and what it prints when it is stuck is no such sign.
    """
    began = time.monotonic()
    end = began + deadline
    seen = 0
    has_panic = has_stuck = False
    while not emulator.wait(max(0.0, min(_LOOK_SECONDS, end - time.monotonic()))):
        now = time.monotonic()
        if now > end or emulator.printed > OUTPUT_LIMIT:
            return False
        if emulator.printed > seen and not has_panic:
            seen = emulator.printed
            news = emulator.printed_last(_LOOKED_AT)
            has_panic = has_panicked(news)
            has_stuck = has_stuck or is_stuck(news)
            if has_panic:
                end = now + PANIC_SECONDS
            elif not has_stuck:
                end = min(began + LONGEST * deadline, now + deadline)
    return True


class Lab:
    """Boots probe machines; any number of threads may call ``boot`` at once."""

    def __init__(
        self,
        cache: Path,
        *,
        deadline: float = 120.0,
        report: Callable[[str], None] = lambda _: None,
        accelerator: str | None = None,
    ) -> None:
        """Keep what is built below ``cache`` and give each boot ``deadline`` seconds from its last sign of life.

        ``report`` takes lines about what takes long (downloads, a hanging accelerator). ``accelerator`` replaces
        the proven choice; ``tcg`` is always safe.
        """
        self._cache = cache
        self._deadline = deadline
        self._report = report
        # also keeps two threads from trying an accelerator at once
        self._lock = threading.RLock()
        self._running: set[Emulator] = set()
        self._accelerators: dict[tuple[str, str], str | NotOffered] = {}
        self._initramfs: dict[str, Path] = {}
        self._forced = accelerator

    def stop(self) -> None:
        """End every machine that runs now: their ``boot`` raises Stopped. The lab can boot others after that."""
        while self._running:
            with suppress(KeyError):  # it has ended meanwhile
                self._running.pop().kill()

    def boot(self, machine: VirtualMachine, patience: float = 1.0) -> Boot:
        """Boot ``machine``, under the accelerator that is proven, and wait for its end.

        ``patience`` is the part of the deadline that it is given. Raises InputError for what can never boot,
        MachineLost where it does not show itself and power off, and Stopped after ``stop``.
        """
        machine.check()
        return self._boot(replace(machine, accelerator=self.accelerator(machine)), patience * self._deadline)

    def accelerator(self, machine: VirtualMachine) -> str:
        """Return the accelerator that ``boot`` would take for ``machine``; errors as in ``boot``."""
        if self._forced:
            return self._forced
        board, cpu = machine.board, find_cpu(machine.board, machine.cpu)
        key = (board.architecture, cpu.name)

        def reaches_init(accelerator: str, deadline: float) -> bool:
            try:
                self._boot(VirtualMachine(machine.kernel, cpu.name, (GIB,), accelerator=accelerator), deadline)
            except MachineLost:
                return False
            return True

        with self._lock:
            if key not in self._accelerators:
                emulator = find_emulator(board)
                try:
                    self._accelerators[key] = choose_accelerator(
                        board, cpu, emulator, self._cache, reaches_init, report=self._report
                    )
                except NotOffered as error:
                    # it would take as long each time
                    self._accelerators[key] = error
            found = self._accelerators[key]
        if isinstance(found, NotOffered):
            raise found
        return found

    def _boot(self, machine: VirtualMachine, deadline: float) -> Boot:
        entered = entered_directly(machine, self._cache)
        command = entered.qemu_command(self._find_initramfs(machine.board))
        began = time.monotonic()
        with Emulator(Child(command, output=PIPE, errors=PIPE)) as emulator:
            self._running.add(emulator)
            try:
                has_ended = _await_end(emulator, deadline)
                if emulator not in self._running:
                    raise Stopped
            finally:
                self._running.discard(emulator)
            seconds = time.monotonic() - began
            return Boot(_read_capture(emulator, has_ended, seconds), emulator.serial, seconds, command)

    def _find_initramfs(self, board: Board) -> Path:
        with self._lock:
            if board.architecture not in self._initramfs:
                busybox = static_busybox(board.architecture, self._cache, report=self._report)
                self._initramfs[board.architecture] = probe_initramfs(busybox, self._cache)
            return self._initramfs[board.architecture]


def _read_capture(emulator: Emulator, has_ended: bool, seconds: float) -> CapturedTree:
    """Return what a machine has shown of itself in ``seconds``; raises MachineLost unless that is all and it ended."""
    serial = emulator.serial
    tree, garbled = None, ""
    try:
        tree = parse_capture(serial)
    except GarbledCapture as error:
        garbled = str(error)
    panicked = find_panic(serial, emulator.starvation.told)
    if panicked and (tree is None or emulator.exit_code != 0):
        raise panicked
    if emulator.printed > OUTPUT_LIMIT:
        raise MachineLost(Loss.GARBLED, f"printed more than {OUTPUT_LIMIT} bytes", serial)
    if not has_ended and emulator.starvation.told and not emulator.starvation.lockup:
        raise MachineLost(Loss.STARVED, emulator.starvation.told, serial)
    if not has_ended:
        raise MachineLost(Loss.HUNG, f"no power-off within {seconds:.1f} s: {_last_lines(serial)}", serial)
    if emulator.exit_code != 0:
        raise MachineLost(Loss.EMULATOR_ENDED, emulator.why_it_ended, serial)
    if tree is None:
        raise MachineLost(Loss.GARBLED, f"{garbled}; last: {_last_lines(serial, 1)}", serial)
    return tree


def _last_lines(serial: str, count: int = 3) -> str:
    lines = [line.strip() for line in serial.splitlines() if line.strip()]
    return " | ".join(line[:200] for line in lines[-count:]) or "nothing was printed"
