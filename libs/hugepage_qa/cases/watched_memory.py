"""Memory of which a program is told what becomes of it, as it asked: that of a process, and of its children, too."""

import errno
import signal
from collections.abc import Callable
from functools import partial

from hugepage_qa.cases.faults_of_the_kernel import expect_kernel_refused
from hugepage_qa.cases.handled_pages import told_address
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.thp_memory import map_aligned
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.cases.userfaultfd_messages import Event, PageFault, Told
from hugepage_qa.process.actor_threads import Came

_VALUE = 79
#: what is told of a fault: nothing more, one of them, or both
_DETAILS = (Feature(0), Feature.EXACT_ADDRESS, Feature.THREAD_ID, Feature.EXACT_ADDRESS | Feature.THREAD_ID)
_WHAT_GOES = Feature.EVENT_REMOVE | Feature.EVENT_UNMAP


def expect_child_watched_alike(
    live: Live,
    make: Callable[[], Memory],
    feature: Feature,
    unit: int,
    give_back: int,
    room: Callable[[Memory], int],
) -> None:
    """Expect each feature to be that of a child, and of its child, too.

    ``make`` makes two pages, the second of which is missing, ``feature`` is that of their kind, of which faults are
    told by multiples of ``unit`` bytes; ``give_back`` is the advice by which they go, and ``room`` is where as much can
    be mapped in place of what is there.
    """
    for detail in _DETAILS:
        for generation in range(3):
            with live.about(f"{detail.name or 'no more'}, generation {generation}"):
                memory, fault, source = _of_generation(live, generation, make, feature | detail)
                _expect_told(live, memory, fault, detail, unit)
                live.expect("bytes copied", memory.size, fault.copy(source, 1))
                live.expect(
                    "what came of the access", [Came.DONE], [done.came for done in memory.actor.threads.stop(0)]
                )
                source.actor.end()
    for generation in (1, 2):
        with live.about(f"generation {generation}"):
            memory, fault, source = _of_generation(live, generation, make, feature | Feature.EVENT_REMAP)
            expect_told_of_a_move(live, memory, fault, source, room(memory))
            source.actor.end()
            memory, fault, source = _of_generation(live, generation, make, feature | _WHAT_GOES)
            expect_told_of_what_goes(live, memory, fault, source, give_back)
            source.actor.end()
            memory, fault, source = _of_generation(live, generation, make, feature)
            expect_kernel_refused(live, memory.part(1), fault)
            source.actor.end()
            memory, _fault, source = _of_generation(live, generation, make, feature | Feature.SIGBUS)
            for act in (memory.read, memory.touch):
                live.expect_signal(signal.SIGBUS, act, 1, at=memory.at(1))
            memory.expect_filled(pages=1)
            source.actor.end()


def watched(memory: Memory, features: Feature) -> Userfault:
    """Return what is told of ``memory``: of its missing pages, and of the events of ``features``."""
    return Userfault(memory, Mode.MISSING, features, waits=True)


def _of_generation(
    live: Live, generation: int, make: Callable[[], Memory], feature: Feature
) -> tuple[Memory, Userfault, Memory]:
    """Return memory of a process, of its child or of the child of that, what is told of it, and what fills a page."""
    memory = make()
    fault = watched(memory, feature | Feature.EVENT_FORK)
    source = map_aligned(live, 1, memory.size, actor=memory.actor)
    source.fill(_VALUE)
    for _child in range(generation):
        memory, fault = fault.fork(live)
    return memory, fault, source


def _expect_told(live: Live, memory: Memory, fault: Userfault, detail: Feature, unit: int) -> None:
    """Expect a read in the midst of the second page to be told as it was asked for."""
    offset = memory.size // 2 + live.base_page + 3 * WORD
    before = live.host.names(f"proc/{memory.actor.pid}/task")
    memory.actor.threads.watch(memory.at(1) + offset, WORD, WORD, _VALUE + offset)
    (thread,) = set(live.host.names(f"proc/{memory.actor.pid}/task")) - set(before)
    found = fault.await_fault(live)
    address = told_address(live, memory.at(1) + offset)
    if Feature.EXACT_ADDRESS not in detail:
        address -= address % unit
    wanted = PageFault(Told(0), address, int(thread) if Feature.THREAD_ID in detail else 0)
    live.expect("what is told of the fault", wanted, found)


def expect_told_of_a_move(live: Live, memory: Memory, fault: Userfault, source: Memory, there: int) -> None:
    """Expect the move of two pages, the first of which is filled, to be told, and the second to be filled there."""
    move = partial(memory.moved_to, there)
    moved = fault.event_of(live, move, Event.REMAP, memory.address, there, memory.length)
    source.fill(_VALUE)
    live.expect("bytes copied", memory.size, fault.handling(moved).copy(source, 1))
    moved.expect_filled(pages=1)
    moved.expect_filled(_VALUE - memory.size, first=1)


def expect_told_of_what_goes(live: Live, memory: Memory, fault: Userfault, source: Memory, give_back: int) -> None:
    """Expect it to be told that one of two pages is given back, and filled anew, and the other one unmapped."""
    fault.event_of(live, partial(memory.advise, give_back, 0, 1), Event.REMOVE, memory.at(0), memory.at(1))
    source.fill(_VALUE)
    live.expect("bytes copied", memory.size, fault.copy(source))
    memory.expect_filled(_VALUE, pages=1)
    fault.event_of(live, partial(memory.unmap, 1, 1), Event.UNMAP, memory.at(1), memory.at(2))
    live.expect_errno(errno.ENOENT, fault.copy, source, 1)
    memory.expect_filled(_VALUE, pages=1)
