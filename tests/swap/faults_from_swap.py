"""Faults of base pages in swap: major ones, of each kind of memory, and how many pages one of them brings."""

import mmap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from random import Random

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.group_memory import actor_in, leave_memory
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pages_in_memory import base_pages_in_memory
from hugepage_qa.cases.process_counters import faults
from hugepage_qa.cases.shared_in_swap import file_in_swap
from hugepage_qa.cases.swapped import SwapDevice, need_swap, swap_device
from hugepage_qa.cases.thp_memory import let_nothing_be_balanced, map_aligned, pmd_size
from hugepage_qa.cases.thp_shared_memory import map_file
from hugepage_qa.kernel.uapi import MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

FAULTS_FROM_SWAP = Area("swap/faults-from-swap", sizes=Sizes.ONCE)

#: base pages that are touched, and huge pages of swap: one is in use at a time
_TOUCHED, _ROOM = 32, 2
#: what memory is filled with: what is stored is the same
_HELD = 1
#: values of vm.page-cluster, and the one above which no more is read at once (SWAP_RA_ORDER_CEILING)
_CLUSTERS, _MOST = (0, 1, 3, 5), 5
#: base pages that are read in turn, where some are to be read ahead
_IN_TURN = 64
#: what a fault reads ahead of: is it shared, and is what is next looked for by address (vma_ra_enabled), or in swap
_READ_AHEAD = (False, "true"), (False, "false"), (True, "true")
#: places about which base pages are read, and the values of vm.page-cluster
_PLACES, _ALL_CLUSTERS = 6, (0, 1, 2, 3, 4, 5)
#: gets memory, and the value that it holds
Access = Callable[[Live, Memory, int], None]
#: memory in swap, and where the tmpfs of its file is mounted
Made = tuple[Memory, str | None]


def _mapped(live: Live, group: ControlGroup, *, shared: bool) -> Made:
    actor = actor_in(live, group)
    # what else it has stays out of swap
    actor.call("mlockall", live.host.uapi.mcl_current)
    memory = map_aligned(live, 1, pmd_size(live), shared=shared, actor=actor, advice=MADV_NOHUGEPAGE)
    memory.fill(_HELD)
    leave_memory(live, memory, group)
    return memory, None


def _file(live: Live, group: ControlGroup) -> Made:
    file = file_in_swap(live, group, "never", 1)
    return file.memory, file.point


def _private_mapping(live: Live, group: ControlGroup) -> Made:
    memory, descriptor, point = file_in_swap(live, group, "never", 1)
    return map_file(live, memory.actor, descriptor, 1, shared=False), point


def _load(live: Live, memory: Memory, value: int) -> None:
    """Load a word of each base page, which holds ``value`` and how far it is from the first one."""
    live.expect("words that changed", 0, memory.actor.check(memory.address, memory.length, live.base_page, value))


def _store(live: Live, memory: Memory, value: int) -> None:
    memory.actor.fill(memory.address, memory.length, live.base_page, value)


#: what is in swap, and whether it is in memory once it was brought from there and is mapped no more
_KINDS: Mapping[str, tuple[Callable[[Live, ControlGroup], Made], bool]] = {
    "anonymous memory": (partial(_mapped, shared=False), False),
    "shared memory": (partial(_mapped, shared=True), True),
    "a file of a tmpfs": (_file, True),
    "a private mapping of one": (_private_mapping, False),
}
_ACCESSES: Mapping[str, Access] = {"load": _load, "store": _store}


@FAULTS_FROM_SWAP.case(
    "each base page in swap that is loaded from or stored to is a major fault of its process, and no minor one, in"
    " anonymous and shared memory and in files of a tmpfs, mapped shared or private; once more it is none, and of what"
    " is in memory and only not mapped all are minor ones",
    "Documentation/filesystems/proc.rst maj_flt, min_flt; Documentation/admin-guide/sysctl/vm.rst page-cluster;"
    " mm/memory.c mm_account_fault(), do_swap_page(), do_read_fault(); mm/shmem.c shmem_swapin_folio()",
    since="5.4",  # MADV_PAGEOUT
)
def each_page_is_a_fault(live: Live) -> None:
    let_nobody_else_act(live)
    # a fault that balancing waits for is a minor one
    let_nothing_be_balanced(live)
    need_swap(live, _ROOM * pmd_size(live))
    # nothing is read ahead
    live.set_knob("proc/sys/vm/page-cluster", "0")
    group = new_group(live, "memory", Version.TWO)
    for kind, (make, stays) in _KINDS.items():
        expected = [(_TOUCHED, False), (0, False), (0, True)][: 2 + stays]
        for name, access in _ACCESSES.items():
            with live.about(f"{kind}, {name}"):
                _expect_faults(live, partial(make, live, group), access, expected)


def _expect_faults(live: Live, make: Callable[[], Made], access: Access, expected: list[tuple[int, bool]]) -> None:
    """Expect so many major faults of an ``access``, and minor ones or none: at first, again, and of pages not mapped.

    Raises CannotRun where others may be the cause, for they need memory, and it is another number each time.
    """
    seen: list[list[tuple[int, bool]]] = []

    def attempt() -> list[tuple[int, bool]]:
        memory, point = make()
        seen.append(_faults(live, memory, access, len(expected)))
        if point:
            # what is left of its file takes room in swap
            live.unmount(point)
        return seen[-1]

    found = live.host.last_attempt(attempt, expected.__eq__)
    if found != expected and live.host.has_others and any(each != found for each in seen):
        raise CannotRun("others need memory: what was in swap is in memory, or the reverse")
    live.expect("major faults, and whether there are minor ones, in turn", expected, found)


def _faults(live: Live, memory: Memory, access: Access, times: int) -> list[tuple[int, bool]]:
    """Return how many major faults an ``access`` has, and whether it has minor ones, each time."""
    touched = Memory(live, memory.actor, memory.address, _TOUCHED, live.base_page)
    _run_before(live, memory.actor)
    found = [_faults_of(live, touched, access) for _time in range(2)]
    if times > len(found):
        touched.advise(mmap.MADV_DONTNEED)
        found.append(_faults_of(live, touched, access))
    memory.expect_filled(_HELD)
    memory.actor.end()
    return found


def _run_before(live: Live, actor: Actor) -> None:
    """Have ``actor`` run all accesses on other memory: pages of its program that it has not run yet are faults, too."""
    length = _TOUCHED * live.base_page
    address = actor.mmap(length, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    other = Memory(live, actor, address, _TOUCHED, live.base_page)
    for access in (_store, _load):
        access(live, other, _HELD)


def _faults_of(live: Live, memory: Memory, access: Access) -> tuple[int, bool]:
    before = faults(live, memory.actor)
    access(live, memory, _HELD)
    after = faults(live, memory.actor)
    return after.major - before.major, after.minor > before.minor


@FAULTS_FROM_SWAP.case(
    "of anonymous memory that was swapped to a device without seeks, and is read in order, up or down, a fault brings"
    " what is read next, too, up to 2 to the power of vm.page-cluster base pages in all, and with 0 none but its own;"
    " what it brings beside that is no major fault later, and all hold what they held",
    "Documentation/admin-guide/sysctl/vm.rst page-cluster; mm/swap_state.c swapin_readahead()",
    since="5.4",  # MADV_PAGEOUT
)
def brings_what_is_next(live: Live) -> None:
    let_nobody_else_act(live)
    let_nothing_be_balanced(live)
    device = swap_device(live, _ROOM * pmd_size(live))
    live.set_knob("sys/kernel/mm/swap/vma_ra_enabled", "true")
    group = new_group(live, "memory", Version.TWO)
    pages = range(min(_IN_TURN, pmd_size(live) // live.base_page))
    for cluster, order in product(_CLUSTERS, (pages, pages[::-1])):
        live.set_knob("proc/sys/vm/page-cluster", str(cluster))
        most = 1 << min(cluster, _MOST)
        with live.about(f"page-cluster {cluster}, {'up' if order.step > 0 else 'down'}"):
            read = partial(_wrong_and_majors, live, group, device, order, most)
            wrong, majors = live.host.last_attempt(read, ({}, 0).__eq__)
            few = min(most, 2)
            live.expect(f"base pages from one fault to the next, other than {few} to {most}: how many times", {}, wrong)
            live.expect("major faults of base pages that were read ahead", 0, majors)


def _wrong_and_majors(
    live: Live, group: ControlGroup, device: SwapDevice, order: Sequence[int], most: int
) -> tuple[Mapping[int, int], int]:
    """Have base pages read in this ``order``; return wrong steps from one fault to the next, and other major faults.

    Steps are told with how many there are of each. A fault brings its own page and ``most`` in all, and the next page,
    too, if it may. Not the first one: nobody has read in any order then, and it may bring what is before its page.
    """
    places, majors = _read_in_order(live, group, device, order)
    first, *steps = (there - here for here, there in pairwise(places))
    wrong = [step for step in steps if not min(most, 2) <= step <= most]
    return dict(Counter([*wrong, *([first] if first > most else [])])), majors


def _read_in_order(
    live: Live, group: ControlGroup, device: SwapDevice, order: Sequence[int]
) -> tuple[Sequence[int], int]:
    """Have base pages read in this ``order``, each once, of memory that is in swap alone.

    Returns which in turn were not in memory then, and how many major faults the others had. Raises CannotRun.
    """
    memory, _point = _mapped(live, group, shared=False)
    absent, majors = list[int](), 0
    for place, page in enumerate(order):
        # what is still being read from swap is waited for, which counts as a major fault
        _await_reads(live, device)
        is_there = page in base_pages_in_memory(live, memory.actor, memory.address, range(page, page + 1))
        before = faults(live, memory.actor).major
        offset = page * live.base_page
        live.expect(f"what base page {page} holds", _HELD + offset, memory.actor.read(memory.address + offset))
        if is_there:
            majors += faults(live, memory.actor).major - before
        else:
            absent.append(place)
    if absent[:1] != [0]:
        raise CannotRun("what was swapped out stays in memory")
    memory.expect_filled(_HELD)
    memory.actor.end()
    return absent, majors


@FAULTS_FROM_SWAP.case(
    "of anonymous or shared memory that was swapped to a device, a fault brings its own base page and others, at most 2"
    " to the power of vm.page-cluster in all, and with 0 none but its own, wherever it is and whatever was read before:"
    " far from that, next to it, or beyond what that has brought; what is next is looked for by address, or in swap",
    "Documentation/admin-guide/sysctl/vm.rst page-cluster; Documentation/ABI/testing/sysfs-kernel-mm-swap"
    " vma_ra_enabled; mm/swap_state.c swap_vma_ra_win(), swap_cluster_readahead()",
    since="5.4",  # MADV_PAGEOUT
)
def brings_no_more_than_it_may(live: Live) -> None:
    let_nobody_else_act(live)
    let_nothing_be_balanced(live)
    device = swap_device(live, _ROOM * pmd_size(live))
    group = new_group(live, "memory", Version.TWO)
    for (shared, by_address), cluster in product(_READ_AHEAD, _ALL_CLUSTERS):
        live.set_knob("sys/kernel/mm/swap/vma_ra_enabled", by_address)
        live.set_knob("proc/sys/vm/page-cluster", str(cluster))
        most = 1 << cluster
        with live.about(f"shared {shared}, vma_ra_enabled {by_address}, page-cluster {cluster}"):
            # where it was more before, it becomes less by half from one fault to the next (__swapin_nr_pages())
            attempt = partial(_brought_beyond, live, group, device, most, shared=shared)
            beyond = live.host.last_attempt(attempt, ({}).__eq__)
            live.expect(f"base pages whose faults brought more than {most}, and how many", {}, beyond)


def _brought_beyond(
    live: Live, group: ControlGroup, device: SwapDevice, most: int, *, shared: bool
) -> Mapping[int, int]:
    """Have base pages of memory that is in swap read; return which brought more than ``most``, and how many.

    Raises CannotRun where none was in swap alone.
    """
    memory, _point = _mapped(live, group, shared=shared)
    pages = range(memory.length // live.base_page)
    there, brought = base_pages_in_memory(live, memory.actor, memory.address, pages), dict[int, int]()
    for page in _scattered(pages, most):
        if page in there:
            continue
        offset = page * live.base_page
        live.expect(f"what base page {page} holds", _HELD + offset, memory.actor.read(memory.address + offset))
        _await_reads(live, device)
        now = base_pages_in_memory(live, memory.actor, memory.address, pages)
        brought[page], there = len(now - there), now
    if not brought:
        raise CannotRun("what was swapped out stays in memory")
    memory.expect_filled(_HELD)
    memory.actor.end()
    return {page: count for page, count in brought.items() if count > most}


def _scattered(pages: range, most: int) -> list[int]:
    """Return places in ``pages``, and with each what is next to it and beyond what a fault there may have brought."""
    draw = Random(1)  # noqa: S311 - the same each time
    places = [len(pages) // 2, *draw.sample(pages, _PLACES)]
    around = (0, 1, most, most + 1, -1, -most, -most - 1)
    return [place + step for place, step in product(places, around) if place + step in pages]


def _await_reads(live: Live, device: SwapDevice) -> None:
    """Wait until nothing is read from or written to ``device``."""
    path = f"sys/block/{device.device.removeprefix('/dev/')}/inflight"
    live.host.wait_until(lambda: not any(map(int, (live.host.observe(path) or "").split())))


class ThpFaultsFromSwap(LiveTest):
    def test_faults_from_swap(self) -> None:
        self.run_area(FAULTS_FROM_SWAP)
