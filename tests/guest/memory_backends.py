"""What memory backends of QEMU take of a pool, keep and leave there, for every combination of their options.

The backends come and go in one QEMU whose guest has ordinary memory and never runs: all huge pages are theirs.
"""

import itertools
import json

from hugepage_qa.cases.case import Sizes
from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.cases.guest.guests import NO_NODES, GuestArea, Guests, guest_case, needs
from hugepage_qa.cases.guest.memory_backend import MemoryBackend, PoolOutcome, Store, every_backend
from hugepage_qa.cases.guest.refusal import Meaning
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.pages_of_a_node import missing_node
from hugepage_qa.kernel.uapi import AT_FDCWD
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.qemu.guest.driver import State
from hugepage_qa.qemu.guest.guest_description import Cell, whole_pages
from hugepage_qa.sizes import MIB

#: libvirt has no such options, or sets them by itself
QEMU = GuestArea("guest/memory-backends", drivers.QEMU)
case = guest_case(QEMU)

HOSTMEM = "QEMU backends/hostmem.c host_memory_backend_memory_complete(); mm/hugetlb.c hugetlb_reserve_pages()"
DISCARD = "QEMU memory-backend-file discard-data=; mm/hugetlb.c hugetlb_unreserve_pages(); madvise(2) MADV_REMOVE"
POLICY = "QEMU memory-backend policy=, host-nodes=; mbind(2); Documentation/admin-guide/mm/numa_memory_policy.rst"

#: of the guest, on ordinary pages
_MEMORY = 64 * MIB
_NAME = "backend"
_POLICIES = ("default", "bind", "preferred", "interleave")
#: the least that Linux plugs in at once, and in what it boots that prepares for more memory
_BLOCK, _ROOM = 128 * MIB, 256 * MIB
#: in the guest: how many blocks of memory its kernel has, and had without what was plugged in
_COUNT_BLOCKS, _BLOCKS_OF_BOARD = "ls /sys/devices/system/memory | grep -c ^memory", "/tmp/blocks"


def pages_of_a_backend(live: Live) -> int:
    """Return how many pages a backend has: one is enough of a size that takes a while to clear."""
    return 1 if live.is_gigantic else 4


def on_ordinary_pages(guests: Guests) -> Guest:
    """Return a guest that has started and has no huge page."""
    guest = guests.new(Cell(_MEMORY, None))
    guest.start()
    return guest


def remove_file(live: Live, path: str) -> None:
    """Remove a file of hugetlbfs."""
    live.actor().call("unlinkat", AT_FDCWD, path, 0)


def expect_backend(live: Live, guests: Guests, guest: Guest, backend: MemoryBackend, nr: int) -> None:
    """Expect ``backend`` to do to a pool of ``nr`` free pages what its options say, while it is there and after it."""
    outcome = backend.outcome(nr)
    definition = backend.definition(guests.site, _NAME)
    if outcome.refusal is None:
        guest.add_backend(definition)
        live.expect_pool(nr=nr, free=nr - outcome.taken, resv=outcome.reserved)
        mapped = [(backend.is_shared, backend.memory, outcome.taken * live.size)]
        live.expect("memory in huge pages: shared, bytes, bytes that are there", mapped, guest.hugetlb_mappings)
        guest.remove_backend(_NAME)
        guest.await_hugetlb_unmapped()
        live.expect("memory in huge pages without it", [], guest.hugetlb_mappings)
    else:
        guests.expect_refused(outcome.refusal, guest.add_backend, definition)
    expect_left(live, guests, backend, outcome, nr)


def expect_left(live: Live, guests: Guests, backend: MemoryBackend, outcome: PoolOutcome, nr: int) -> None:
    """Expect a backend that is gone to have left in the pool what its file keeps, and nothing without that file."""
    live.expect_pool(nr=nr, free=nr - outcome.kept, resv=outcome.kept_reserved)
    if backend.store is Store.NAMED_FILE and outcome.refusal is None:
        remove_file(live, backend.path(guests.site))
        live.expect_pool(nr=nr, free=nr)


@case(
    "a backend takes, reserves, shares and keeps what its options say, and is refused where they make no sense", HOSTMEM
)
def each_combination(live: Live, guests: Guests) -> None:
    nr = pages_of_a_backend(live)
    live.reserve(nr)
    guest = on_ordinary_pages(guests)
    for backend in every_backend(nr * live.size, live.size):
        with live.about(str(backend)):
            expect_backend(live, guests, guest, backend, nr)


@case("in a pool that is a page short only backends that reserve nothing come up, and they take no page", HOSTMEM)
def each_combination_short(live: Live, guests: Guests) -> None:
    nr = pages_of_a_backend(live)
    live.reserve(nr - 1)
    guest = on_ordinary_pages(guests)
    for backend in every_backend(nr * live.size, live.size, (Store.FILE, Store.MEMFD)):
        with live.about(str(backend)):
            expect_backend(live, guests, guest, backend, nr - 1)


@case(
    "the memory of the board takes, reserves, shares and keeps what the options of its backend say",
    DISCARD,
    sizes=Sizes.DEFAULT,
)
def each_combination_of_the_board(live: Live, guests: Guests) -> None:
    guest = guests.new_with_pages()
    for backend in every_backend(guest.description.memory, live.size, (Store.NAMED_FILE, Store.MEMFD)):
        with live.about(str(backend)):
            expect_board(live, guests, guest, backend)


def expect_board(live: Live, guests: Guests, guest: Guest, backend: MemoryBackend) -> None:
    """Expect a guest whose memory is ``backend`` to have what its options say, and QEMU to leave that at its end."""
    outcome = backend.outcome(guest.pages)
    guest.define_with_memory(backend.definition(guests.site, "memory0"))
    if outcome.refusal is not None:
        guests.expect_refused(outcome.refusal, guest.start)
        guest.expect_state(State.OFF)
        live.expect_pool(nr=guest.pages, free=guest.pages)
        return
    guest.start()
    # into memory that is not taken yet QEMU loads a kernel on some boards
    there = guests.expect_rest_in_pool(guest, reserved=backend.is_reserved)
    live.expect("whether all pages are taken", backend.is_preallocated, there == 0)
    shared = [shared for shared, memory, _ in guest.hugetlb_mappings if memory == backend.memory]
    live.expect("whether its memory is mapped as shared", [backend.is_shared], shared)
    outcome = backend.outcome(guest.pages, guest.pages - there)
    pid = guest.pid
    guest.quit()
    guest.await_end(pid)
    expect_left(live, guests, backend, outcome, guest.pages)


@case(
    "memory that is plugged in takes, reserves and shares what the options of its backend say, and leaves what they say"
    " when it is plugged out",
    DISCARD,
    sizes=Sizes.DEFAULT,
)
def each_combination_of_a_dimm(live: Live, guests: Guests) -> None:
    nr = whole_pages(_BLOCK, live.size)
    memory = nr * live.size
    # what is plugged in is aligned to its pages
    guest = guests.new(Cell(_ROOM, None), max_memory=_ROOM + 4 * memory)
    live.reserve(nr)
    guest.boot()
    guest.run(f"{_COUNT_BLOCKS} >{_BLOCKS_OF_BOARD}")
    for backend in every_backend(memory, live.size, (Store.NAMED_FILE,)):
        with live.about(str(backend)):
            expect_dimm(live, guests, guest, backend, nr)


def expect_dimm(live: Live, guests: Guests, guest: Guest, backend: MemoryBackend, nr: int) -> None:
    """Expect a DIMM with ``backend`` to do to a pool of ``nr`` free pages what its options say, plugged in and out."""
    outcome = backend.outcome(nr)
    definition = backend.definition(guests.site, _NAME)
    if outcome.refusal is not None:
        guests.expect_refused(outcome.refusal, guest.plug, definition)
        live.expect_pool(nr=nr, free=nr)
        return
    guest.plug(definition)
    # it touches some of it, or none, while it makes them
    guest.run(f"until [ $({_COUNT_BLOCKS}) -gt $(cat {_BLOCKS_OF_BOARD}) ]; do sleep 0.05; done; sleep 0.2")
    there = nr - guest.mapped
    live.expect("whether all pages are taken", True, there == 0 or not backend.is_preallocated)
    live.expect_pool(nr=nr, free=there, resv=there if backend.is_reserved else 0)
    live.expect("whether it is mapped as shared", [backend.is_shared], [one[0] for one in guest.hugetlb_mappings])
    guest.unplug(definition)
    guest.await_hugetlb_unmapped()
    expect_left(live, guests, backend, backend.outcome(nr, nr - there), nr)


def with_policy(
    live: Live, guests: Guests, pages: int, policy: str, nodes: list[int], *, is_preallocated: bool = True
) -> str:
    """Return a backend of ``pages`` pages with a policy for ``nodes``."""
    memory = pages * live.size
    options = MemoryBackend(memory, live.size, Store.FILE, is_preallocated=is_preallocated)
    backend = json.loads(options.definition(guests.site, _NAME))
    return json.dumps(backend | {"policy": policy} | ({"host-nodes": nodes} if nodes else {}))


@case("a backend has the policy that it is given, and is refused where nodes and policy do not go together", POLICY)
def each_policy(live: Live, guests: Guests) -> None:
    needs(bool(live.nodes), NO_NODES)
    nr, absent = pages_of_a_backend(live), missing_node(live)
    guest = on_ordinary_pages(guests)
    for node in sorted({live.nodes[0], live.nodes[-1]}):
        live.set_nr(0)
        live.reserve(nr, node)
        expect_policies_on(live, guests, guest, node, absent)


def expect_policies_on(live: Live, guests: Guests, guest: Guest, node: int, absent: int) -> None:
    """Expect backends to have each policy for ``node``, which has all pages, and to be refused the ``absent`` one."""
    nr = pages_of_a_backend(live)
    for policy, nodes, is_preallocated in itertools.product(_POLICIES, ([], [node], [absent]), (True, False)):
        with live.about(f"policy={policy} host-nodes={nodes} prealloc={is_preallocated}"):
            definition = with_policy(live, guests, nr, policy, nodes, is_preallocated=is_preallocated)
            if (policy == "default") == bool(nodes):
                guests.expect_refused(Meaning.EXCLUDE_EACH_OTHER, guest.add_backend, definition)
            elif absent in nodes:
                guests.expect_refused(Meaning.NO_SUCH_NODE, guest.add_backend, definition)
            else:
                guest.add_backend(definition)
                there = nr if is_preallocated else 0
                live.expect_pool(nr=nr, free=nr - there, resv=nr - there)
                live.expect_pool(nr=nr, free=nr - there, node=node)
                whole = [(False, nr * live.size, there * live.size)]
                live.expect("memory in huge pages: shared, bytes, bytes that are there", whole, guest.hugetlb_mappings)
                guest.expect_policy(policy, nodes)
                guest.expect_on_nodes({node: there} if there else {})
                told = [(one["policy"], one["host-nodes"], one["prealloc"]) for one in guest.backends(nr * live.size)]
                live.expect("policy, nodes and preallocation of it", [(policy, nodes, is_preallocated)], told)
                guest.remove_backend(_NAME)
            guest.await_hugetlb_unmapped()
            live.expect("memory in huge pages without it", [], guest.hugetlb_mappings)
            live.expect_pool(nr=nr, free=nr)


@case(
    "memory that is plugged into a busy guest has the policy of its backend, takes pages of its node, and gives them"
    " back",
    POLICY,
    sizes=Sizes.DEFAULT,
)
def each_policy_of_a_dimm(live: Live, guests: Guests) -> None:
    needs(bool(live.nodes), NO_NODES)
    node, nr = live.nodes[0], whole_pages(_BLOCK, live.size)
    memory = nr * live.size
    # what is plugged in is aligned to its pages, and only what is movable can be given back
    words = "memhp_default_state=online_movable"
    guest = guests.new(Cell(_ROOM, None), max_memory=_ROOM + 4 * memory, words=words)
    live.reserve(nr, node)
    guest.boot()
    guest.keep_busy(_MEMORY)
    board = guest.memory
    for policy in _POLICIES:
        nodes = [] if policy == "default" else [node]
        with live.about(f"policy={policy} host-nodes={nodes}"):
            definition = with_policy(live, guests, nr, policy, nodes)
            guest.plug(definition)
            guest.expect_memory(board + memory)
            live.expect_pool(nr=nr, free=0, node=node)
            whole = [(False, memory, memory)]
            live.expect("memory in huge pages: shared, bytes, bytes that are there", whole, guest.hugetlb_mappings)
            guest.expect_policy(policy, nodes)
            guest.expect_on_nodes({node: nr})
            guest.unplug(definition)
            guest.await_hugetlb_unmapped()
            guest.expect_memory(board)
            guest.expect_busy()
            live.expect_pool(nr=nr, free=nr, node=node)


@case("memory in a directory that is not there is refused, and no page is lost", HOSTMEM, sizes=Sizes.DEFAULT)
def no_such_directory(live: Live, guests: Guests) -> None:
    nr = pages_of_a_backend(live)
    live.reserve(nr)
    guest = on_ordinary_pages(guests)
    backend = json.loads(MemoryBackend(nr * live.size, live.size, Store.FILE).definition(guests.site, _NAME))
    refused = json.dumps(backend | {"mem-path": f"{guests.site.mounts[live.size]}/absent/file"})
    guests.expect_refused(Meaning.NO_SUCH_DIRECTORY, guest.add_backend, refused)
    live.expect_pool(nr=nr, free=nr)
    # the guest is none the worse
    guest.add_backend(json.dumps(backend))
    live.expect_pool(nr=nr, free=0)
    live.expect(
        "memory in huge pages: shared, bytes, bytes that are there",
        [(False, nr * live.size, nr * live.size)],
        guest.hugetlb_mappings,
    )


class MemoryBackends(GuestTest):
    def test_qemu(self) -> None:
        self.run_area(QEMU)
