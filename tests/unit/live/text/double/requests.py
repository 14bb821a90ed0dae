"""The requests to an actor that a double answers: those that the cases of tests/text make."""

import errno
import os
from typing import TYPE_CHECKING

from tests.unit.live.text.double.behaviour import Wrong
from tests.unit.live.text.double.files import PMD, VMSTAT
from tests.unit.live.text.double.khugepaged import is_huge_at_fault
from tests.unit.live.text.double.processes import Area, Process

if TYPE_CHECKING:
    from tests.unit.live.text.double.machine import TextDouble

_ANONYMOUS_START = 0x7E0000001000
_HUGEPAGE, _NOHUGEPAGE = 14, 15
#: of any text, as it was linked
CHECKSUM = 1
_FIXED = 0x10


def answer(double: "TextDouble", process: Process, request: str) -> str:
    """Return the answer of the actor ``process``. Raises ValueError for a request that no case makes."""
    verb, *words = request.split()
    if verb == "call":
        name, *arguments = words
        return f"ok {_call(double, process, name, arguments)}"
    numbers = [int(word) for word in words]
    match verb:
        case "text":
            return f"ok {process.text.start if process.text else 0}"
        case "run":
            double.fault(process)
            return f"ok {int(bool(process.text and process.text.file.is_damaged))}"
        case "sum":
            return f"ok {CHECKSUM + int(bool(process.text and process.text.file.has_other_bytes))}"
        case "fill":
            _fill(double, process.area(numbers[0]))
            return "ok 0"
        case "check":
            return "ok 0"
    raise ValueError(f"the double does not know {request!r}")


def _fill(double: "TextDouble", area: Area) -> None:
    if not area.is_filled:
        area.is_filled = True
        area.is_huge = is_huge_at_fault(double, area)
        double.files.count(VMSTAT, int(area.is_huge))
        area.was_data = not area.prot & 4


def _call(double: "TextDouble", process: Process, name: str, words: list[str]) -> int:
    if name == "openat":
        return _open(double, process, bytes.fromhex(words[1][1:]).rstrip(b"\0").decode(), int(words[2]))
    numbers = [int(word) for word in words]
    match name:
        case "mmap":
            return _map(process, numbers)
        case "mprotect":
            process.area(numbers[0]).prot = numbers[2]
        case "madvise":
            _advise(double, process, numbers[0], numbers[2])
        case "prctl":
            process.is_disabled = True
        case "fadvise64":
            double.drop([process.files[numbers[0]]], takes=Wrong.EVICTS_MAPPED, leaves=Wrong.NOT_EVICTED)
        case "close":
            process.files[numbers[0]].writers -= numbers[0] in process.writes
        case _:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return 0


def _map(process: Process, numbers: list[int]) -> int:
    address, length, prot, flags, *_file = numbers
    if flags & _FIXED:
        # what was mapped there was there to be replaced
        process.areas.remove(process.area(address))
    else:
        process.mapped += 1
        address = _ANONYMOUS_START + 16 * PMD * process.mapped
    process.areas.append(Area(address, length, prot))
    return address


def _advise(double: "TextDouble", process: Process, address: int, advice: int) -> None:
    if process.text and process.text.start <= address < process.text.end:
        process.text.is_advised_against = advice == _NOHUGEPAGE
    else:
        process.area(address).advice = advice
        process.is_listed |= advice == _HUGEPAGE and Wrong.LISTS_NOBODY not in double.wrong


def _open(double: "TextDouble", process: Process, path: str, flags: int) -> int:
    descriptor = 3 + len(process.files)
    file = process.files[descriptor] = double.cache[path]
    if flags & os.O_ACCMODE != os.O_RDONLY:
        process.writes.add(descriptor)
        file.writers += 1
        if Wrong.KEEPS_FOR_WRITERS not in double.wrong:
            double.make_small(file)
    return descriptor
