"""Blocks of memory that are taken from a throwaway machine that runs, and added to it again.

Documentation/admin-guide/mm/memory-hotplug.rst.
"""

import errno
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hugepage_qa.cases.broken_memory import has_broken_before
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.result import BROKEN_BEFORE
from hugepage_qa.cases.struct_pages import keep_struct_pages_that_nobody_counts, read_struct_pages_of_boot
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.process.actor import Refused, set_alarm
from hugepage_qa.process.actor_link import ActorGone

_DIRECTORY = "sys/devices/system/memory"
_BLOCK, _NODE = "memory", "node"
ONLINE, _OFFLINE = "online", "offline"
#: for the kernel zone that it is of
ONLINE_KERNEL = "online_kernel"
#: so that nothing lies in it but what can be moved (ZONE_MOVABLE)
ONLINE_MOVABLE = "online_movable"
#: what valid_zones shows of such, and of blocks of several zones
MOVABLE, _SEVERAL = "Movable", "none"
#: it has pages that cannot be moved, or that others hold for the moment
_NOT_TAKEN = (errno.EBUSY, errno.EAGAIN, errno.EINVAL, errno.ENOMEM)
_TRIED = 32
#: a block goes in some hundredths of a second
_SECONDS = 20


@dataclass(frozen=True)
class MemoryBlock:
    """A block: ``number`` times ``size`` bytes is where it begins."""

    number: int
    size: int

    def is_taken(self, live: Live, seconds: int = _SECONDS) -> bool:
        """Take it from the machine, in ``seconds`` at most; return whether it could be: not with what nothing moves.

        Raises CannotRun where the kernel lets none go.
        """
        return not self.errno_of_taking(live, seconds)

    def errno_of_taking(self, live: Live, seconds: int = _SECONDS) -> int:
        """Take it from the machine, in ``seconds`` at most; return 0, or why it could not be: EINTR after that time.

        For a page that somebody holds the kernel may try for ever (offline_pages() in mm/memory_hotplug.c), until a
        signal comes. Raises CannotRun where the kernel lets none go.
        """
        actor = live.actor()
        state = live.open(actor, f"/{self._state}", os.O_WRONLY)
        set_alarm(actor, seconds)
        try:
            actor.call("write", state, _OFFLINE.encode(), len(_OFFLINE))
        except ActorGone:
            # it may have been let go just before the signal came
            return 0 if self.state(live) == _OFFLINE else errno.EINTR
        except Refused as refusal:
            if refusal.errno == errno.EPERM:
                # arm64, since 5.7 (bbd6ec605c0f): arch/arm64/mm/mmu.c prevent_bootmem_remove_notifier()
                raise CannotRun("this kernel keeps all memory that the machine was booted with") from refusal
            if refusal.errno not in _NOT_TAKEN:
                raise
            return refusal.errno
        finally:
            actor.end()
        return 0

    def add(self, live: Live, how: str = ONLINE) -> None:
        """Add it again, by default for whatever lies in memory that was added. Raises Refused."""
        live.host.write(self._state, how)

    def make_ordinary(self, live: Live) -> None:
        """Have it for whatever lies in memory again, if it can be taken from who has it. Raises Refused."""
        if self.is_taken(live):
            self.add(live)

    def node(self, live: Live) -> int:
        """Return the node that it is of, 0 for a kernel without nodes."""
        names = live.host.names(f"{_DIRECTORY}/{_BLOCK}{self.number}")
        return next((int(name.removeprefix(_NODE)) for name in names if name.startswith(_NODE)), 0)

    def held(self, live: Live, frames: Iterable[int]) -> list[int]:
        """Return those of ``frames`` that lie in it."""
        count = self.size // live.base_page
        return [frame for frame in frames if frame // count == self.number]

    def put_back(self, live: Live) -> None:
        """Add it again if that was not done. Raises Refused."""
        if self.state(live) == _OFFLINE:
            self.add(live)

    def state(self, live: Live) -> str:
        """Return what the kernel shows of it, such as online."""
        return (live.host.read(self._state) or "").strip()

    def expect_zone(self, live: Live, zone: str) -> None:
        """Expect ``zone`` to be the one it is of, or that it would be of if it was added. Raises Failed."""
        found = (live.host.observe(self._zones) or "").split()[:1]
        if found != [zone]:
            # added to a wrong zone, it would be a part of that
            live.fail(f"the first of valid_zones, {self.state(live)}", [zone], found)

    def zone(self, live: Live) -> str | None:
        """Return the zone that it is of, None where it has none for itself, or the kernel does not tell."""
        name = (live.host.read(self._zones) or _SEVERAL).strip()
        return None if name == _SEVERAL else name

    @property
    def _state(self) -> str:
        return f"{_DIRECTORY}/{_BLOCK}{self.number}/state"

    @property
    def _zones(self) -> str:
        return f"{_DIRECTORY}/{_BLOCK}{self.number}/valid_zones"


def memory_blocks(live: Live) -> Iterator[MemoryBlock]:
    """Yield the blocks of the machine that are online, from the last one on.

    Raises CannotRun where none can be taken, on machines that go on when the suite has ended, and where memory has
    broken: memory_block_online() refuses what has been broken since 6.2, and was seen to refuse what was mended.
    """
    if not live.host.is_thrown_away():
        raise CannotRun("no memory is taken from a machine that others use")
    if has_broken_before(live):
        raise CannotRun(f"{BROKEN_BEFORE}: a block of it may not come back")
    size = live.host.read(f"{_DIRECTORY}/block_size_bytes")
    if size is None:
        raise CannotRun("this kernel has no CONFIG_MEMORY_HOTREMOVE")
    names = [name.removeprefix(_BLOCK) for name in live.host.names(_DIRECTORY)]
    for number in sorted((int(name) for name in names if name.isdigit()), reverse=True):
        block = MemoryBlock(number, int(size, 16))
        if block.state(live) == ONLINE:
            yield block


def blocks_within_zones(live: Live) -> Iterator[tuple[str, Sequence[MemoryBlock]]]:
    """Yield each kernel zone of each node, with some of its blocks that have others of it before and behind them.

    Where the first or the last one of a zone goes the zone ends there (shrink_zone_span() in mm/memory_hotplug.c).
    Raises CannotRun as above.
    """
    of_zones = defaultdict(list)
    for block in memory_blocks(live):
        of_zones[block.node(live), block.zone(live)].append(block)
    for (_node, zone), blocks in of_zones.items():
        if zone not in (None, MOVABLE):
            yield zone, blocks[1:-1][:_TRIED]


def take_a_block(live: Live) -> MemoryBlock:
    """Take a block from the machine until the case ends, and expect MemTotal to tell so; return it.

    Raises CannotRun as above.
    """
    before = read_total(live)
    for tried, block in enumerate(memory_blocks(live)):
        if block.is_taken(live):
            live.when_actors_have_ended(block.put_back, live)
            expect_total(live, before - block.size)
            return block
        if tried == _TRIED:
            break
    raise CannotRun("each block of memory has pages that cannot be moved")


def take_and_make_movable(live: Live) -> MemoryBlock:
    """Take a block, and add it for what can be moved alone, until the case ends; return it.

    Raises CannotRun as above.
    """
    block = take_a_block(live)
    block.add(live, ONLINE_MOVABLE)
    live.when_actors_have_ended(block.make_ordinary, live)
    return block


def movable_block(live: Live, size: int, room: int) -> tuple[MemoryBlock, int]:
    """Return a block of movable memory, and its node.

    Raises CannotRun where ``room`` pages of ``size`` do not fit, and on a kernel without nodes.
    """
    live.need_nodes()
    keep_struct_pages_that_nobody_counts(live)
    block = take_and_make_movable(live)
    if block.size // size < room:
        raise CannotRun(f"a block of memory has {block.size >> 20} MiB, and no room for {room} pages")
    return block, block.node(live)


def movable_block_for_a_pool(live: Live, room: int) -> tuple[MemoryBlock, int]:
    """Return a block and its node as ``movable_block`` does, for pages of the pool.

    Raises CannotRun also where these come from no movable memory, as ``need_movable_pages`` does.
    """
    need_movable_pages(live)
    return movable_block(live, live.size, room)


def need_movable_pages(live: Live) -> None:
    """Raise CannotRun where pages of the pool cannot be moved (ARCH_ENABLE_HUGEPAGE_MIGRATION): s390 alone.

    They come from no movable memory then (htlb_alloc_mask()), and ordinary memory is not taken with them.
    """
    if live.host.architecture == "s390x":
        raise CannotRun("pages of a pool are not moved on s390")


def expect_inside(live: Live, block: MemoryBlock, what: str, memory: Memory) -> None:
    """Expect all of ``memory`` to lie in ``block``, which is movable."""
    held = block.held(live, memory.present_frames(memory.pages))
    live.expect(f"{what}: base pages in movable memory", memory.length // live.base_page, len(held))


def read_total(live: Live) -> int:
    """Return MemTotal in bytes, with the struct pages of the boot where these are counted.

    Pages of a pool give them back, so that MemTotal grows by as much (hugetlb_free_vmemmap=on).
    """
    return read_meminfo(ObservedTree(live.host))["MemTotal"] + (read_struct_pages_of_boot(live) or 0) * live.base_page


def expect_total(live: Live, expected: int) -> None:
    """Expect ``read_total`` to return ``expected`` bytes."""
    live.expect("MemTotal and struct pages of the boot", expected, read_total(live))
