"""Base pages of huge pages on two nodes that KSM merges, on each node alone or over all: merge_across_nodes."""

import errno
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.lru_batches import drain_lru_batches
from hugepage_qa.cases.mapped_memory import FRAME, PRESENT, WORD, Memory
from hugepage_qa.cases.memory_policy import MOVE_ALL, base_pages_of, bind, migrate, move_pages, nodes_of
from hugepage_qa.cases.merged_pages import (
    KSM_DOC,
    await_full_scans,
    await_merged,
    base_page_count,
    expect_all_merged,
    start_merging,
)
from hugepage_qa.cases.thp_nodes import two_nodes_with_room
from hugepage_qa.cases.thp_policy import advised, fill_in_huge_pages, huge_pages
from hugepage_qa.kernel.ksm import DIRECTORY
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import MADV_MERGEABLE
from hugepage_qa.machine.host import CannotRun, Host, ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

BY_NODE = Area("ksm/merged-by-node", sizes=Sizes.ONCE)

_ACROSS = f"{DIRECTORY}/merge_across_nodes"
_LIMIT = f"{DIRECTORY}/max_page_sharing"
_RUN = f"{DIRECTORY}/run"
#: of max_page_sharing, as the kernel begins with: no case has as many equal base pages
_NO_LIMIT, _LESS = "256", "128"
#: processes on each node
_OF_A_NODE = 2
_NEW_VALUE = 77
#: who has a hold of a base page has it for a moment
_MOVE_SECONDS = 10.0
#: ksmd finds what is gone in its next scan
_GONE_SECONDS = 60.0

#: moves all base pages of memory to a node, also where other processes have them
_Move = Callable[[Live, Memory, int], None]


@BY_NODE.case(
    "with merge_across_nodes 0 equal base pages of huge pages on two nodes have one frame on each node, their own"
    " node's, with 1 one for both; pages_shared and pages_sharing count them, what is written is its writer's alone,"
    " and on its node; other values are EINVAL, and while any page is merged the other one is EBUSY; all unmerged hold"
    " what they held",
    f"{KSM_DOC} merge_across_nodes, run, pages_shared, pages_sharing; mm/ksm.c merge_across_nodes_store(),"
    " get_kpfn_nid(), stable_tree_search()",
    nodes=2,
)
def each_node_alone(live: Live) -> None:
    _start_merging(live)
    for across in ("0", "1", "0"):
        _set_across(live, across)
        with live.about(f"merge_across_nodes is {across}"):
            _expect_merged(live, is_across=across == "1")
    for refused in ("2", "-1", "many"):
        live.expect_errno(errno.EINVAL, live.host.write, _ACROSS, refused)
    live.expect("merge_across_nodes", 0, read_integer(ObservedTree(live.host), _ACROSS))


@BY_NODE.case(
    "when nobody maps what KSM has merged any more pages_shared is 0, and merge_across_nodes and max_page_sharing take"
    " another value, the first time that it is written, also while a pipe has one of the frames, or when it has let it"
    " go since; what comes out of the pipe is what went in",
    f"{KSM_DOC} merge_across_nodes, max_page_sharing, pages_shared; vmsplice(2); mm/ksm.c merge_across_nodes_store(),"
    " max_page_sharing_store(), remove_stable_node()",
)
def changed_while_a_frame_is_held(live: Live) -> None:
    _start_merging(live)
    tree = ObservedTree(live.host)

    def shared() -> int | None:
        return read_integer(tree, f"{DIRECTORY}/pages_shared")

    for (path, value), is_held in product(((_ACROSS, "0"), (_LIMIT, _LESS)), (True, False)):
        _set_across(live, "1", limit=_NO_LIMIT)
        memory, equal = huge_pages(live), huge_pages(live)
        expect_all_merged(live, memory, equal)
        actor = memory.actor
        reader = _put_into_pipe(live, memory)
        equal.actor.end()
        memory.unmap()
        # ksmd takes them off the count when it comes by
        live.expect("pages_shared when all is unmapped", 0, live.host.last_look(shared, (0).__eq__, _GONE_SECONDS))
        # what it meets then it forgets
        live.host.write(_RUN, "0")
        with live.about(f"/{path}, held {is_held}"):
            if not is_held:
                _take_out_of_pipe(live, actor, reader)
            live.expect_success(live.host.write, path, value)
            live.expect("its value", int(value), read_integer(tree, path))
            if is_held:
                _expect_first_word(live, actor, reader)
        actor.end()


def _put_into_pipe(live: Live, memory: Memory) -> int:
    """Have a pipe hold the first frame of ``memory``, and return who reads it."""
    reader, writer = memory.actor.pipe()
    page = live.host.uapi.pack("2Q", memory.address, WORD)
    live.expect("bytes in the pipe", WORD, memory.actor.call("vmsplice", writer, page, 1, 0))
    return reader


def _take_out_of_pipe(live: Live, actor: Actor, reader: int) -> None:
    _expect_first_word(live, actor, reader)
    # it has taken it out, and a batch of a CPU may have it
    drain_lru_batches(live, actor)


def _expect_first_word(live: Live, actor: Actor, reader: int) -> None:
    _count, (word,) = actor.call_with_buffers("read", reader, bytes(WORD), WORD)
    live.expect("what comes out of the pipe", 1, live.host.uapi.unpack("Q", word)[0])


@BY_NODE.case(
    "with merge_across_nodes 0 frames that KSM has merged and that move to another node are merged with what is equal"
    " there, and no more with what is equal on the node that they left, whichever of them ksmd meets first; they move"
    " again: on and back, by whoever moves them for all processes; all hold what they held, and what is written is its"
    " writer's alone",
    f"{KSM_DOC} merge_across_nodes, pages_shared, pages_sharing; move_pages(2) MPOL_MF_MOVE_ALL; migrate_pages(2);"
    " mm/ksm.c cmp_and_merge_page(), stable_tree_search(), folio_migrate_ksm()",
    nodes=2,
)
def moved_when_merged(live: Live) -> None:
    _start_merging(live)
    _set_across(live, "0")
    for move, is_met_first in product((_by_move_pages, _by_migrate_pages), (False, True)):
        with live.about(f"{move.__name__[1:]}, what stays is met first {is_met_first}"):
            _expect_merged_where_moved(live, move, is_met_first=is_met_first)


@BY_NODE.case(
    "a frame that KSM has merged of base pages at both ends of mappings and far within them moves to another node with"
    " all of these, of its processes and of a child, whichever of them is asked to move; all hold what they held",
    f"{KSM_DOC}; move_pages(2) MPOL_MF_MOVE_ALL; mm/ksm.c rmap_walk_ksm(), folio_migrate_ksm()",
    nodes=2,
)
def moved_from_any_place(live: Live) -> None:
    _start_merging(live)
    here, there = two_nodes_with_room(live, _OF_A_NODE)
    processes = [_on_node(live, here) for _process in range(_OF_A_NODE)]
    length, base = processes[0].length, live.base_page
    offsets = [0, length // 2, length - base]
    for each in processes:
        for offset in offsets:
            each.actor.fill(each.address + offset, base, WORD, _NEW_VALUE)
        each.advise(MADV_MERGEABLE)

    def frames() -> int:
        found = [entry for each in processes for entry in each.pagemap(each.address + offset for offset in offsets)]
        return len({entry & FRAME if entry & PRESENT else 0 for entry in found})

    live.expect("frames of what is equal", 1, await_merged(live, processes[0], frames, 1))
    live.host.write(_RUN, "0")
    processes.append(processes[0].fork())
    for number, (memory, offset) in enumerate(product(processes, offsets)):
        node = (there, here)[number % 2]
        with live.about(f"process {number // len(offsets)}, the base page at {offset}, to node {node}"):
            _expect_place_moved(live, memory.actor, memory.address + offset, node)
            nodes = [nodes_of(each.actor, [each.address + offset for offset in offsets]) for each in processes]
            live.expect("nodes of all that has the frame", [[node] * len(offsets)] * len(processes), nodes)
            live.expect("frames of what is equal", 1, frames())
    for each in processes:
        changed = sum(each.actor.check(each.address + offset, base, WORD, _NEW_VALUE) for offset in offsets)
        for start, end in pairwise([-base, *offsets, length]):
            changed += each.wrong(start + base, end - start - base)
        live.expect("words that changed", 0, changed)


def _expect_place_moved(live: Live, actor: Actor, address: int, node: int) -> None:
    """Expect a base page to move to ``node``, tried again where somebody has a hold of it."""

    def status() -> int:
        return move_pages(actor, [address], [node], MOVE_ALL)[0]

    found = live.host.last_look(status, lambda found: found == node, _MOVE_SECONDS)
    if found != node:
        # what comes then would be waited for in vain, each time
        live.fail("status of it", node, found)


def _start_merging(live: Live) -> None:
    """Have ksmd merge over all nodes, all that is equal in one frame, and be as it was after the case.

    Raises CannotRun.
    """
    before = {path: (live.host.read(path) or "").strip() for path in (_LIMIT, _ACROSS, _RUN)}
    if not all(before.values()) or not live.host.is_thrown_away():
        raise CannotRun("merging by node is for machines that are thrown away, with KSM and several nodes")
    live.when_actors_have_ended(_put_back, live.host, before)
    # while any page is merged neither can be changed
    live.host.write(_RUN, "2")
    live.host.write(_LIMIT, _NO_LIMIT)
    _set_across(live, "1")
    start_merging(live)


def _put_back(host: Host, before: Mapping[str, str]) -> None:
    host.write(_RUN, "2")
    for path, value in before.items():
        host.write(path, value)


def _set_across(live: Live, across: str, limit: str | None = None) -> None:
    """Unmerge all, have pages be merged by node or not, and up to a ``limit`` if there is one, and merge again."""
    live.host.write(_RUN, "2")
    live.host.write(_ACROSS, across)
    if limit:
        live.host.write(_LIMIT, limit)
    live.host.write(_RUN, "1")


def _expect_merged(live: Live, *, is_across: bool) -> None:
    nodes = two_nodes_with_room(live, _OF_A_NODE)
    all_of_them = [_on_node(live, node) for node in nodes for _process in range(_OF_A_NODE)]
    first = all_of_them[0]
    count = base_page_count(live, first)
    for each in all_of_them:
        each.advise(MADV_MERGEABLE)
    wanted = [[*range(len(all_of_them))]] if is_across else [[0, 1], [2, 3]]
    found = await_merged(live, first, lambda: _alike(all_of_them, wanted))
    live.expect(f"base pages of which processes {wanted} have one frame each", count, found)
    live.expect("AnonHugePages of what was merged", 0, sum(each.smaps().anon_huge_pages for each in all_of_them))
    _expect_counts(live, len(wanted) * count, (len(all_of_them) - len(wanted)) * count)
    if not is_across:
        for number, each in enumerate(all_of_them):
            live.expect(f"base pages by node, process {number}", {nodes[number // 2]: count}, each.numa_maps().nodes)
    other = "0" if is_across else "1"
    live.expect_errno(errno.EBUSY, live.host.write, _ACROSS, other)
    all_of_them[-1].fill(_NEW_VALUE)
    live.expect("base pages by node, of what was written", {nodes[1]: count}, all_of_them[-1].numa_maps().nodes)
    for each in all_of_them[:-1]:
        each.expect_filled()
    live.host.write(_RUN, "2")
    _expect_counts(live, 0, 0)
    for each in all_of_them[:-1]:
        each.expect_filled()
    all_of_them[-1].expect_filled(_NEW_VALUE)
    live.expect("base pages that have one frame then", 0, _alike(all_of_them[:2], [[0, 1]]))
    for each in all_of_them:
        each.actor.end()
    live.host.write(_RUN, "1")


def _expect_merged_where_moved(live: Live, move: _Move, *, is_met_first: bool) -> None:
    """Have frames of two processes move to a node, with an equal one on it and on their own, on to it, and back.

    What stays on their own node ksmd finds after them or, when it ``is_met_first``, before them.
    """
    here, there = two_nodes_with_room(live, _OF_A_NODE + 1)
    moved, stays, awaits = [_on_node(live, here), _on_node(live, here)], _on_node(live, here), _on_node(live, there)
    count = base_page_count(live, stays)
    if is_met_first:
        # ksmd goes through processes in the order in which they first had memory to be merged, between two scans
        live.host.write(_RUN, "0")
        stays.fill(_NEW_VALUE)
        stays.advise(MADV_MERGEABLE)
    _expect_one_frame(live, moved, here, count)
    # ksmd merges what has not changed since its last scan, and nothing of a huge page that somebody has a hold of
    reader = _put_into_pipe(live, stays)
    stays.fill()
    await_full_scans(live)
    # on its own node each finds frames that are equal, before or after they come there
    for node, other in ((there, awaits), (here, stays), (there, None), (here, None)):
        with live.about(f"moved to node {node}"):
            _expect_moved(live, moved[0], node, move)
            if other is awaits:
                _take_out_of_pipe(live, stays.actor, reader)
            stays.advise(MADV_MERGEABLE)
            if other:
                moved.append(other)
            _expect_one_frame(live, moved, node, count)
            if stays not in moved:
                live.expect("base pages by node, of what stays", {here: count}, stays.numa_maps().nodes)
    moved[-1].fill(_NEW_VALUE)
    for each in moved[:-1]:
        each.expect_filled()
    live.host.write(_RUN, "2")
    _expect_counts(live, 0, 0)
    for number, each in enumerate(moved, 1):
        each.expect_filled(_NEW_VALUE if number == len(moved) else 1)
        each.actor.end()
    live.host.write(_RUN, "1")


def _expect_one_frame(live: Live, processes: Sequence[Memory], node: int, count: int) -> None:
    """Have ksmd merge again, and expect each base page to have one frame, of ``node``, in all of them."""
    for each in processes:
        each.advise(MADV_MERGEABLE)
    live.host.write(_RUN, "1")
    found = await_merged(live, processes[0], lambda: _alike(processes, [[*range(len(processes))]]))
    live.expect(f"base pages with one frame for {len(processes)} processes", count, found)
    await_full_scans(live)
    _expect_counts(live, count, (len(processes) - 1) * count)
    for number, each in enumerate(processes):
        live.expect(f"base pages by node, process {number}", {node: count}, each.numa_maps().nodes)
        each.expect_filled()


def _expect_moved(live: Live, memory: Memory, node: int, move: _Move) -> None:
    """Expect all base pages to move to ``node`` while ksmd rests, tried again where somebody has a hold of one."""
    live.host.write(_RUN, "0")

    def elsewhere() -> int:
        move(live, memory, node)
        return sum(found != node for found in nodes_of(memory.actor, base_pages_of(live, memory)))

    left = live.host.last_look(elsewhere, lambda count: not count, _MOVE_SECONDS)
    if left:
        # what comes then would be waited for in vain, each time
        live.fail("base pages that have not moved", 0, left)


def _by_move_pages(live: Live, memory: Memory, node: int) -> None:
    places = base_pages_of(live, memory)
    move_pages(memory.actor, places, [node] * len(places), MOVE_ALL)


def _by_migrate_pages(live: Live, memory: Memory, node: int) -> None:
    for source in live.nodes[:2]:
        if source != node:
            migrate(memory.actor, source, node)


def _on_node(live: Live, node: int) -> Memory:
    memory = advised(live)
    bind(memory, [node])
    fill_in_huge_pages(live, memory, node)
    memory.expect_huge(about="before")
    live.expect("base pages by node before", {node: base_page_count(live, memory)}, memory.numa_maps().nodes)
    return memory


def _expect_counts(live: Live, shared: int, sharing: int) -> None:
    tree = ObservedTree(live.host)
    found = [read_integer(tree, f"{DIRECTORY}/pages_{name}") for name in ("shared", "sharing")]
    live.expect("pages_shared, pages_sharing", [shared, sharing], found)


def _alike(all_of_them: Sequence[Memory], wanted: Sequence[Sequence[int]]) -> int:
    """Return how many base pages have one frame in each group of processes, and another one in each group."""
    of_processes = zip(*(each.present_frames(each.pages) for each in all_of_them), strict=False)
    groups = ([{frames[number] for number in group} for group in wanted] for frames in of_processes)
    return sum(all(len(group) == 1 for group in each) and len(set().union(*each)) == len(wanted) for each in groups)


class ThpMergedByNode(LiveTest):
    def test_merged_by_node(self) -> None:
        self.run_area(BY_NODE)
