"""The requests to an actor that a double answers: those that the cases of tests/text make."""

import errno
import os
import struct
from typing import TYPE_CHECKING

from tests.unit.cases.text.double.behaviour import Wrong
from tests.unit.cases.text.double.collapsing import MADV_HUGEPAGE, is_huge_at_fault
from tests.unit.cases.text.double.files import PMD
from tests.unit.cases.text.double.process_memory import Area, Process

from hugepage_qa.cases.hugetext import FLAGS
from hugepage_qa.cases.mapped_memory import PAGEMAP
from hugepage_qa.oracle.program_text import Kind

if TYPE_CHECKING:
    from tests.unit.cases.text.double.machine import TextDouble

_ANONYMOUS_START = 0x7E0000001000
#: descriptors beyond those of programs
_FRAMES, _PAGE_FLAGS, _SETTING = 1001, 1002, 1003
_PRESENT, _HEAD, _TAIL = 1 << 63, 1 << 15, 1 << 16
_PAGE, _WORD = 4096, 8
#: of any text, as it was linked
CHECKSUM = 1
_FIXED = 0x10


def answer(double: "TextDouble", process: Process, request: str) -> str:
    """Return the answer of the actor ``process``. Raises ValueError for a request that no case makes."""
    verb, *words = request.split()
    if verb == "call":
        name, *arguments = words
        if name in ("pread64", "mincore"):
            return _answer_with_buffer(process, name, arguments)
        try:
            return f"ok {_call(double, process, name, arguments)}"
        except OSError as error:
            return f"errno {error.errno}"
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
        double.files.count_event("thp_fault_alloc", int(area.is_huge))
        area.was_data = not area.prot & 4


def _call(double: "TextDouble", process: Process, name: str, words: list[str]) -> int:
    if name == "openat":
        return _open(double, process, bytes.fromhex(words[1][1:]).rstrip(b"\0").decode(), int(words[2]))
    if name == "setgroups":
        process.groups = (
            struct.unpack(f"{words[0]}I", bytes.fromhex(words[1].removeprefix("x"))) if int(words[0]) else ()
        )
        return 0
    numbers = [int(word) for word in words]
    match name:
        case "mmap":
            return _map(process, numbers)
        case "mprotect":
            process.area(numbers[0]).prot = numbers[2]
        case "madvise":
            _advise(double, process, numbers[0], numbers[2])
        case "setresgid" | "setresuid":
            process.is_root = False
        case "prctl":
            process.is_disabled = True
        case "fadvise64":
            double.drop([process.files[numbers[0]]], takes=Wrong.EVICTS_MAPPED, leaves=Wrong.NOT_EVICTED)
        case "close":
            process.files[numbers[0]].writers -= numbers[0] in process.writes
        case _:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return 0


def _answer_with_buffer(process: Process, name: str, words: list[str]) -> str:
    if name == "mincore":
        # all of it is in the page cache
        return f"ok 0 {'01' * (int(words[1]) // _PAGE)}"
    descriptor, size, first = int(words[0]), int(words[2]), int(words[3]) // _WORD
    pages = range(first, first + size // _WORD)
    # the frame of a page has the number of the page
    found = [_PRESENT | page if descriptor == _FRAMES else _flags(process, page) for page in pages]
    return f"ok {size} {struct.pack(f'={len(found)}Q', *found).hex()}"


def _flags(process: Process, frame: int) -> int:
    if process.text is None or not process.text.file.huge:
        return 0
    return _TAIL if frame % (PMD // _PAGE) else _HEAD


def _may_open(process: Process, *, is_written: bool, wrong: frozenset[Wrong]) -> bool:
    if process.is_root:
        return True
    if not is_written:
        return Wrong.READABLE_FOR_ROOT not in wrong
    return Wrong.WRITABLE_FOR_ALL in wrong or (0 in process.groups and Wrong.WRITABLE_FOR_GROUP in wrong)


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
        process.text.advice = advice
    else:
        process.area(address).advice = advice
    process.is_listed |= advice == MADV_HUGEPAGE and Wrong.LISTS_NOBODY not in double.wrong


def _open(double: "TextDouble", process: Process, path: str, flags: int) -> int:
    is_written = flags & os.O_ACCMODE != os.O_RDONLY
    if path in (PAGEMAP, FLAGS):
        return _FRAMES if path == PAGEMAP else _PAGE_FLAGS
    if path.startswith("/sys/"):
        if not _may_open(process, is_written=is_written, wrong=double.wrong):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return _SETTING
    descriptor = 3 + len(process.files)
    file = process.files[descriptor] = double.cache[path]
    if is_written:
        if file.elf.kind is not Kind.LIBRARY and double.is_mapped(file):
            raise OSError(errno.ETXTBSY, os.strerror(errno.ETXTBSY))
        process.writes.add(descriptor)
        file.writers += 1
        if Wrong.KEEPS_FOR_WRITERS not in double.wrong:
            double.make_small(file)
    return descriptor
