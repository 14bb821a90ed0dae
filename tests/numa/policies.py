"""Policies of huge pages: what is told of them, how far they reach, and how they follow a file and a cpuset."""

import errno
import mmap
from collections.abc import Iterator

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.control_group import Version
from hugepage_qa.cases.followed_cpuset import expect_pages_to_follow, expect_policies_to_follow
from hugepage_qa.cases.hugetlb_files import HugeFile, new_memfd, open_again, open_file
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.hugetlb_segments import IPC_CREAT, SHM_NORESERVE, get_segment
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import (
    F_ADDR,
    F_MEMS_ALLOWED,
    F_NODE,
    Mode,
    bind,
    give_policy,
    interleave,
    node_of,
    policy_of,
    set_home_node,
    set_policy,
    told_policy,
)
from hugepage_qa.cases.pages_of_a_node import missing_node, reserve_on_all
from hugepage_qa.cases.places import free_place
from hugepage_qa.oracle.node_policies import RELATIVE, STATIC, PoliciesOfRanges, node_in_turn
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

POLICIES = Area("numa/policies")

DOCUMENT = "Documentation/admin-guide/mm/numa_memory_policy.rst"
PAGES_FOLLOW = (
    "pages of a process move, when the nodes of its cpuset change and when it moves to another one, to the nodes that"
    " it has then, for a child that has them, too: those that lie on one of these stay, and the others go to the node"
    " with the same place among them"
)
MIGRATION = "kernel/cgroup/cpuset.c cpuset_migrate_mm(); mm/mempolicy.c do_migrate_pages()"
#: of the file that parts are mapped of
_PAGES = 4


@POLICIES.case(
    "interleaved pages come from the node that their place in the file says, whatever part of it is mapped, privately"
    " or shared, and by whose policy, of the memory or of the process, and also where fallocate(2) brings them",
    f"{DOCUMENT} MPOL_INTERLEAVE; mm/mempolicy.c interleave_nid(), huge_node(); fs/hugetlbfs/inode.c"
    " hugetlbfs_fallocate()",
    nodes=2,
)
def interleaved_by_their_place_in_the_file(live: Live) -> None:
    nodes = live.nodes[:2]
    for node in nodes:
        live.reserve(1, node)
    for shared in (False, True):
        for first, pages in ((1, 1), (0, 2), (2, 2), (1, 2), (3, 1)):
            for of_process in (False, True):
                with live.about(f"{pages} pages from {first} on, shared {shared}, policy of the process {of_process}"):
                    file = new_memfd(live, pages=_PAGES)
                    memory = file.map(pages, shared=shared, first=first)
                    if of_process:
                        set_policy(file.actor, Mode.INTERLEAVE, nodes)
                    else:
                        interleave(memory, nodes)
                    # the last one first: no page comes after another one
                    for page in reversed(range(pages)):
                        memory.touch(page)
                        live.expect(f"node of page {page}", node_in_turn(nodes, first + page), node_of(memory, page))
                    file.actor.end()
                    live.expect_pool(nr=2, free=2)
    file = new_memfd(live)
    set_policy(file.actor, Mode.INTERLEAVE, nodes)
    for page in (3, 2):
        file.allocate(1, page)
    memory = file.map(_PAGES, noreserve=True)
    for page in (2, 3):
        memory.touch(page)
        live.expect(f"node of allocated page {page}", node_in_turn(nodes, page), node_of(memory, page))


@POLICIES.case(
    "interleaved pages keep to their place in the file when a part of their mapping is unmapped, protected or"
    " given the same policy before they are touched, and in a child",
    f"{DOCUMENT} MPOL_INTERLEAVE; mm/mempolicy.c interleave_nid(), vma_dup_policy()",
    nodes=2,
)
def interleaved_in_parts_of_a_mapping(live: Live) -> None:
    nodes = live.nodes[:2]
    for node in nodes:
        live.reserve(1, node)

    def unmapped(memory: Memory) -> Memory:
        memory.unmap(0, 1)
        return memory

    def protected(memory: Memory) -> Memory:
        memory.protect(1, 0, 1)
        return memory

    def given_again(memory: Memory) -> Memory:
        interleave(memory.part(1, 2), nodes)
        return memory

    def in_a_child(memory: Memory) -> Memory:
        return memory.fork()

    for change in (unmapped, protected, given_again, in_a_child):
        for page in (1, 2):
            with live.about(f"{change.__name__.replace('_', ' ')}, page {page}"):
                memory = live.map(3, noreserve=True)
                interleave(memory, nodes)
                changed = change(memory)
                changed.touch(page)
                live.expect("node of the page", node_in_turn(nodes, page), node_of(changed, page))
                live.expect("policy", (Mode.INTERLEAVE, list(nodes)), policy_of(changed.part(page)))
                changed.actor.end()
                memory.actor.end()
                live.expect_pool(nr=2, free=2)


@POLICIES.case(
    "policies of huge pages, and of their process, follow when the nodes of its cpuset change and when it moves to"
    " another one: remapped without a flag, those of the user's nodes that are there with MPOL_F_STATIC_NODES, those"
    " with their numbers with MPOL_F_RELATIVE_NODES; all nodes where none is left",
    f"{DOCUMENT} MPOL_F_STATIC_NODES, MPOL_F_RELATIVE_NODES; Documentation/admin-guide/cgroup-v2.rst cpuset.mems;"
    " get_mempolicy(2) MPOL_F_MEMS_ALLOWED; mm/mempolicy.c mpol_rebind_mm(), mpol_rebind_nodemask()",
    nodes=2,
)
def policies_follow_the_cpuset(live: Live) -> None:
    for node in live.nodes[:2]:
        live.reserve(1, node)
    expect_policies_to_follow(live, lambda actor: live.map(2, actor, noreserve=True), lambda _memory: 0)
    live.expect_pool(nr=2, free=2)


@POLICIES.case(
    PAGES_FOLLOW,
    f"Documentation/admin-guide/cgroup-v2.rst cpuset.mems; {MIGRATION}",
    since="6.1",
    nodes=2,
)
def pages_follow_the_cpuset(live: Live) -> None:
    _expect_pages_to_follow(live, Version.TWO)


@POLICIES.case(
    f"{PAGES_FOLLOW}, if cpuset.memory_migrate of the cpuset is set; else they stay",
    f"Documentation/admin-guide/cgroup-v1/cpusets.rst memory_migrate; {MIGRATION}",
    nodes=2,
)
def pages_follow_the_cpuset_of_version_1(live: Live) -> None:
    _expect_pages_to_follow(live, Version.ONE)


def _expect_pages_to_follow(live: Live, version: Version) -> None:
    for node in live.nodes[:2]:
        live.reserve(1, node)

    def map_one(actor: Actor, shared: bool) -> Memory:
        return live.map(1, actor, shared=shared, noreserve=True)

    def fork(memory: Memory, shared: bool) -> Memory:
        return memory.fork() if shared else forked(live, memory)

    expect_pages_to_follow(live, version, map_one, fork=fork)
    live.expect_pool(nr=2, free=2)


@POLICIES.case(
    "a policy that is given to some pages of a mapping is that of these alone, of each of them from the first base page"
    " to the last, the latest one where several were given, and none where it was taken away; a child has the same, and"
    " another mapping of the same pages has none",
    f"mbind(2); get_mempolicy(2) MPOL_F_ADDR; {DOCUMENT} Shared Policies; mm/mempolicy.c mbind_range()",
    nodes=2,
)
def policies_of_ranges(live: Live) -> None:
    here, there = live.nodes[:2]
    every = live.size // live.base_page
    steps = ((0, 4, here), (1, 2, there), (3, 4, there), (0, 1, None), (1, 3, here), (2, 4, None), (0, 4, there))
    for name, (memory, other) in _mappings(live):
        policies = PoliciesOfRanges(_PAGES * every)
        for first, end, node in steps:
            policies.bind(first * every, end * every, node)
            part = memory.part(first, end - first)
            if node is None:
                give_policy(part, Mode.DEFAULT, [])
            else:
                bind(part, [node])
            with live.about(f"{name}, pages {first} to {end} bound to {node}"):
                _expect_policies(live, memory, policies)
        with live.about(name):
            for page in range(_PAGES):
                live.expect(
                    f"policy of page {page} in another mapping",
                    (Mode.DEFAULT, []),
                    policy_of(other.part(page)),
                )
            _expect_policies(live, memory.fork(), policies)
            memory.actor.end()
            other.actor.end()
            live.expect_pool(nr=0, free=0)


@POLICIES.case(
    "each page of huge memory that processes share comes from the node of the policy that the process gave its mapping"
    " which touches it first, whatever policy others gave theirs meanwhile, also when it was given again",
    f"mbind(2); {DOCUMENT} Shared Policies: not completed for hugetlbfs",
    nodes=2,
)
def policies_of_each_process(live: Live) -> None:
    here, there = live.nodes[:2]
    for node in (here, there):
        live.reserve(1, node)
    shared = ((name, memories) for name, memories in _mappings(live) if name != "private")
    for name, (one, other) in shared:
        with live.about(name):
            bind(one, [here])
            give_policy(other, Mode.DEFAULT, [])
            live.expect("policy, taken from the other mapping", (Mode.BIND, [here]), policy_of(one))
            bind(other, [there])
            bind(one, [here])
            for memory, page, node in ((other, 2, there), (one, 1, here)):
                memory.touch(page)
                live.expect(f"node of page {page}", node, node_of(memory, page))
            live.expect_pool(nr=2, free=0)
            one.advise(mmap.MADV_REMOVE)
            one.actor.end()
            other.actor.end()
            live.expect_pool(nr=2, free=2)


def _mappings(live: Live) -> Iterator[tuple[str, tuple[Memory, Memory]]]:
    """Yield memory of each kind, of which nothing is reserved, and another mapping of it."""

    def of_a_file(file: HugeFile) -> tuple[Memory, Memory]:
        file.truncate(_PAGES)
        return file.map(_PAGES, noreserve=True), open_again(live, file).map(_PAGES, noreserve=True)

    private = live.map(_PAGES, noreserve=True)
    yield "private", (private, live.map(_PAGES, private.actor, noreserve=True))
    segment = get_segment(live, _PAGES * live.size, flags=0o600 | IPC_CREAT | SHM_NORESERVE)
    yield "segment", (segment.attach(), segment.attach(live.actor()))
    yield "file", of_a_file(open_file(live, f"{live.mount()}/file"))
    yield "memfd", of_a_file(new_memfd(live))


def _expect_policies(live: Live, memory: Memory, policies: PoliciesOfRanges) -> None:
    for page in policies.telling_pages():
        node = policies.node_of(page)
        wanted = (Mode.DEFAULT, []) if node is None else (Mode.BIND, [node])
        found = told_policy(memory.actor, memory.address + page * live.base_page, F_ADDR)
        live.expect(f"policy of base page {page}", wanted, found)


@POLICIES.case(
    "get_mempolicy(2) tells the policy of the process, with the flag that it has, of memory that of its own alone, the"
    " nodes that may be used, and the node of a page, which it brings where there is none, from the node of its policy;"
    " other flags and addresses it refuses",
    "get_mempolicy(2); mm/mempolicy.c do_get_mempolicy(), lookup_node()",
    nodes=2,
)
def what_is_told(live: Live) -> None:
    here, there = live.nodes[:2]
    reserve_on_all(live, 1)
    memory = live.map(1)
    actor = memory.actor
    policies = [(Mode.BIND, [here]), (Mode.PREFERRED, [there]), (Mode.INTERLEAVE, [here, there]), (Mode.BIND, [there])]
    for (mode, nodes), flag in [(policy, flag) for policy in policies for flag in (0, STATIC, RELATIVE)]:
        set_policy(actor, mode | flag, nodes)
        live.expect("policy of the process", (mode | flag, nodes), told_policy(actor))
        live.expect("policy of memory without one", (Mode.DEFAULT, []), policy_of(memory))
    live.expect("whether all nodes may be used", True, {here, there} <= set(told_policy(actor, 0, F_MEMS_ALLOWED)[1]))
    bind(memory, [here])
    live.expect("node of a page that is not there yet", here, told_policy(actor, memory.address, F_NODE | F_ADDR)[0])
    live.expect_pool(node=here, nr=1, free=0)
    live.expect("node of the page", here, node_of(memory))
    nowhere = free_place(live, actor, 1)
    refusals: list[tuple[str, int, int, int]] = [
        ("an address where nothing is mapped", errno.EFAULT, nowhere, F_ADDR),
        ("the node of a page where nothing is mapped", errno.EFAULT, nowhere, F_ADDR | F_NODE),
        ("an address without MPOL_F_ADDR", errno.EINVAL, memory.address, 0),
        ("the next node of a policy that is not interleaved", errno.EINVAL, 0, F_NODE),
        ("allowed nodes, and the node of a page", errno.EINVAL, memory.address, F_MEMS_ALLOWED | F_NODE),
        ("allowed nodes, and a policy", errno.EINVAL, memory.address, F_MEMS_ALLOWED | F_ADDR),
        ("a flag that there is not", errno.EINVAL, memory.address, F_ADDR | 1 << 3),
    ]
    for name, number, address, flags in refusals:
        with live.about(name):
            live.expect_errno(number, told_policy, actor, address, flags)
    set_policy(actor, Mode.DEFAULT, [])
    live.expect("policy of the process", (Mode.DEFAULT, []), told_policy(actor))
    memory.unmap()
    live.expect_pool(nr=len(live.nodes), free=len(live.nodes))


@POLICIES.case(
    "a home node is that of the bound pages of a range, in whichever mapping, and of a child; it leaves what has no"
    " policy as it is, and a policy that chooses nodes in another way, nodes that are not there and flags are refused",
    f"set_mempolicy_home_node(2); {DOCUMENT} sys_set_mempolicy_home_node; mm/mempolicy.c, since c6018b4b2549",
    since="6.1",
    nodes=2,
)
def home_of_a_range(live: Live) -> None:
    nodes = here, there = live.nodes[:2]
    reserve_on_all(live, 1)
    for home in nodes:
        with live.about(f"home {home}"):
            memory = live.map(3, noreserve=True)
            bound = memory.part(1)
            bind(bound, nodes)
            set_home_node(memory, home)
            live.expect("policy of the bound page", (Mode.BIND, list(nodes)), policy_of(bound))
            for page in (0, 2):
                live.expect(f"policy of page {page}", (Mode.DEFAULT, []), policy_of(memory.part(page)))
            for one in (memory.fork(), memory):
                one.touch(1)
                live.expect("node of the bound page", home, node_of(one, 1))
                one.actor.end()
            live.expect_pool(nr=len(live.nodes), free=len(live.nodes))
    memory = live.map(1, noreserve=True)
    for mode in (Mode.INTERLEAVE, Mode.PREFERRED):
        give_policy(memory, mode, [here])
        with live.about(mode.name):
            live.expect_errno(errno.EOPNOTSUPP, set_home_node, memory, here)
    bind(memory, [here])
    live.expect_errno(errno.EINVAL, set_home_node, memory, missing_node(live))
    words = memory.address, memory.length, there, 1
    live.expect_errno(errno.EINVAL, memory.actor.call, "set_mempolicy_home_node", *words)


class NodePolicies(LiveTest):
    def test_policies(self) -> None:
        self.run_area(POLICIES)
