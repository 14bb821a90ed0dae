"""Who has had memory pinned for long, or tried to: what it gets from then on comes from movable memory as before.

While the kernel pins for long it keeps itself from taking movable memory (PF_MEMALLOC_PIN, since Linux 5.13).
"""

import errno
import fcntl
import mmap
import os
from collections.abc import Callable

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import HugeFile
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_blocks import MemoryBlock, expect_inside, movable_block, movable_block_for_a_pool
from hugepage_qa.cases.memory_policy import bind
from hugepage_qa.cases.movable_kinds import movable_memory
from hugepage_qa.cases.pinned_pages import Pin
from hugepage_qa.cases.places import ordinary_memory
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.udmabuf import Part, create_buffer, open_device
from hugepage_qa.kernel.uapi import PROT_NONE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

AFTER_PINS = Area("pool/movable-after-pins", sizes=Sizes.BUDDY)

RULE = (
    "Documentation/admin-guide/mm/memory-hotplug.rst ZONE_MOVABLE, ZONE_MOVABLE Sizing Considerations: Long-term"
    " pinning; include/linux/sched/mm.h memalloc_pin_save(), memalloc_pin_restore()"
)
_SINCE = "5.13"
_PAGES = 4
#: so many pages at least have room in a block of memory
_ROOM = 16
#: base pages of what is pinned
_PINNED = 16


@AFTER_PINS.case(
    "memory of a process that has had memory pinned for long, and holds it, has let it go, or was refused it, comes"
    " from the movable memory of its node, as long as it has some: anonymous memory and files of a tmpfs, in huge pages"
    " and in base pages",
    f"{RULE}; mm/gup.c __gup_longterm_locked()",
    sizes=Sizes.ONCE,
    since=_SINCE,
)
def memory_of_no_pool(live: Live) -> None:
    block, node = movable_block(live, pmd_size(live), _ROOM)
    for name, pin in _PINS.items():
        _expect_in_movable_memory(live, block, node, name, pin)


@AFTER_PINS.case(
    "memory of a process that has made a buffer for devices of a file, for which this is pinned for long, or was"
    " refused it, comes from the movable memory of its node",
    f"{RULE}; mm/gup.c memfd_pin_folios()",
    sizes=Sizes.ONCE,
    since=_SINCE,
)
def memory_beside_a_device_buffer(live: Live) -> None:
    block, node = movable_block(live, pmd_size(live), _ROOM)
    for name, make in (("a device buffer", _device_buffer), ("a device buffer past the end", _refused_device_buffer)):
        _expect_in_movable_memory(live, block, node, name, make)


@AFTER_PINS.case(
    "a process that has had memory pinned for long, or was refused it, gets the pages of a pool that lie in movable"
    " memory, and surplus pages from there",
    f"{RULE}; mm/hugetlb.c dequeue_hugetlb_folio_node_exact()",
    since=_SINCE,
)
def pages_of_a_pool(live: Live) -> None:
    block, node = movable_block_for_a_pool(live, _ROOM)
    live.reserve(_PAGES, node)
    live.overcommit(_PAGES)
    for name, pin in _PINS.items():
        actor = live.actor()
        pin(live, actor)
        with live.about(name):
            for what, noreserve in (("of the pool", False), ("that are surplus", True)):
                memory = live.map(_PAGES, actor, noreserve=noreserve)
                bind(memory, [node])
                memory.fill()
                expect_inside(live, block, f"pages {what}", memory)
                memory.expect_filled()
            live.expect_pool(nr=2 * _PAGES, free=0, surplus=_PAGES)
        actor.end()
        live.expect_pool(nr=_PAGES, free=_PAGES)


def _expect_in_movable_memory(
    live: Live, block: MemoryBlock, node: int, name: str, pin: Callable[[Live, Actor], object]
) -> None:
    """Expect memory of each kind that a process gets after ``pin`` to lie in ``block``."""
    for kind, memory in movable_memory(live, node, before=lambda actor: pin(live, actor)):
        with live.about(f"{kind}, after {name}"):
            expect_inside(live, block, "pages", memory)
            memory.expect_filled()
        memory.actor.end()


# --- what is pinned --------------------------------------------------------------------------------------------------


def _untouched(live: Live, actor: Actor) -> Pin:
    """Have memory pinned that comes for it."""
    pin = Pin(live, ordinary_memory(live, actor, _PINNED))
    pin.hold((0, _PINNED * live.base_page))
    return pin


def _let_go(live: Live, actor: Actor) -> None:
    _untouched(live, actor).let_go()


def _touched(live: Live, actor: Actor) -> None:
    """Have memory pinned that is there, in movable memory maybe."""
    memory = ordinary_memory(live, actor, _PINNED)
    memory.fill()
    Pin(live, memory).hold((0, memory.length))


def _touched_in_part(live: Live, actor: Actor) -> None:
    memory = ordinary_memory(live, actor, _PINNED)
    memory.part(0, _PINNED // 2).fill()
    Pin(live, memory).hold((0, memory.length))


def _one_by_one(live: Live, actor: Actor) -> None:
    memory = ordinary_memory(live, actor, _PINNED)
    Pin(live, memory).hold(*((page * memory.size, memory.size) for page in range(_PINNED)))


def _behind_the_end(live: Live, actor: Actor) -> None:
    """Have a part of what is to be pinned not be mapped."""
    memory = ordinary_memory(live, actor, _PINNED)
    memory.unmap(_PINNED // 2)
    _expect_refused(live, memory)


def _nowhere(live: Live, actor: Actor) -> None:
    memory = ordinary_memory(live, actor, _PINNED)
    memory.unmap()
    _expect_refused(live, memory)


def _closed(live: Live, actor: Actor) -> None:
    memory = ordinary_memory(live, actor, _PINNED)
    memory.protect(PROT_NONE)
    _expect_refused(live, memory)


def _read_only(live: Live, actor: Actor) -> None:
    memory = ordinary_memory(live, actor, _PINNED)
    memory.fill()
    memory.protect(mmap.PROT_READ, _PINNED // 2)
    _expect_refused(live, memory)


def _expect_refused(live: Live, memory: Memory) -> None:
    live.expect_errno(errno.EFAULT, Pin(live, memory).hold, (0, memory.length))


_PINS: dict[str, Callable[[Live, Actor], object]] = {
    "a pin of what is not there yet": _untouched,
    "a pin that was let go": _let_go,
    "a pin of what is there": _touched,
    "a pin of what is there in part": _touched_in_part,
    "pins one by one": _one_by_one,
    "a pin of what is mapped in part": _behind_the_end,
    "a pin of what is not mapped": _nowhere,
    "a pin of what is closed": _closed,
    "a pin of what is to be read alone": _read_only,
}


def _device_buffer(live: Live, actor: Actor) -> None:
    """Have half of a file that is there in part pinned."""
    file = _sealed_file(live, actor)
    create_buffer(actor, open_device(live, actor), [Part(file, 0, _PINNED // 2 * live.base_page)])


def _refused_device_buffer(live: Live, actor: Actor) -> None:
    file, length = _sealed_file(live, actor), _PINNED * live.base_page
    live.expect_errno(errno.EINVAL, create_buffer, actor, open_device(live, actor), [Part(file, length, length)])


def _sealed_file(live: Live, actor: Actor) -> int:
    descriptor = actor.call("memfd_create", "pinned", os.MFD_ALLOW_SEALING)
    actor.call("ftruncate", descriptor, _PINNED * live.base_page)
    HugeFile(live, actor, descriptor).seal(fcntl.F_SEAL_SHRINK)
    actor.call("pwrite64", descriptor, b"pinned", len(b"pinned"), 0)
    return descriptor


class MovableAfterPins(LiveTest):
    def test_movable_after_pins(self) -> None:
        self.run_area(AFTER_PINS)
