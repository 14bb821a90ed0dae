"""Memory of a process that another one reads and writes: process_vm_readv(2), process_vm_writev(2), /proc/PID/mem."""

import errno
import mmap
import os

from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.places import ordinary_memory
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor, Refused

#: Documentation/admin-guide/LSM/Yama.rst
_PTRACE_SCOPE, _NOBODY_MAY = "proc/sys/kernel/yama/ptrace_scope", "3"


def read_of_another(live: Live, reader: Actor, process: int, local: bytes, remote: bytes) -> int:
    """Return the bytes that process_vm_readv(2) read of ``process``; one range of each, as the system call takes them.

    Raises Refused, and CannotRun where the machine forbids it to all or does not have it.
    """
    try:
        return reader.call("process_vm_readv", process, local, 1, remote, 1, 0)
    except Refused as refusal:
        if refusal.errno == errno.ENOSYS:
            raise CannotRun("this kernel has no CONFIG_CROSS_MEMORY_ATTACH") from refusal
        if refusal.errno == errno.EPERM and (live.host.read(_PTRACE_SCOPE) or "").strip() == _NOBODY_MAY:
            raise CannotRun(f"/{_PTRACE_SCOPE} is {_NOBODY_MAY}: nobody may read another's memory") from refusal
        raise


def word_read_by(live: Live, reader: Actor, memory: Memory, place: int) -> int:
    """Return the word at ``place`` in ``memory`` that ``reader``, which may be its own process, reads from outside.

    Raises as ``read_of_another`` does.
    """
    buffer = reader.mmap(live.base_page, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    local, remote = (reader.uapi.pack("2Q", address, WORD) for address in (buffer, memory.address + place))
    live.expect("bytes read", WORD, read_of_another(live, reader, memory.actor.pid, local, remote))
    return reader.read(buffer)


def write_from_outside(live: Live, writer: Actor, memory: Memory, offset: int, new: bytes, *, by_file: bool) -> None:
    """Have ``writer``, which may be its own process, write ``memory``, by /proc/PID/mem or a call. Raises Refused."""
    if by_file:
        written = write_to_file(live, writer, memory, offset, new)
    else:
        at = ordinary_memory(live, writer, 1).address
        padded = new.ljust(-(-len(new) // WORD) * WORD, b"\0")
        for number, word in enumerate(live.host.uapi.unpack(f"{len(padded) // WORD}Q", padded)):
            writer.write(at + number * WORD, word)
        local, remote = (live.host.uapi.pack("2Q", one, len(new)) for one in (at, memory.address + offset))
        written = writer.call("process_vm_writev", memory.actor.pid, local, 1, remote, 1, 0)
    live.expect("bytes written", len(new), written)


def write_to_file(live: Live, writer: Actor, memory: Memory, offset: int, new: bytes) -> int:
    """Have ``writer`` write to /proc/PID/mem of the owner of ``memory``; return how many bytes. Raises Refused."""
    file = live.open(writer, f"/proc/{memory.actor.pid}/mem", os.O_RDWR)
    written = writer.call("pwrite64", file, new, len(new), memory.address + offset)
    writer.call("close", file)
    return written
