"""Policies of transparent huge pages: of ranges of shared memory, in turn by their place in it, and in a cpuset."""

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import Version
from hugepage_qa.cases.followed_cpuset import expect_pages_to_follow, expect_policies_to_follow
from hugepage_qa.cases.hugetlb_files import IPC_CREAT, SHM_REMAP, segment_number
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import (
    F_ADDR,
    Mode,
    bind,
    give_policy,
    interleave,
    nodes_of,
    policy_of,
    told_policy,
)
from hugepage_qa.cases.mount_policies import (
    expect_mount_policy,
    file_without_name,
    mount_policies,
    wrong_mount_policies,
)
from hugepage_qa.cases.thp_memory import (
    map_aligned,
    mapped_huge,
    mount_tmpfs,
    need_blocks,
    pmd_size,
    remount_tmpfs,
    room_for,
)
from hugepage_qa.cases.thp_nodes import two_nodes_with_room
from hugepage_qa.cases.thp_policy import advised
from hugepage_qa.kernel.nodes import read_nodes
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MAP_FIXED
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.node_policies import PoliciesOfRanges, node_in_turn_of_inode
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

NODE_POLICIES = Area("thp/node-policies", sizes=Sizes.ONCE)

_PAGES = 4
DOCUMENT = "Documentation/admin-guide/mm/numa_memory_policy.rst"


@dataclass(frozen=True)
class View:
    """A mapping of shared memory from its base page ``first`` on."""

    memory: Memory
    first: int
    base_page: int

    def has(self, page: int) -> bool:
        """Tell whether it has a base page of the shared memory."""
        return 0 <= (page - self.first) * self.base_page < self.memory.length

    def at(self, page: int) -> int:
        """Return where it has a base page of the shared memory."""
        return self.memory.address + (page - self.first) * self.base_page

    def part(self, live: Live, first: int, end: int) -> Memory:
        """Return base pages from ``first`` to before ``end`` of the shared memory."""
        return Memory(live, self.memory.actor, self.at(first), end - first, self.base_page)


@dataclass(frozen=True)
class Shared:
    """Shared memory, two mappings of which tell its policies; ``fresh`` maps at least a range of it anew.

    A policy that a mapping has of its own already is not given to the memory again, though it got another one through
    another mapping meanwhile (mbind_range() in mm/mempolicy.c): each is given through a new one, if there can be one.
    """

    live: Live
    views: tuple[View, View]
    fresh: Callable[[int, int], View] | None

    def give(self, first: int, end: int, node: int | None) -> None:
        """Bind base pages from ``first`` to before ``end`` to ``node``, or to none."""
        view = self.fresh(first, end) if self.fresh else self.views[0]
        part = view.part(self.live, first, end)
        if node is None:
            # what has no policy cannot lose it
            bind(part, self.live.nodes[:1])
            give_policy(part, Mode.DEFAULT, [])
        else:
            bind(part, [node])
        if self.fresh:
            view.memory.actor.end()

    def end(self) -> None:
        """End the processes that have it."""
        for view in reversed(self.views):
            view.memory.actor.end()


@NODE_POLICIES.case(
    "a policy that is given to a range of shared memory through one mapping is that of the range in each mapping and"
    " each process, from its first base page to its last, whatever ranges had another one before, none where it was"
    " taken away, and its huge pages come from there",
    f"{DOCUMENT} Shared Policies; mbind(2); get_mempolicy(2) MPOL_F_ADDR; mm/mempolicy.c mpol_set_shared_policy(),"
    " shared_policy_replace(), mpol_shared_policy_lookup()",
    nodes=2,
)
def ranges_of_shared_memory(live: Live) -> None:
    here, there = two_nodes_with_room(live, _PAGES)
    every = pmd_size(live) // live.base_page
    end = _PAGES * every
    # first and end in base pages, and node: all ways in which a range lies to others, of huge pages and of parts
    steps = (
        (0, end, here),
        (every, 2 * every, there),
        (end - every, end, there),
        (2 * every, end, here),
        (every + every // 2, 2 * every + every // 2, there),
        (end - 1, end, there),
        (0, 1, there),
        (2 * every - 1, 2 * every + 1, None),
        (every - 1, 3 * every + 1, here),
        (0, every, None),
        (every, end, None),
        (2, end - 2, there),
        (0, end, None),
        *((page * every, (page + 1) * every, (here, there)[page % 2]) for page in range(_PAGES)),
    )
    for name, shared in _shared_memory(live):
        policies = PoliciesOfRanges(end)
        for number, (first, last, node) in enumerate(steps):
            policies.bind(first, last, node)
            with live.about(f"{name}, step {number}: base pages {first} to {last} bound to {node}"):
                shared.give(first, last, node)
                for view in shared.views:
                    _expect_policies(live, view, policies)
        with live.about(name):
            for view in reversed(shared.views):
                view.memory.fill()
            whole = shared.views[0].memory
            ends = [whole.at(page) + offset for page in range(_PAGES) for offset in (0, whole.size - live.base_page)]
            expected = [node for page in range(_PAGES) for node in 2 * [(here, there)[page % 2]]]
            live.expect("nodes of both ends of the pages", expected, nodes_of(whole.actor, ends))
            whole.expect_filled()
            for view in shared.views:
                live.expect("ShmemPmdMapped", view.memory.length, _mapped_whole(view.memory))
            shared.end()


def _mapped_whole(memory: Memory) -> int:
    return sum(mapping.shmem_pmd_mapped for mapping in memory.mappings())


def _expect_policies(live: Live, view: View, policies: PoliciesOfRanges) -> None:
    for page in policies.telling_pages():
        if view.has(page):
            node = policies.node_of(page)
            wanted = (Mode.DEFAULT, []) if node is None else (Mode.BIND, [node])
            found = told_policy(view.memory.actor, view.at(page), F_ADDR)
            live.expect(f"policy of base page {page}, mapped from page {view.first} on", wanted, found)


def _shared_memory(live: Live) -> Iterator[tuple[str, Shared]]:
    """Yield shared memory of each kind that gets huge pages, mapped by two processes."""
    every = pmd_size(live) // live.base_page

    def of_a_file(actor: Actor, descriptor: int) -> Shared:
        actor.call("ftruncate", descriptor, _PAGES * pmd_size(live))

        def opened() -> tuple[Actor, int]:
            other = live.actor()
            return other, live.open(other, f"/proc/{actor.pid}/fd/{descriptor}", os.O_RDWR)

        def fresh(first: int, end: int) -> View:
            return _map(live, *opened(), first, end - first)

        whole = _map(live, actor, descriptor, 0, _PAGES * every)
        return Shared(live, (whole, _map(live, *opened(), every, (_PAGES - 1) * every)), fresh)

    def anonymous() -> Shared:
        memory = map_aligned(live, _PAGES, pmd_size(live), shared=True, advice=MADV_HUGEPAGE)
        child = memory.seen_by(memory.actor.fork())
        return Shared(live, (View(memory, 0, live.base_page), View(child, 0, live.base_page)), None)

    def segment() -> Shared:
        number = segment_number(live, live.actor(), _PAGES * pmd_size(live), 0o600 | IPC_CREAT)

        def fresh(_first: int, _end: int) -> View:
            actor = live.actor()
            place = room_for(actor, _PAGES, pmd_size(live))
            actor.call("shmat", number, place, SHM_REMAP)
            memory = Memory(live, actor, place, _PAGES, pmd_size(live))
            memory.advise(MADV_HUGEPAGE)
            return View(memory, 0, live.base_page)

        return Shared(live, (fresh(0, 0), fresh(0, 0)), fresh)

    actor = live.actor()
    yield "tmpfs", of_a_file(actor, live.open(actor, f"{mount_tmpfs(live, 'always')}/file"))
    actor = live.actor()
    yield "memfd", of_a_file(actor, actor.call("memfd_create", "policies", 0))
    yield "anonymous", anonymous()
    yield "segment", segment()


def _map(live: Live, actor: Actor, descriptor: int, first: int, count: int) -> View:
    """Map ``count`` base pages of a file from ``first`` on, advised, where huge pages fit."""
    size, page = pmd_size(live), live.base_page
    before = first * page % size
    place = room_for(actor, -(-(before + count * page) // size), size) + before
    actor.mmap(count * page, READ_WRITE, mmap.MAP_SHARED | MAP_FIXED, descriptor, first * page, place)
    each = page if before or count * page % size else size
    memory = Memory(live, actor, place, count * page // each, each)
    memory.advise(MADV_HUGEPAGE)
    return View(memory, first, live.base_page)


@NODE_POLICIES.case(
    "interleaved pages of shared memory, huge ones and base pages, come from the nodes in turn by their place in it and"
    " the number of its inode, in whichever order, mapping and process they are touched",
    f"{DOCUMENT} MPOL_INTERLEAVE, Shared Policies; mbind(2); mm/shmem.c shmem_get_policy(), shmem_pseudo_vma_init()",
    nodes=2,
)
def interleaved_shared_memory(live: Live) -> None:
    nodes = two_nodes_with_room(live, _PAGES)
    every = pmd_size(live) // live.base_page
    for huge in (True, False):
        live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise" if huge else "never")
        pages = [page * every for page in range(_PAGES)] if huge else range(every, every + 2 * _PAGES)
        for name, shared in _shared_memory(live):
            # the mount of a tmpfs decides for itself
            if huge or name != "tmpfs":
                interleave(shared.views[0].memory, nodes)
                inode, found = shared.views[0].memory.smaps().inode, {}
                for number, page in reversed(list(enumerate(pages))):
                    view = shared.views[number % 2]
                    if not view.has(page):
                        view = shared.views[0]
                    view.memory.actor.write(view.at(page), 1)
                    found[page] = nodes_of(view.memory.actor, [view.at(page)])[0]
                order = every.bit_length() - 1 if huge else 0
                wanted = {
                    page: node_in_turn_of_inode(nodes, page >> order, inode, order, live.kernel_version)
                    for page in found
                }
                live.expect(f"{name}, huge {huge}: nodes of base pages", wanted, found)
                mapped = sum(_mapped_whole(view.memory) for view in shared.views)
                live.expect(f"{name}: ShmemPmdMapped", huge * _PAGES * pmd_size(live), mapped)
            shared.end()


@NODE_POLICIES.case(
    "policies of memory in huge pages, and of their process, follow when the nodes of its cpuset change and when it"
    " moves to another one: remapped without a flag, those of the user's nodes that are there with"
    " MPOL_F_STATIC_NODES, those with their numbers with MPOL_F_RELATIVE_NODES; all nodes where none is left",
    f"{DOCUMENT} MPOL_F_STATIC_NODES, MPOL_F_RELATIVE_NODES; Documentation/admin-guide/cgroup-v2.rst cpuset.mems;"
    " get_mempolicy(2) MPOL_F_MEMS_ALLOWED; mm/mempolicy.c mpol_rebind_mm(), mpol_rebind_nodemask()",
    nodes=2,
)
def policies_follow_the_cpuset(live: Live) -> None:
    two_nodes_with_room(live, _PAGES)
    expect_policies_to_follow(
        live,
        lambda actor: advised(live, 2, actor=actor),
        lambda memory: memory.address // memory.size,
        lambda memory: live.expect("AnonHugePages of one page", memory.size, memory.smaps().anon_huge_pages),
    )


@NODE_POLICIES.case(
    "huge pages of a process, anonymous and shared, move as a whole when the nodes of its cpuset change and when it"
    " moves to another one, to the nodes that it has then: those that lie on one of these stay",
    "Documentation/admin-guide/cgroup-v2.rst cpuset.mems; kernel/cgroup/cpuset.c cpuset_migrate_mm();"
    " mm/mempolicy.c do_migrate_pages()",
    since="6.1",
    nodes=2,
)
def pages_follow_the_cpuset(live: Live) -> None:
    two_nodes_with_room(live, _PAGES)

    def expect_whole(memory: Memory) -> None:
        # what finds no free block is split, and moved as base pages
        need_blocks(live, memory)
        live.expect("bytes in huge pages", memory.length, mapped_huge(memory))

    def map_one(actor: Actor, shared: bool) -> Memory:
        return map_aligned(live, 1, pmd_size(live), shared=shared, actor=actor, advice=MADV_HUGEPAGE)

    expect_pages_to_follow(live, Version.TWO, map_one, expect_whole)


@NODE_POLICIES.case(
    "the policy of a tmpfs, given by mpol= when it is mounted or mounted anew, is that of files made since: told of"
    " their mappings, and where their huge pages come from, whichever processor touches them; files from before keep"
    " theirs, a remount without mpol= keeps it, and one that is wrong is EINVAL",
    "Documentation/filesystems/tmpfs.rst mpol; mm/mempolicy.c mpol_parse_str(), mpol_to_str(),"
    " mpol_shared_policy_init(); mm/shmem.c shmem_reconfigure(), shmem_show_mpol()",
    nodes=2,
)
def policies_of_mounts(live: Live) -> None:
    of_machine = read_nodes(live.host).each
    nears = [node for node in two_nodes_with_room(live, _PAGES) if of_machine[node].cpus]
    if not nears:
        raise CannotRun("neither of the nodes with memory has processors")
    wrong = wrong_mount_policies(live)
    point = mount_tmpfs(live, "always")
    owner, earlier = live.actor(), live.actor()
    kept: tuple[int, list[int]] = (Mode.DEFAULT, [])
    kept_file = file_without_name(live, earlier, point)
    for number, row in enumerate(mount_policies(live)):
        near, far = nears[number % len(nears)], nears[(number + 1) % len(nears)]
        with live.about(f"mpol={row.option}, processors of node {near} and {far}"):
            remount_tmpfs(owner, point, f"mpol={row.option}")
            expect_mount_policy(live, point, row, near)
            live.expect("policy of a file from before", kept, policy_of(kept_file))
            remount_tmpfs(owner, point, "huge=always")
            expect_mount_policy(live, point, row, far)
            live.expect_errno(errno.EINVAL, remount_tmpfs, owner, point, f"mpol={wrong[number % len(wrong)]}")
            expect_mount_policy(live, point, row, near)
        kept, kept_file = row.told, file_without_name(live, earlier, point)
        with live.about(f"mounted with mpol={row.option}, processor of node {far}"):
            expect_mount_policy(live, live.mount_other(f"huge=always,mpol={row.option}", "tmpfs"), row, far)
    for option in wrong:
        with live.about(f"mounted with mpol={option}"):
            live.expect_errno(errno.EINVAL, live.mount_other, f"mpol={option}", "tmpfs")


class ThpNodePolicies(LiveTest):
    """Policies of transparent huge pages on NUMA nodes.

    :avocado: enable
    """

    def test_node_policies(self) -> None:
        """Every case, once for the machine."""
        self.run_area(NODE_POLICIES)
