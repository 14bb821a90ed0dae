"""Policies of transparent huge pages: of ranges of shared memory, in turn by their place in it, and in a cpuset."""

import errno

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import Version
from hugepage_qa.cases.followed_cpuset import expect_pages_to_follow, expect_policies_to_follow
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import (
    F_ADDR,
    Mode,
    bind,
    give_policy,
    interleave,
    nodes_of,
    policy_of,
    processors_near,
    set_policy,
    told_policy,
)
from hugepage_qa.cases.mount_policies import (
    expect_mount_policy,
    file_without_name,
    mount_policies,
    shown_policy,
    wrong_mount_policies,
)
from hugepage_qa.cases.shared_views import PAGES, View, shared_memory
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, need_blocks, pmd_size
from hugepage_qa.cases.thp_nodes import two_nodes_with_room
from hugepage_qa.cases.thp_policy import advised, fill_in_huge_pages
from hugepage_qa.cases.thp_shared_memory import expect_mapped_whole, mount_tmpfs, remount_tmpfs
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.node_policies import PoliciesOfRanges, node_in_turn_of_inode
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

NODE_POLICIES = Area("thp/node-policies", sizes=Sizes.ONCE)

DOCUMENT = "Documentation/admin-guide/mm/numa_memory_policy.rst"


@NODE_POLICIES.case(
    "a policy that is given to a range of shared memory through one mapping is that of the range in each mapping and"
    " each process, from its first base page to its last, whatever ranges had another one before, none where it was"
    " taken away, and its huge pages come from there",
    f"{DOCUMENT} Shared Policies; mbind(2); get_mempolicy(2) MPOL_F_ADDR; mm/mempolicy.c mpol_set_shared_policy(),"
    " shared_policy_replace(), mpol_shared_policy_lookup()",
    nodes=2,
)
def ranges_of_shared_memory(live: Live) -> None:
    here, there = two_nodes_with_room(live, PAGES)
    every = pmd_size(live) // live.base_page
    end = PAGES * every
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
        *((page * every, (page + 1) * every, (here, there)[page % 2]) for page in range(PAGES)),
    )
    for name, shared in shared_memory(live):
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
            ends = [whole.at(page) + offset for page in range(PAGES) for offset in (0, whole.size - live.base_page)]
            expected = [node for page in range(PAGES) for node in 2 * [(here, there)[page % 2]]]
            live.expect("nodes of both ends of the pages", expected, nodes_of(whole.actor, ends))
            whole.expect_filled()
            for view in shared.views:
                live.expect("ShmemPmdMapped", view.memory.length, mapped_huge(view.memory))
            shared.end()


def _expect_policies(live: Live, view: View, policies: PoliciesOfRanges) -> None:
    for page in policies.telling_pages():
        if view.has(page):
            node = policies.node_of(page)
            wanted = (Mode.DEFAULT, []) if node is None else (Mode.BIND, [node])
            found = told_policy(view.memory.actor, view.at(page), F_ADDR)
            live.expect(f"policy of base page {page}, mapped from page {view.first} on", wanted, found)


@NODE_POLICIES.case(
    "a policy that is given to shared memory is that of the memory, and where its huge pages come from, also through a"
    " mapping that has the same one, or none to be taken away, when another mapping gave the memory another one",
    f"mbind(2); {DOCUMENT} Shared Policies; mm/mempolicy.c mbind_range()",
    nodes=2,
)
def given_again(live: Live) -> None:
    here, there = two_nodes_with_room(live, PAGES)
    found: dict[str, object] = {}
    wanted: dict[str, object] = {}
    known: dict[str, object] = {}
    for name, shared in shared_memory(live):
        one, other = (view.huge_pages(live, 1, 1) for view in shared.views)
        bind(one, [here])
        give_policy(other, Mode.DEFAULT, [])
        taken = policy_of(one)
        bind(other, [there])
        bind(one, [here])
        found[name] = taken, policy_of(other), _filled_on(live, one)
        wanted[name] = (Mode.DEFAULT, []), (Mode.BIND, [here]), [{here}]
        known[name] = (Mode.BIND, [here]), (Mode.BIND, [there]), [{there}]
        shared.end()
    what = "policy that was taken away, one that was given again, nodes of the page"
    live.expect(what, wanted, found, {Quirk.EQUAL_POLICY_PASSED_OVER: known})


@NODE_POLICIES.case(
    "a policy that is given to a part of shared memory leaves the parts beside it those that they have, and where their"
    " huge pages come from, also where the mapping has the same one there, and another one gave them another",
    f"mbind(2); {DOCUMENT} Shared Policies; mm/mempolicy.c mbind_range()",
    nodes=2,
)
def given_between(live: Live) -> None:
    here, there = two_nodes_with_room(live, PAGES)
    found: dict[str, object] = {}
    wanted: dict[str, object] = {}
    known: dict[str, object] = {}
    for name, shared in shared_memory(live):
        one, other = (view.huge_pages(live, 1, 3) for view in shared.views)
        for memory, page, node in (
            (one, 0, here),
            (one, 2, here),
            (other, 0, there),
            (other, 2, there),
            (one, 1, here),
        ):
            bind(memory.part(page), [node])
        found[name] = [policy_of(other.part(page)) for page in range(3)], _filled_on(live, one)
        nodes = there, here, there
        wanted[name] = known[name] = [(Mode.BIND, [node]) for node in nodes], [{node} for node in nodes]
        # mappings of what has to be told when they are unmapped, as a segment, are never merged
        if name != "segment":
            known[name] = [(Mode.BIND, [here])] * 3, [{here}] * 3
        shared.end()
    what = "policies of three huge pages, and their nodes"
    live.expect(what, wanted, found, {Quirk.MERGED_RANGE_TAKES_POLICY: known})


def _filled_on(live: Live, memory: Memory) -> list[set[int]]:
    """Fill ``memory``, expect it to be in huge pages, and return the nodes of each one's first and last base page."""
    fill_in_huge_pages(live, memory)
    live.expect("ShmemPmdMapped", memory.length, mapped_huge(memory))
    memory.expect_filled()
    ends = [(memory.at(page), memory.at(page + 1) - live.base_page) for page in range(memory.pages)]
    return [set(nodes_of(memory.actor, both)) for both in ends]


@NODE_POLICIES.case(
    "interleaved pages of shared memory, huge ones and base pages, come from the nodes in turn by their place in it and"
    " the number of its inode, in whichever order, mapping and process they are touched",
    f"{DOCUMENT} MPOL_INTERLEAVE, Shared Policies; mbind(2); mm/shmem.c shmem_get_policy(), shmem_pseudo_vma_init()",
    nodes=2,
)
def interleaved_shared_memory(live: Live) -> None:
    nodes = two_nodes_with_room(live, PAGES)
    every = pmd_size(live) // live.base_page
    for huge in (True, False):
        live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise" if huge else "never")
        pages = [page * every for page in range(PAGES)] if huge else range(every, every + 2 * PAGES)
        for name, shared in shared_memory(live):
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
                mapped = sum(mapped_huge(view.memory) for view in shared.views)
                live.expect(f"{name}: ShmemPmdMapped", huge * PAGES * pmd_size(live), mapped)
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
    two_nodes_with_room(live, PAGES)
    expect_policies_to_follow(
        live,
        lambda actor: advised(live, 2, actor=actor),
        lambda memory: memory.address // memory.size,
        lambda memory: memory.expect_huge(1, about="of one page"),
    )


@NODE_POLICIES.case(
    "huge pages of a process, anonymous and shared, move as a whole when the nodes of its cpuset change and when it"
    " moves to another one, to the nodes that it has then, for a child that has them, too: those that lie on one of"
    " these stay",
    "Documentation/admin-guide/cgroup-v2.rst cpuset.mems; kernel/cgroup/cpuset.c cpuset_migrate_mm();"
    " mm/mempolicy.c do_migrate_pages()",
    since="6.1",
    nodes=2,
)
def pages_follow_the_cpuset(live: Live) -> None:
    two_nodes_with_room(live, PAGES)

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
    nears = [*processors_near(live, two_nodes_with_room(live, PAGES))]
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


@NODE_POLICIES.case(
    "a tmpfs that is mounted anew with mpol=default has no policy, as one that is mounted with it: /proc/mounts shows"
    " none, none is told of files made since, and their huge pages come from where their process says",
    "Documentation/filesystems/tmpfs.rst mpol; mm/shmem.c shmem_reconfigure(), since 5f00110f7273",
    nodes=2,
)
def policies_taken_from_mounts(live: Live) -> None:
    nodes = two_nodes_with_room(live, PAGES)
    mounted, remounted = live.mount_other("huge=always,mpol=default", "tmpfs"), mount_tmpfs(live, "always")
    owner = live.actor()
    found: dict[str, object] = {}
    wanted: dict[str, object] = {}
    known: dict[str, object] = {}

    def look(name: str, point: str, node: int) -> None:
        actor = live.actor()
        set_policy(actor, Mode.BIND, [node])
        memory = file_without_name(live, actor, point)
        memory.fill()
        expect_mapped_whole(live, memory, memory.pages)
        starts = [memory.at(page) for page in range(memory.pages)]
        found[name] = shown_policy(live, point), policy_of(memory), set(nodes_of(actor, starts))
        wanted[name] = known[name] = ("", ()), (Mode.DEFAULT, []), {node}
        actor.end()

    look("mounted", mounted, nodes[1])
    for row in mount_policies(live):
        # of the others the processor, or the inode, says where pages come from
        if len(row.nodes) == 1:
            remount_tmpfs(owner, remounted, f"mpol={row.option}")
            remount_tmpfs(owner, remounted, "mpol=default")
            look(row.option, remounted, next(node for node in nodes if node not in row.nodes))
            known[row.option] = row.shown, row.told, set(row.nodes)
    live.expect("mpol= that is shown, policy, nodes", wanted, found, {Quirk.REMOUNT_KEEPS_POLICY: known})


class ThpNodePolicies(LiveTest):
    def test_node_policies(self) -> None:
        self.run_area(NODE_POLICIES)
