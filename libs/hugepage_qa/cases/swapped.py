"""Swap for a case, and memory that is swapped out."""

from collections.abc import Callable

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.proc_tables import read_swaps
from hugepage_qa.kernel.uapi import MADV_PAGEOUT
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.sizes import MIB

#: what others may swap out meanwhile
_MARGIN = 32 * MIB


def need_swap(live: Live, size: int) -> None:
    """Have the machine swap, until the case ends to a file where it has no swap, with room for ``size`` bytes.

    Raises CannotRun where neither is possible.
    """
    if read_swaps(live.host):
        if read_meminfo(live.host)["SwapFree"] < size + _MARGIN:
            raise CannotRun(f"the swap of this machine has no room for {size >> 20} MiB")
        return
    _add_swap(live, size + _MARGIN)


def only_swap(live: Live, size: int) -> Callable[[], None]:
    """Have the machine swap to ``size`` bytes, their header among them, and nowhere else until the case ends.

    Returns what ends it earlier (swapoff(2)). Raises CannotRun where it swaps already, and where it cannot.
    """
    if read_swaps(live.host):
        raise CannotRun("this machine has swap of its own, which has room")
    return _add_swap(live, size)


def _add_swap(live: Live, size: int) -> Callable[[], None]:
    try:
        name = live.host.add_swap(size)
    except OSError as error:
        raise CannotRun(f"this machine has no swap, and a swap file cannot be used: {error.strerror}") from error
    swapped_to = [name]

    def swap_off() -> None:
        if swapped_to:
            live.host.remove_swap(swapped_to[0])
            swapped_to.clear()

    live.when_actors_have_ended(swap_off)
    return swap_off


def swap_out(live: Live, memory: Memory, length: int) -> None:
    """Swap the first ``length`` bytes of ``memory`` out, and expect smaps to say so.

    MADV_PAGEOUT passes over pages that somebody else has a hold of in that moment: it is given again.
    """

    def is_out() -> bool:
        memory.actor.call("madvise", memory.address, length, MADV_PAGEOUT)
        return swapped(memory) == length

    live.host.wait_until(is_out)
    live.expect("memory in swap", length, swapped(memory))


def page_out(memory: Memory, rest: int = 0) -> bool:
    """Swap ``memory`` out, and tell whether it is no longer mapped: smaps shows no swap of shared memory.

    ``rest`` are the bytes that stay of its mapping, which is larger. MADV_PAGEOUT passes over pages that somebody else
    has a hold of in that moment: it is given again.
    """
    memory.advise(MADV_PAGEOUT)
    return memory.smaps().rss == rest


def swapped(memory: Memory) -> int:
    """Return the bytes of the mapping that are in swap."""
    return memory.smaps().fields.get("Swap", 0)
