"""Base pages of huge pages that many processes have, and memory that its process has merged as a whole by KSM."""

import errno
from collections import Counter
from collections.abc import Mapping, Sequence

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.merged_pages import (
    KSM_DOC,
    await_full_scans,
    await_merged,
    base_page_count,
    counted_of_process,
    merged_pair,
    shared_frames,
    start_merging,
)
from hugepage_qa.cases.thp_memory import need_blocks
from hugepage_qa.cases.thp_policy import advised, huge_pages
from hugepage_qa.kernel.ksm import DIRECTORY
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import MADV_MERGEABLE, MADV_UNMERGEABLE
from hugepage_qa.machine.host import CannotRun, Host, ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

OFTEN = Area("ksm/merged-often", sizes=Sizes.ONCE)

_PROCESSES = 4
_NEW_VALUE = 77
_LIMIT = f"{DIRECTORY}/max_page_sharing"
_LEAST_LIMIT = 2
#: include/uapi/linux/prctl.h
_PR_SET_MEMORY_MERGE, _PR_GET_MEMORY_MERGE = 67, 68
#: of ksm_stat: base pages of a process that are merged, and that ksmd looks at
_COUNTERS = "ksm_merging_pages", "ksm_rmap_items"
#: of VmFlags
_MERGEABLE = "mg"


@OFTEN.case(
    "max_page_sharing is how often one frame of KSM is mapped at most: of more equal base pages, of huge pages of many"
    " processes, as many as are left over have the next frame, and one alone keeps its own; pages_shared counts frames,"
    " pages_sharing how often these are mapped but once, ksm_merging_pages what each process has of them; it is 2 or"
    " more, and no other one while any page is shared, EBUSY; what is written is its writer's alone",
    f"{KSM_DOC} max_page_sharing, pages_shared, pages_sharing, stable_node_chains, stable_node_dups; mm/ksm.c"
    " max_page_sharing_store(), stable_node_dup(), stable_tree_append()",
)
def limit_of_sharing(live: Live) -> None:
    if not live.host.is_thrown_away():
        raise CannotRun("what others have merged keeps the limit from being changed: for machines that are thrown away")
    # when nobody has merged pages any more the limit can be put back
    if (before := live.host.read(_LIMIT)) is not None:
        run = (live.host.read(f"{DIRECTORY}/run") or "").strip()
        live.when_actors_have_ended(_put_back, live.host, before.strip(), run)
    start_merging(live)
    for limit, times in ((_LEAST_LIMIT, [2, 2]), (_LEAST_LIMIT + 1, [1, 3]), (_PROCESSES, [4])):
        live.host.write(f"{DIRECTORY}/run", "2")
        live.host.write(_LIMIT, str(limit))
        live.host.write(f"{DIRECTORY}/run", "1")
        with live.about(f"max_page_sharing is {limit}"):
            _expect_limited(live, limit, times)
    for refused in (str(_LEAST_LIMIT - 1), "0", "-1", "many"):
        live.expect_errno(errno.EINVAL, live.host.write, _LIMIT, refused)
    live.expect("max_page_sharing", _PROCESSES, read_integer(ObservedTree(live.host), _LIMIT))


def _put_back(host: Host, limit: str, run: str) -> None:
    for name, value in (("run", "2"), ("max_page_sharing", limit), ("run", run)):
        host.write(f"{DIRECTORY}/{name}", value)


def _expect_limited(live: Live, limit: int, times: list[int]) -> None:
    """Expect each base page of a huge page of as many processes to have frames that are mapped so many ``times``."""
    all_of_them = [huge_pages(live) for _process in range(_PROCESSES)]
    count = base_page_count(live, all_of_them[0])
    for each in all_of_them:
        each.advise(MADV_MERGEABLE)
    found = await_merged(live, all_of_them[0], lambda: _like(all_of_them, times))
    live.expect(f"base pages whose frames are mapped {times} times", count, found)
    frames = sum(number > 1 for number in times)
    merged = sum(number for number in times if number > 1)
    has_chain = frames > 1
    for name, of_each in (
        ("pages_shared", frames),
        ("pages_sharing", merged - frames),
        ("stable_node_chains", int(has_chain)),
        ("stable_node_dups", frames if has_chain else 0),
    ):
        live.expect(name, of_each * count, read_integer(ObservedTree(live.host), f"{DIRECTORY}/{name}"))
    # since Linux 5.19
    of_processes = [live.host.read(f"proc/{each.actor.pid}/ksm_merging_pages") for each in all_of_them]
    if None not in of_processes:
        live.expect("ksm_merging_pages of all", merged * count, sum(int(text or 0) for text in of_processes))
    live.expect_errno(errno.EBUSY, live.host.write, _LIMIT, str(limit + 1))
    live.expect("max_page_sharing", limit, read_integer(ObservedTree(live.host), _LIMIT))
    all_of_them[0].fill(_NEW_VALUE)
    all_of_them[1].actor.end()
    all_of_them[0].expect_filled(_NEW_VALUE)
    for each in all_of_them[2:]:
        each.expect_filled()
    for each in all_of_them:
        each.actor.end()


def _like(all_of_them: Sequence[Memory], times: list[int]) -> int:
    """Return how many base pages have frames that are mapped so many ``times``, in ascending order."""
    of_processes = zip(*(each.present_frames(each.pages) for each in all_of_them), strict=False)
    return sum(sorted(Counter(frames).values()) == times for frames in of_processes)


@OFTEN.case(
    "with PR_SET_MEMORY_MERGE all private memory of a process is merged with equal memory, huge pages and others, what"
    " it has and what comes, and that of a child; 0 makes all of it the process's own again, and not that of the child;"
    " PR_GET_MEMORY_MERGE tells which it is; further arguments are EINVAL and change nothing",
    "PR_SET_MEMORY_MERGE(2const); PR_GET_MEMORY_MERGE(2const); kernel/sys.c; mm/ksm.c ksm_enable_merge_any(),"
    " ksm_disable_merge_any(), ksm_add_vma()",
    since="6.4",
)
def process_as_a_whole(live: Live) -> None:
    start_merging(live)
    early, equal = huge_pages(live), huge_pages(live, 2)
    owner = early.actor
    equal.advise(MADV_MERGEABLE)
    live.expect("what it is before", 0, _merges_all(owner))
    for arguments in ((1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1)):
        live.expect_errno(errno.EINVAL, owner.call, "prctl", _PR_SET_MEMORY_MERGE, *arguments)
    for arguments in ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)):
        live.expect_errno(errno.EINVAL, owner.call, "prctl", _PR_GET_MEMORY_MERGE, *arguments)
    _expect_mergeable(live, early, False)
    owner.call("prctl", _PR_SET_MEMORY_MERGE, 1, 0, 0, 0)
    live.expect("what it is then", 1, _merges_all(owner))
    late = advised(live, 1, actor=owner)
    # what equals the second page of the other process, word for word
    late.fill(1 + late.size)
    need_blocks(live, late)
    child = early.seen_by(owner.fork())
    live.expect("what it is of a child", 1, _merges_all(child.actor))
    for each in (early, late, child):
        _expect_mergeable(live, each, True)
    first, second = equal.part(0), equal.part(1)
    count = base_page_count(live, early)
    pairs = ((early, first), (late, second), (child, first))
    found = await_merged(live, early, lambda: min(shared_frames(*pair) for pair in pairs))
    live.expect("base pages with one frame, at least", count, found)
    for each in (early, late, child, equal):
        huge = sum(mapping.anon_huge_pages for mapping in each.all_mappings())
        live.expect("AnonHugePages of what was merged", 0, huge)
    owner.call("prctl", _PR_SET_MEMORY_MERGE, 0, 0, 0, 0)
    live.expect("what it is when it was taken back", [0, 1], [_merges_all(each) for each in (owner, child.actor)])
    for each in (early, late):
        _expect_mergeable(live, each, False)
    _expect_mergeable(live, child, True)
    _expect_mergeable(live, equal, True)
    live.expect("base pages with one frame then", [0, 0, count], [shared_frames(*pair) for pair in pairs])
    for each in (early, child, equal):
        each.expect_filled()
    late.expect_filled(1 + late.size)
    for each in (early, late):
        each.fill(_NEW_VALUE)
    for each in (child, equal):
        each.expect_filled()


@OFTEN.case(
    "PR_SET_MEMORY_MERGE is kept by execve(2), in a process and in a child that has it from its parent: all that comes"
    " then is merged with equal memory; so is that it was taken back, or never set",
    "PR_SET_MEMORY_MERGE(2const); include/linux/ksm.h ksm_execve() (3c6f33b7273a, 3a9e567ca45f, 590c03ca6a3f)",
    since="6.10",  # 3a9e567ca45f: since 6.7 it is kept, and ksmd knows nothing of the process
)
def kept_over_execve(live: Live) -> None:
    start_merging(live)
    equal = huge_pages(live)
    equal.advise(MADV_MERGEABLE)
    owner, never = live.actor(), live.actor()
    owner.call("prctl", _PR_SET_MEMORY_MERGE, 1, 0, 0, 0)
    child = owner.fork()
    for actor in (owner, child, never):
        actor.exec()
    live.expect("what it is after execve(2)", [1, 1, 0], [_merges_all(actor) for actor in (owner, child, never)])
    memories = []
    for actor in (owner, child, never):
        memory = advised(live, 1, actor=actor)
        memory.fill()
        need_blocks(live, memory)
        _expect_mergeable(live, memory, actor is not never)
        memories.append(memory)
    merged, count = memories[:2], base_page_count(live, equal)
    found = await_merged(live, equal, lambda: min(shared_frames(memory, equal) for memory in merged))
    live.expect("base pages with one frame, at least", count, found)
    live.expect("base pages of who never set it with that frame", 0, shared_frames(memories[-1], equal))
    huge = [memory.smaps().anon_huge_pages for memory in memories]
    live.expect("AnonHugePages of them, and of who never set it", [0, 0, equal.length], huge)
    owner.call("prctl", _PR_SET_MEMORY_MERGE, 0, 0, 0, 0)
    owner.exec()
    live.expect("what it is when it was taken back", [0, 1], [_merges_all(actor) for actor in (owner, child)])
    _expect_mergeable(live, advised(live, 1, actor=owner), False)
    for memory in (memories[1], equal):
        memory.expect_filled()


@OFTEN.case(
    "nothing that a parent has merged counts for its child until ksmd has been through the child: ksm_merging_pages and"
    " ksm_rmap_items are 0 then, and those of the parent stay; after that each has its own, and none when its memory is"
    " not to be merged any more",
    "Documentation/filesystems/proc.rst ksm_stat: ksm_merging_pages, ksm_rmap_items; include/linux/ksm.h ksm_fork()"
    " (4d6fc29f3634)",
    since="6.12.54",  # and in 6.6.113, 6.17.4; before, the child has those of its parent, and keeps them
)
def counted_for_a_child(live: Live) -> None:
    memory, equal = merged_pair(live, 1)
    whole, none = [base_page_count(live, memory)] * len(_COUNTERS), [0] * len(_COUNTERS)
    await_full_scans(live)
    live.host.write(f"{DIRECTORY}/run", "0")
    _expect_counters(live, "before", {memory: whole, equal: whole})
    child = memory.fork()
    _expect_counters(live, "of parent and child after fork(2)", {memory: whole, child: none})
    live.host.write(f"{DIRECTORY}/run", "1")
    await_full_scans(live)
    _expect_counters(live, "when both were scanned", {memory: whole, child: whole})
    memory.advise(MADV_UNMERGEABLE)
    await_full_scans(live)
    _expect_counters(live, "when the parent's is not to be merged", {memory: none, child: whole, equal: whole})
    for each in (memory, child, equal):
        each.expect_filled()
    _expect_counters(live, "of a child of that parent", {memory.fork(): none})


def _expect_counters(live: Live, when: str, expected: Mapping[Memory, Sequence[int]]) -> None:
    """Expect ksm_stat of the processes of these memories to count so much."""
    counted = [counted_of_process(live, each) for each in expected]
    found = [[its[name] for name in _COUNTERS] for its in counted]
    live.expect(f"{', '.join(_COUNTERS)} {when}", [*expected.values()], found)


def _merges_all(actor: Actor) -> int:
    return actor.call("prctl", _PR_GET_MEMORY_MERGE, 0, 0, 0, 0)


def _expect_mergeable(live: Live, memory: Memory, is_mergeable: bool) -> None:
    found = sum(mapping.size for mapping in memory.all_mappings() if _MERGEABLE in mapping.flags)
    # a mapping may be larger than what it has been asked for
    live.expect("memory that is to be merged (mg)", is_mergeable * memory.length, min(found, memory.length))


class ThpMergedOften(LiveTest):
    def test_merged_often(self) -> None:
        self.run_area(OFTEN)
