"""Swap for a case, and memory that is swapped out."""

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.loop_devices import attach_loop_device
from hugepage_qa.cases.lru_batches import drain_lru_batches
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.proc_tables import read_mounts, read_swaps
from hugepage_qa.kernel.smaps import MemoryMapping
from hugepage_qa.kernel.uapi import AT_FDCWD, MADV_PAGEOUT
from hugepage_qa.machine.host import CannotRun, Host
from hugepage_qa.machine.swap_file import HEADER_OFFSET, MAGIC
from hugepage_qa.process.actor import Actor, Fault, Refused
from hugepage_qa.sizes import MIB

#: what others may swap out meanwhile
_MARGIN = 32 * MIB
# include/linux/swap.h
_PREFER = 0x8000
# of the unified hierarchy in /proc/self/cgroup (cgroups(7))
_UNIFIED = "0::"
_ZSWAP = "sys/module/zswap/parameters"


def need_swap(live: Live, size: int) -> None:
    """Have the machine swap, until the case ends to a file where it has no swap, with room for ``size`` bytes.

    Raises CannotRun where neither is possible, or others let the suite swap less.
    """
    _need_swap_of_groups(live, size)
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
    _need_swap_of_groups(live, size)
    return _add_swap(live, size)


def _need_swap_of_groups(live: Live, size: int) -> None:
    """Raise CannotRun where the control group that the suite runs in, or one above it, may not swap ``size`` bytes.

    Nothing goes out then, and what is no longer mapped stays in memory (mem_cgroup_try_charge_swap()).
    """
    if not live.host.has_others:
        return
    lines = (live.host.read("proc/self/cgroup") or "").splitlines()
    own = next((line.removeprefix(_UNIFIED) for line in lines if line.startswith(_UNIFIED)), "/")
    # of /a/b these are /a/b, /a and the root
    groups = [*accumulate(own.rstrip("/").split("/"), "{}/{}".format)]
    for mount in read_mounts(live.host):
        for group in groups if mount.type == "cgroup2" else ():
            directory = f"{mount.point}{group}".strip("/")
            limit = (live.host.read(f"{directory}/memory.swap.max") or "max").strip()
            used = int(live.host.read(f"{directory}/memory.swap.current") or 0)
            if limit != "max" and int(limit) - used < size:
                raise CannotRun(
                    f"memory.swap.max of {group or '/'}, which the suite runs in, has no room for {size >> 20} MiB"
                )


def _add_swap(live: Live, size: int) -> Callable[[], None]:
    try:
        name = live.host.add_swap(size)
    except OSError as error:
        raise CannotRun(f"this machine has no swap, and a swap file cannot be used: {error.strerror}") from error
    return live.once_at_the_end(partial(live.host.remove_swap, name))


@dataclass(frozen=True)
class SwapDevice:
    """A loop device that the machine swaps to: a file without a name, which ``owner`` has as ``content``."""

    owner: Actor
    content: int
    device: str
    #: ends that the machine swaps to it (swapoff(2)), at the end of the case otherwise
    end: Callable[[], None]

    def lose(self, end: int) -> None:
        """Have nothing of it be readable any more from ``end`` on, a multiple of the base page.

        Raises CannotRun where a loop device reads zeroes behind the end of its file, as on Linux 6.1.
        """
        self.owner.call("ftruncate", self.content, end)
        descriptor = self.owner.call("openat", AT_FDCWD, self.device, os.O_RDONLY)
        answer = self.owner.result("pread64", descriptor, bytes(1), 1, end)
        self.owner.call("close", descriptor)
        if answer != -errno.EIO:
            raise CannotRun("the loop devices of this kernel can be read behind the end of their files")


def swap_to_a_device(live: Live, room: int) -> Callable[[], None]:
    """Have the machine swap to a device as ``swap_device`` does, and return what ends it earlier. Raises CannotRun."""
    return swap_device(live, room).end


def swap_device(live: Live, room: int) -> SwapDevice:
    """Have the machine swap to a loop device of ``room`` bytes of shared memory, and nowhere else until the case ends.

    Raises CannotRun where the machine has other users, swap of its own, or no such devices.
    """
    (device,) = swap_devices(live, room, (None,))
    return device


def swap_devices(live: Live, room: int, priorities: Sequence[int | None]) -> list[SwapDevice]:
    """Have the machine swap to several, as ``swap_device`` does to one: each of a priority, None for one below all."""
    if not live.host.is_thrown_away():
        raise CannotRun("swap on a device is for machines that are thrown away")
    if read_swaps(live.host) or not live.host.has_modules(["loop"]):
        raise CannotRun("this machine has swap of its own, or no loop devices")
    live.set_knob_if_there(zswap_knob("enabled"), "N")
    return [_add_device(live, room, 0 if priority is None else _PREFER | priority) for priority in priorities]


def _add_device(live: Live, room: int, flags: int) -> SwapDevice:
    owner, base, pack = live.actor(), live.base_page, live.host.uapi.pack
    content = owner.call("memfd_create", "swap", 0)
    owner.call("ftruncate", content, room)
    owner.call("pwrite64", content, pack("3I", 1, room // base - 1, 0), 12, HEADER_OFFSET)
    owner.call("pwrite64", content, MAGIC, len(MAGIC), base - len(MAGIC))
    device = attach_loop_device(live, owner, content)
    owner.call("swapon", device, flags)
    return SwapDevice(owner, content, device, live.once_at_the_end(partial(_swap_off, live.host, device)))


def zswap_knob(name: str) -> str:
    """Return the path of a parameter of zswap (Documentation/admin-guide/mm/zswap.rst)."""
    return f"{_ZSWAP}/{name}"


def turn_zswap_on(live: Live) -> None:
    """Have zswap take what goes to swap from now on, until the case ends. Raises CannotRun where it does not."""
    path = zswap_knob("enabled")
    try:
        live.set_knob(path, "Y")
    except Refused as refusal:
        raise CannotRun(f"zswap of this kernel cannot be turned on: {refusal.strerror}") from refusal
    if (live.host.read(path) or "").strip() != "Y":
        raise CannotRun("zswap of this kernel stays off: it has no compressor or no pool")


def _swap_off(host: Host, device: str) -> None:
    actor = host.start_actor()
    try:
        actor.call("swapoff", device)
    finally:
        actor.end()


def swap_out(live: Live, memory: Memory, length: int, start: int = 0) -> None:
    """Swap ``length`` bytes of ``memory`` out, from ``start`` on, and expect smaps to say so.

    Raises CannotRun where others have taken the room for it.
    """
    live.host.wait_until(partial(parts_out, live, memory, [(start, length)], lambda: swapped(memory) == length))
    found = swapped(memory)
    if found < length:
        _expect_room(live, length - found)
    live.expect("memory in swap", length, found)


def _expect_room(live: Live, length: int) -> None:
    """Raise CannotRun where others have taken the room for ``length`` bytes that have not gone to swap."""
    if live.host.has_others and read_meminfo(live.host)["SwapFree"] < length:
        raise CannotRun("others have filled the swap of this machine")


def page_out(live: Live, memory: Memory, rest: int = 0, length: int | None = None) -> bool:
    """Swap ``memory`` out, and tell whether it is no longer mapped, and not in memory either where it is shared.

    ``rest`` are the bytes that stay of its mapping, which is larger, and ``length`` is what there is of it, by default
    all. It is to be called again where it is not out.
    """
    wanted = memory.length if length is None else length
    return parts_out(live, memory, [(0, memory.length)], partial(_is_out, live, memory, rest, wanted))


def _is_out(live: Live, memory: Memory, rest: int, wanted: int) -> bool:
    """Tell what ``page_out`` does; what is neither mapped nor in swap is mapped again, and swapped out.

    shrink_folio_list() unmaps before pageout() looks who has a hold of it, and a call brings memory back without
    mapping it: madvise(2) passes over it then. What is lost is no longer in memory, either: it comes back clean.
    """
    mapping = memory.smaps()
    swap = _swap_of(mapping)
    if mapping.rss != rest or not mapping.is_shared or swap >= wanted:
        return mapping.rss == rest
    try:
        memory.nonzero(0, memory.length, live.base_page)
    except Fault:
        # who closes it by userfaultfd has no way to map it again
        return True
    in_memory = memory.smaps().dirty - mapping.dirty - swap
    memory.advise(MADV_PAGEOUT)
    return in_memory <= 0 and memory.smaps().rss == rest


def parts_out(live: Live, memory: Memory, parts: Sequence[tuple[int, int]], is_out: Callable[[], bool]) -> bool:
    """Give MADV_PAGEOUT for ``parts`` of ``memory``, start and length in bytes, and tell whether they are out.

    It is to be given again: it passes over pages that somebody else has a hold of in that moment, and over those that
    another CPU has in a batch.
    """
    for start, length in parts:
        memory.actor.call("madvise", memory.address + start, length, MADV_PAGEOUT)
    if is_out():
        return True
    drain_lru_batches(live, memory.actor)
    return False


def page_all_out(live: Live, memory: Memory, rest: int = 0, length: int | None = None) -> None:
    """Swap ``memory`` out as ``page_out`` does, until it tells so, and expect its mapping to have ``rest`` alone.

    Raises CannotRun where others have taken the room for it.
    """
    is_out = live.host.last_look(partial(page_out, live, memory, rest, length), bool)
    if not is_out:
        _expect_room(live, (memory.length if length is None else length) - swapped(memory))
    live.expect("Rss of what was swapped out", rest, memory.smaps().rss)
    live.expect("whether all of it left memory", True, is_out)


def swapped(memory: Memory) -> int:
    """Return the bytes of the mapping that are in swap."""
    return _swap_of(memory.smaps())


def _swap_of(mapping: MemoryMapping) -> int:
    return mapping.fields.get("Swap", 0)
