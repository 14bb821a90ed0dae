"""Memory that is said to be broken: madvise(2) MADV_SOFT_OFFLINE and MADV_HWPOISON, and what is out of use by it."""

import errno
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

from hugepage_qa.cases.debugfs import write_debugfs
from hugepage_qa.cases.frames import kpageflags
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME, PRESENT, Memory
from hugepage_qa.cases.thp_memory import mapped_huge
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.nodes import node_directories
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import MADV_SOFT_OFFLINE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.process.actor import Fault, Refused

Seen = TypeVar("Seen")
#: include/uapi/asm-generic/errno.h: a page is broken already
EHWPOISON: Final = 133
# include/uapi/asm-generic/siginfo.h
_BUS_MCEERR_AR = 4
# include/uapi/linux/kernel-page-flags.h
HWPOISON: Final = 1 << 19
_MEMORY, _SOFT_OFFLINE, _HARD_OFFLINE = "sys/devices/system/memory", "soft_offline_page", "hard_offline_page"
_MENDS = "unpoison-pfn"
#: mm/memory-failure.c memory_failure(), action_result(), action_page_types[]: what the log has of a page
ALREADY: Final = "already hardware poisoned"
ACTION: Final = "recovery action for "
_UNSPLIT = f"{ACTION}unsplit thp: "
# mm/memory-failure.c memory_failure(): an action that is told like others since 6.11 (b8b9488d50b7), for pages of a
# pool since a148a2040191, which older series have, too, and which tells whether the same base page broke before
#: what the log has of a base page that broke before
THE_SAME: Final = frozenset({ALREADY, f"{ACTION}already poisoned page: Failed"})
_STATS = "memory_failure"
_LOCKDOWN = "sys/kernel/security/lockdown"
_RECOVERY = "proc/sys/vm/memory_failure_recovery"
_BUSY_SECONDS, _PAUSE_SECONDS = 10.0, 0.1
_ATTEMPTS = 5


def break_page(live: Live, memory: Memory, offset: int, advice: int, *, early_kill: bool = False) -> None:
    """Tell the kernel that a base page at ``offset`` of ``memory`` is broken, or will be. Raises CannotRun, OSError.

    With ``early_kill`` processes are told at once, by default when they touch it.
    """
    # an administrator may have both otherwise: it is refused then (since Linux 6.11)
    live.set_knob_if_there("proc/sys/vm/enable_soft_offline", "1")
    live.set_knob_if_there("proc/sys/vm/memory_failure_early_kill", f"{early_kill:d}")
    survive_broken_memory(live)
    end = live.host.clock() + _BUSY_SECONDS
    try:
        while True:
            try:
                memory.actor.call("madvise", memory.address + offset, live.base_page, advice)
            except OSError as error:
                # somebody else has a hold of it for a moment; a page that is broken is so at the first time
                if error.errno != errno.EBUSY or advice != MADV_SOFT_OFFLINE or live.host.clock() > end:
                    raise
                live.host.pause(_PAUSE_SECONDS)
            else:
                return
    except OSError as error:
        if error.errno == errno.EINVAL:
            need_memory_failure(live)
        raise


def survive_broken_memory(live: Live) -> None:
    """Have the kernel go on when memory breaks, until the case ends: where an administrator says so it panics."""
    if (live.host.read(_RECOVERY) or "").strip() == "0":
        live.set_knob(_RECOVERY, "1")


def need_memory_failure(live: Live) -> None:
    """Raise CannotRun where the kernel knows of no broken memory."""
    if "HardwareCorrupted" not in read_meminfo(live.host):
        raise CannotRun("this kernel has no CONFIG_MEMORY_FAILURE")


def is_taken_out_of_use(live: Live, memory: Memory, offset: int) -> bool:
    """Tell the kernel that a base page at ``offset`` will break, and whether it was taken out of use.

    It is not while others move it for longer than ``break_page`` waits. Raises CannotRun, OSError.
    """
    try:
        break_page(live, memory, offset, MADV_SOFT_OFFLINE)
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.EIO):
            raise
        return False
    return True


def soft_offline(live: Live, frame: int) -> None:
    """Have a page frame taken out of use that will break, whoever has it. Raises CannotRun, OSError."""
    live.set_knob_if_there("proc/sys/vm/enable_soft_offline", "1")
    _write_offline(live, _SOFT_OFFLINE, frame)


def hard_offline(live: Live, frame: int) -> None:
    """Tell the kernel that a page frame is broken, whoever has it. Raises CannotRun, OSError."""
    survive_broken_memory(live)
    _write_offline(live, _HARD_OFFLINE, frame)


def break_in_use(
    live: Live,
    make: Callable[[], Memory],
    offset: int,
    look: Callable[[], Seen],
    tell: Callable[[Memory], object] | None = None,
) -> tuple[Memory, int, Seen]:
    """Tell the kernel that a base page at ``offset`` of what ``make`` gives is broken; below 0 it is from the end.

    ``tell`` does that, by default ``hard_offline``. Returned are the memory, the frame, and what ``look`` has seen
    before. A huge page that somebody else holds for a moment cannot be split: it is taken for whole again, and another
    one is broken; so it is where the base page had moved before its frame broke. Raises CannotRun, OSError.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        memory = make()
        # free, an unsplit one is others' as it is (mm/page_alloc.c free_pages_prepare() looks at order 0 alone)
        if live.host.has_others and mapped_huge(memory):
            need_mending(live)
        seen = look()
        place = offset % memory.length
        frame = memory.frame(place)
        live.host.skip_kernel_log()
        try:
            if tell:
                tell(memory)
            else:
                hard_offline(live, frame)
        except Refused:
            if not is_unsplit(told_of(live, frame)):
                raise
            memory.actor.end()
            mend(live, frame)
            if attempt == _ATTEMPTS:
                raise
        else:
            # what is told by its address breaks wherever it is
            if tell or not _has_moved(memory, place, frame):
                return memory, frame, seen
            memory.actor.end()
            with suppress(CannotRun, Refused):
                mend(live, frame)
    raise CannotRun("compaction moves the base page that is to break, again and again")


def _has_moved(memory: Memory, place: int, frame: int) -> bool:
    """Tell whether another frame than ``frame`` is at ``place``: compaction moves base pages."""
    (entry,) = memory.pagemap([memory.address + place])
    return bool(entry & PRESENT) and entry & FRAME != frame


def _write_offline(live: Live, name: str, frame: int) -> None:
    if name not in live.host.names(_MEMORY):
        raise CannotRun("this kernel has no CONFIG_MEMORY_FAILURE")
    live.host.write(f"{_MEMORY}/{name}", f"{frame * live.base_page:#x}")


def told_of(live: Live, frame: int) -> list[str]:
    """Return what the log has got of a frame: what was done for it, or that there was nothing left to do."""
    lines = (line.partition(f" {frame:#x}: ")[2] for line in live.host.new_kernel_log())
    return [line for line in lines if line == ALREADY or line.startswith(ACTION)]


def is_unsplit(told: Collection[str]) -> bool:
    """Tell whether all that ``told_of`` has returned is that a huge page could not be split: somebody had a hold of it.

    Reclaim and those who move pages have that for a moment. When it is free it would be handed out again as it is
    (mm/page_alloc.c free_pages_prepare()).
    """
    return [line.startswith(_UNSPLIT) for line in told] == [True]


def need_mending(live: Live) -> None:
    """Raise CannotRun where a page of a file must not be broken, since nothing but a reboot would mend it."""
    if _MENDS not in live.host.names(f"{live.mount_interface('debugfs')}/hwpoison"):
        raise CannotRun("this kernel mends nothing: hwpoison-inject is not loaded")
    # a locked down one refuses it when a page is broken already (kernel_lockdown(7))
    if "[none]" not in (live.host.read(_LOCKDOWN) or "[none]"):
        raise CannotRun(f"this kernel mends nothing: /{_LOCKDOWN}")


def mend(live: Live, frame: int) -> None:
    """Have a page frame taken for whole again that was said to be broken, of a huge page its first one.

    Raises Refused, and CannotRun as ``need_mending`` does.
    """
    need_mending(live)
    try:
        write_debugfs(live, f"hwpoison/{_MENDS}", f"{frame:#x}")
    except OSError as error:
        # after memory that was really broken nothing is mended any more (since 5.19)
        if error.errno != errno.EOPNOTSUPP:
            raise
        raise CannotRun("this machine has had memory that was really broken, and mends none now") from error


@contextmanager
def mended_at_the_end(
    live: Live, frame: int, give_back: Callable[[], None], *, may_be_refused: bool = False
) -> Iterator[None]:
    """Have a page frame that has just broken taken for whole again when the block ends, however it does.

    ``give_back`` is called before: a page that is in a file, or mapped, is not mended, and free it would be handed out
    as it is. Raises what ``mend`` does, unless it ``may_be_refused``, and never in place of what has ended the block.
    """
    ignored: tuple[type[Exception], ...] = (CannotRun, Refused)
    try:
        yield
        if not may_be_refused:
            ignored = ()
    finally:
        give_back()
        with suppress(*ignored):
            mend(live, frame)


def expect_broken(
    live: Live,
    memory: Memory,
    offset: int = 0,
    extent: int | None = None,
    known: Mapping[Quirk, None] | None = None,
) -> None:
    """Expect a read at ``offset`` to end in the signal that broken memory has: it tells the address and what is lost.

    These are ``extent`` bytes, by default a page of the memory. With a ``known`` bug there is no signal.
    """
    address = memory.address + offset
    expected = signal.SIGBUS, _BUS_MCEERR_AR, address, memory.size if extent is None else extent
    try:
        memory.actor.read(address)
    except Fault as fault:
        live.expect("signal, code, address, bytes", expected, (fault.signal, fault.code, fault.address, fault.extent))
    else:
        live.expect("signal, code, address, bytes", expected, None, known)


def expect_flag(live: Live, memory: Memory, frame: int, *, is_set: bool = True) -> None:
    """Expect /proc/kpageflags to show ``frame`` as broken, or no longer. Raises CannotRun without the file."""
    expected = HWPOISON if is_set else 0
    live.expect("HWPOISON in kpageflags", expected, kpageflags(live, memory.actor, [frame])[0] & HWPOISON)


def has_broken_before(live: Live) -> bool:
    """Tell whether memory has broken since the machine was booted, even if it was mended.

    Source: Documentation/ABI/testing/sysfs-memory-page-offline; drivers/base/node.c memory_failure, since 6.3.
    """
    totals = (live.host.read(f"sys/devices/system/node/node{node}/memory_failure/total") for node in live.before.nodes)
    return out_of_use(live) > 0 or any(int(total or 0) for total in totals)


def out_of_use(live: Live) -> int:
    """Return the base pages that are out of use."""
    return read_meminfo(ObservedTree(live.host)).get("HardwareCorrupted", 0) // live.base_page


def expect_break(live: Live, frame: int, words: Collection[str], error: int = 0) -> None:
    """Break a frame and expect ``error``, 0 for none, and one of ``words`` in the log, once, and no other of it."""
    live.host.skip_kernel_log()
    if error:
        live.expect_errno(error, hard_offline, live, frame)
    else:
        hard_offline(live, frame)
    expect_told(live, frame, words)


def expect_told(live: Live, frame: int, words: Collection[str]) -> None:
    """Expect the log to tell one of ``words`` of a frame, once, and nothing else."""
    told = told_of(live, frame)
    is_right = len(told) == 1 and told[0] in words
    live.expect("what the log tells", told if is_right else sorted(words), told)


def failure_stats(live: Live) -> dict[str, int]:
    """Return what all nodes together have counted; before Linux 6.4, and without nodes, nothing."""
    directories = [f"{path}/{_STATS}" for path in node_directories(live.host).values()]
    names = {name for directory in directories for name in live.host.names(directory)}
    tree = ObservedTree(live.host)
    return {name: sum(read_integer(tree, f"{directory}/{name}") or 0 for directory in directories) for name in names}


def expect_stats(live: Live, before: dict[str, int], outcome: str | None) -> None:
    """Expect one base page more to have been counted, among those with ``outcome``, and no other; none without it."""
    found = {name: count - before[name] for name, count in failure_stats(live).items()}
    counted = () if outcome is None else ("total", outcome)
    live.expect("memory_failure of the nodes", {name: int(name in counted) for name in before}, found)
