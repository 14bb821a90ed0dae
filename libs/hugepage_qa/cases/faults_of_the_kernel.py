"""Memory that the kernel touches for a process, in a system call, while a program handles its faults."""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.thp_memory import map_aligned
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.cases.userfaultfd_messages import PageFault, Told
from hugepage_qa.kernel.uapi import MADV_POPULATE_READ, MADV_POPULATE_WRITE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.actor_link import Argument
from hugepage_qa.process.actor_threads import Came

_VALUE = 7


@dataclass(frozen=True)
class _Access:
    """A system call in which the kernel reads or writes memory, and what it is called with."""

    name: str
    writes: bool
    arguments: Callable[[Live, Memory], tuple[Argument, ...]]

    def start(self, live: Live, memory: Memory) -> None:
        """Have a thread make the call, again and again until it is stopped."""
        memory.actor.threads.attempt(self.name, *self.arguments(live, memory))


def _from_zeroes(live: Live, memory: Memory) -> tuple[Argument, ...]:
    return live.open(memory.actor, "/dev/zero", os.O_RDWR), memory.address, WORD, 0


def _to_a_file(_live: Live, memory: Memory) -> tuple[Argument, ...]:
    return memory.actor.call("memfd_create", "written", 0), memory.address, WORD, 0


def _by_pid(live: Live, memory: Memory) -> tuple[Argument, ...]:
    uapi, other = memory.actor.uapi, map_aligned(live, 1, live.base_page, actor=memory.actor)
    ours, theirs = (uapi.pack("2Q", address, WORD) for address in (other.address, memory.address))
    return memory.actor.pid, ours, 1, theirs, 1, 0


def _populated(advice: int) -> Callable[[Live, Memory], tuple[Argument, ...]]:
    return lambda _live, memory: (memory.address, memory.size, advice)


#: copies by the processor that faults, and pages that are looked up and held
_ACCESSES = (
    _Access("pread64", True, _from_zeroes),
    _Access("pwrite64", False, _to_a_file),
    _Access("process_vm_readv", False, _by_pid),
    _Access("process_vm_writev", True, _by_pid),
    _Access("madvise", False, _populated(MADV_POPULATE_READ)),
    _Access("madvise", True, _populated(MADV_POPULATE_WRITE)),
)


def expect_kernel_to_fault(live: Live, make: Callable[[], Memory], mode: Mode, feature: Feature) -> None:
    """Expect a program to be told of faults of the kernel if it may, and the kernel's call to be EFAULT otherwise.

    ``make`` makes memory of one page; of one that is registered for missing pages it is missing, of one for minor
    faults its file alone has it, and a page to be protected is there.
    """
    for name, waits, of_kernel in (
        ("UFFD_USER_MODE_ONLY", True, False),
        ("UFFD_USER_MODE_ONLY, UFFD_FEATURE_SIGBUS", False, False),
        ("UFFD_FEATURE_SIGBUS", False, True),
    ):
        with live.about(name):
            fault = _registered(make(), mode, feature, waits=waits, of_kernel=of_kernel)
            _expect_refused(live, *fault, mode, waits=waits)
    for access in _ACCESSES:
        with live.about(f"{access.name}, writes {access.writes}"):
            fault = _registered(make(), mode, feature, waits=True, of_kernel=True)
            _expect_told(live, *fault, mode, access)


def expect_kernel_refused(live: Live, memory: Memory, fault: Userfault) -> None:
    """Expect the kernel's calls on missing ``memory`` to be EFAULT, and its faults to be told to nobody."""
    for access in _ACCESSES:
        with live.about(f"{access.name}, writes {access.writes}"):
            access.start(live, memory)
            _expect_came(live, memory.actor, (Came.REFUSED, {errno.EFAULT}))
            fault.expect_nothing_told(live)


def _registered(
    memory: Memory, mode: Mode, feature: Feature, *, waits: bool, of_kernel: bool
) -> tuple[Memory, Userfault]:
    fault = Userfault(memory, mode, feature, waits=waits, of_kernel=of_kernel)
    if mode is Mode.WRITE_PROTECTED:
        fault.write_protect()
    elif mode is Mode.READ_WRITE_PROTECTED:
        fault.read_write_protect()
    return memory, fault


def _expect_refused(live: Live, memory: Memory, fault: Userfault, mode: Mode, *, waits: bool) -> None:
    """Expect each call that faults to be refused, and the process itself to be told of its own fault all the same."""
    for access in _ACCESSES:
        faults = access.writes or mode is not Mode.WRITE_PROTECTED
        with live.about(f"{access.name}, writes {access.writes}"):
            access.start(live, memory)
            _expect_came(live, memory.actor, (Came.REFUSED, {errno.EFAULT}) if faults else (Came.DONE, set()))
            if waits:
                fault.expect_nothing_told(live)
    if mode in (Mode.MISSING, Mode.MINOR):
        live.expect("base pages that are there", 0, len(memory.present_frames(1)))
    if waits:
        memory.actor.threads.use(memory.address, WORD, WORD)
        live.expect("what the process is told of", _told(mode, writes=True), fault.await_fault(live).told)
        _handle(live, memory, fault, mode)
        _expect_came(live, memory.actor, (Came.DONE, set()))
    memory.actor.end()


def _expect_told(live: Live, memory: Memory, fault: Userfault, mode: Mode, access: _Access) -> None:
    access.start(live, memory)
    if access.writes or mode is not Mode.WRITE_PROTECTED:
        told = PageFault(_told(mode, writes=access.writes), memory.address)
        live.expect("what is told of the fault", told, fault.await_fault(live))
        _handle(live, memory, fault, mode)
    _expect_came(live, memory.actor, (Came.DONE, set()))
    fault.expect_nothing_told(live)
    memory.actor.end()


def _told(mode: Mode, *, writes: bool) -> Told:
    by_mode = {
        Mode.MISSING: Told(0),
        Mode.WRITE_PROTECTED: Told.WRITE_PROTECTED,
        Mode.MINOR: Told.MINOR,
        Mode.READ_WRITE_PROTECTED: Told.READ_WRITE_PROTECTED,
    }
    return by_mode[mode] | (Told.WRITE if writes else Told(0))


def _handle(live: Live, memory: Memory, fault: Userfault, mode: Mode) -> None:
    match mode:
        case Mode.MISSING:
            source = map_aligned(live, 1, memory.size, actor=memory.actor)
            source.fill(_VALUE)
            live.expect("bytes copied", memory.size, fault.copy(source))
        case Mode.WRITE_PROTECTED:
            fault.write_protect(on=False)
        case Mode.READ_WRITE_PROTECTED:
            fault.read_write_protect(on=False)
        case _:
            fault.go_on()


def _expect_came(live: Live, actor: Actor, expected: tuple[Came, set[int]]) -> None:
    """Expect the one thread of ``actor`` to have ended so, and the errors of its calls to be these.

    Raises CannotRun where the kernel does not have the call.
    """
    (found,) = actor.threads.stop(0)
    if found.errors == {errno.ENOSYS}:  # process_vm_readv(2) and process_vm_writev(2): madvise(2) is always there
        raise CannotRun("this kernel has no CONFIG_CROSS_MEMORY_ATTACH")
    if (found.came, set(found.errors)) != expected:
        live.fail("what came of it, and its errors", expected, (found.came, set(found.errors)))  # it may be stuck
