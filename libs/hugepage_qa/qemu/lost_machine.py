"""How a machine is lost: what its console and the end of its emulator say.

A machine that panics, a line that is cut and an answer that never comes are told apart: the first is what the kernel
did, the others may be what the host did.
"""

import enum
import re

_PANIC = re.compile(r"Kernel panic - not syncing[^\r\n]*")
#: of RCU, and of the watchdogs of CPUs
_LOCKUP = re.compile(r"self-detected stall|detected (?:expedited )?stalls on|soft lockup|hard LOCKUP")
#: of khungtaskd: others may still go on
_HUNG_TASK = re.compile(r"blocked for more than \d+ seconds")

#: softlockup_panic, hardlockup_panic, panic_on_rcu_stall, hung_task_panic (kernel/watchdog.c, kernel/rcu, hung_task.c)
_BY_A_WATCHDOG = re.compile(r"softlockup|hard LOCKUP|Hard LOCKUP|RCU Stall|hung_task")

PANIC_SECONDS = 5.0
"""Seconds that a machine has left after its panic message: for the back trace. panic=-1 ends it before that,
except for a panic that comes before the kernel has read its command line."""

# check_timer() in arch/x86/kernel/apic/io_apic.c; a machine whose words undo no_timer_check can still get there
_NO_TIMER = re.compile(r"timer doesn't work")
_EFLAGS = re.compile(r"\bEFLAGS: (?P<flags>[0-9a-f]{8})\b")
_EFLAGS_BITS = 22
_BREAKPOINT = re.compile(r"\bOops: int3\b.*?\bCode:(?: [0-9a-f]{2})* (?P<byte>[0-9a-f]{2}) <", re.DOTALL)
_INT3 = "cc"


class Loss(enum.Enum):
    """How a machine was lost."""

    PANICKED = "the kernel panicked"
    #: a panic that shows that a device or a register did what no real one does
    EMULATION_BROKE = "the emulation broke"
    LOCKED_UP = "the kernel locked up"
    #: the watchdogs of the kernel complained, and the emulator was not let run
    STARVED = "the machine was starved"
    AGENT_ENDED = "the agent in the machine ended"
    EMULATOR_ENDED = "the emulator ended"
    NO_ANSWER = "no answer came"
    #: a boot was not over in time
    HUNG = "hung"
    #: of what it was to show of itself, there is no whole capture
    GARBLED = "garbled"


class MachineLost(Exception):
    """The machine can be asked nothing more; ``serial`` is what it has printed on its console.

    ``evidence`` is that, too, or what tells more of what was done to it.
    """

    def __init__(self, loss: Loss, detail: str, serial: str) -> None:
        self.loss = loss
        self.serial = self.evidence = serial
        super().__init__(f"{loss.value}: {detail}")


def has_panicked(serial: str) -> bool:
    """Tell whether the kernel says so; the line may not be whole yet, and a back trace follows."""
    return _PANIC.search(serial) is not None


def find_panic(serial: str, starved: str) -> MachineLost | None:
    """Return how the machine was lost that panicked, by its kernel's fault or the emulator's; None without a panic.

    ``starved`` tells how it was kept from running, if it was: then a lockup is no reason.
    """
    panic = _PANIC.search(serial)
    if panic is None:
        return None
    if starved and _BY_A_WATCHDOG.search(panic[0]):
        return MachineLost(Loss.STARVED, f"{starved}; {panic[0].strip()}", serial)
    broke = _broken_emulation(panic[0].strip(), serial)
    return MachineLost(Loss.EMULATION_BROKE if broke else Loss.PANICKED, broke or panic[0].strip(), serial)


def find_lockup(serial: str) -> str:
    """Return the line in which the kernel tells of a lockup; empty without one."""
    if not _LOCKUP.search(serial):
        return ""
    return next((line.strip() for line in serial.splitlines() if _LOCKUP.search(line)), "")


def is_stuck(serial: str) -> bool:
    """Tell whether the kernel says that a CPU or a task goes on no more: what it prints then is no sign of life."""
    return bool(_LOCKUP.search(serial) or _HUNG_TASK.search(serial))


def _broken_emulation(panic: str, serial: str) -> str:
    """Return what shows that ``panic`` is the emulator's fault, or nothing.

    QEMU 7.2 was seen to set bits 22 to 31 of EFLAGS, which read as 0 (Intel SDM volume 1, 3.4.3), now and then at a
    CMPXCHG16B in the allocator of Linux 6.12, which then faults. With several CPUs it was seen to trap at an int3 which
    the kernel had replaced before (jump labels; arch/x86/kernel/alternative.c smp_text_poke_batch_finish() waits for
    all CPUs): the byte before the instruction pointer, which the kernel prints, is another one then.
    """
    if _NO_TIMER.search(panic):
        return f"no interrupt of the emulated timer came in time: {panic}"
    flags = (found["flags"] for found in _EFLAGS.finditer(serial))
    impossible = next((text for text in flags if int(text, 16) >> _EFLAGS_BITS), None)
    if impossible:
        return f"EFLAGS {impossible} in a panic has bits that no processor sets"
    breakpoint_ = _BREAKPOINT.search(serial)
    if breakpoint_ and breakpoint_["byte"] != _INT3:
        return f"a trap for int3 was taken where {breakpoint_['byte']} stands: {panic}"
    return ""
