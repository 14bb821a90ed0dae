"""Which anonymous memory gets transparent huge pages at a fault: policies of all sizes, of one, and of a process."""

import errno
from collections.abc import Mapping
from functools import partial
from itertools import permutations, product
from math import isqrt

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.fragmentation import expect_at_fault, expect_no_shortage, with_blocks
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_blocks import ONLINE_MOVABLE, take_a_block
from hugepage_qa.cases.struct_pages import keep_struct_pages_that_nobody_counts
from hugepage_qa.cases.thp_memory import MIN_FREE, keep_min_free, map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import (
    ADVICES,
    advised,
    allows,
    has_size_policy,
    huge_pages,
    set_policy,
    smaller_sizes,
)
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.thp import DIRECTORY, parse_selection
from hugepage_qa.kernel.tree import Tree, read_integer, size_directories
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE, PR_GET_THP_DISABLE, PR_SET_THP_DISABLE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

POLICY = Area("thp/policy", sizes=Sizes.ONCE)

PROC_DOC = "Documentation/filesystems/proc.rst"
PRCTL = "PR_SET_THP_DISABLE(2const); kernel/sys.c prctl_set_thp_disable()"
_CHOICES = ("enabled", "shmem_enabled")
_SWITCHES = ("use_zero_page", "shrink_underused", "khugepaged/defrag")
_LOW_KIB = 1024
#: before, it stayed as it was raised (bd3400ea173f)
_LOWERS = KernelVersion(5, 16)
_POLICIES = ("always", "madvise", "never")
#: each policy after each other one
_CHANGES = ("always", "never", "madvise", "always", "madvise", "never", "always")


@POLICY.case(
    "always gives huge pages to all memory but that advised against, madvise to advised memory, never to none",
    f"{THP_DOC} enabled",
)
def enabled(live: Live) -> None:
    for policy in _CHANGES:
        set_policy(live, policy)
        shown = parse_selection(live.host.observe(f"{DIRECTORY}/enabled") or "", "enabled")
        live.expect("enabled, as it is shown", policy, shown.selected)
        for advice in ADVICES:
            huge = allows(policy, "inherit", advice)
            expect_at_fault(live, f"{policy}, advice {advice}", huge, partial(advised, live, 1, advice))


@POLICY.case(
    "THPeligible is 1 of memory that policy and advice give huge pages, and of none that is too small for one, or whose"
    " process is to have none: THP_enabled is 0",
    f"{PROC_DOC} THPeligible, THP_enabled; fs/proc/task_mmu.c show_smap(), fs/proc/array.c task_thp_status()",
    since="5.3",  # before, memory of any length was eligible
)
def eligible(live: Live) -> None:
    for policy in _POLICIES:
        set_policy(live, policy)
        for advice in ADVICES:
            where = f"{policy}, advice {advice}"
            found = advised(live, 1, advice).smaps().thp_eligible
            live.expect(f"THPeligible, {where}", allows(policy, "inherit", advice), found)
            small = map_aligned(live, 1, pmd_size(live) // 2, advice=advice)
            live.expect(f"THPeligible of half a huge page, {where}", False, small.smaps().thp_eligible)
    set_policy(live, "madvise")
    process = live.actor()
    for disabled in (0, 1, 0):
        process.call("prctl", PR_SET_THP_DISABLE, disabled, 0, 0, 0)
        found = advised(live, actor=process).smaps().thp_eligible
        live.expect(f"THPeligible, PR_SET_THP_DISABLE {disabled}", not disabled, found)
        status = live.host.observe(f"proc/{process.pid}/status") or ""
        shown = [line.split() for line in status.splitlines() if line.startswith("THP_enabled")]
        live.expect("THP_enabled", [["THP_enabled:", str(1 - disabled)]], shown)


@POLICY.case(
    "the policy of a size decides for it whatever that of all is, unless it inherits",
    f"{THP_DOC} hugepages-<size>kB/enabled",
    since="6.8",
)
def policy_of_a_size(live: Live) -> None:
    if not has_size_policy(live):
        raise CannotRun("sizes have no policies of their own")
    for of_all in _POLICIES:
        for of_size in (*_POLICIES, "inherit"):
            set_policy(live, of_all, pmd=of_size)
            for advice in (None, MADV_HUGEPAGE):
                huge = allows(of_all, of_size, advice)
                where = f"{of_all}, size {of_size}, advice {advice}"
                expect_at_fault(live, where, huge, partial(advised, live, 1, advice))


@POLICY.case(
    "each smaller size follows its own policy, or that of all where it inherits, and counts what it gave",
    f"{THP_DOC} hugepages-<size>kB/enabled, anon_fault_alloc",
    since="6.10",
)
def policies_of_smaller_sizes(live: Live) -> None:
    set_policy(live, "madvise", pmd="never")
    for size, path in smaller_sizes(live):
        for of_size, advice in (
            ("inherit", MADV_HUGEPAGE),
            ("always", None),
            ("madvise", None),
            ("never", MADV_HUGEPAGE),
        ):
            live.set_knob(f"{path}/enabled", of_size)
            take = partial(map_aligned, live, 1, size, advice=advice)
            where = f"{size >> 10} kB, {of_size}, advice {advice}"
            if allows("madvise", of_size, advice):
                memory = take()
                before = _faults(live, path, where)[where]
                memory.fill()
                given = _faults(live, path, where)[where] - before
                if not given:
                    expect_no_shortage(live, size, 1)
                # others may have such pages, too: never fewer than ours
                live.expect(where, 1, min(given, 1))
            else:
                # those of others that have advice, as emulators give it, come now and then
                memory = expect_change(live, {where: 0}, take, Memory.fill, partial(_faults, path=path, name=where))
            memory.expect_filled()
        live.set_knob(f"{path}/enabled", "never")


@POLICY.case(
    "of several pieces of advice smaps shows the last one alone, and what is huge stays so",
    "madvise(2); mm/khugepaged.c hugepage_madvise(); Documentation/filesystems/proc.rst VmFlags hg, nh",
)
def last_advice(live: Live) -> None:
    memory = huge_pages(live)
    for advice, flag in ((MADV_NOHUGEPAGE, "nh"), (MADV_HUGEPAGE, "hg"), (MADV_NOHUGEPAGE, "nh")):
        memory.advise(advice)
        mapping = memory.smaps()
        live.expect("hg and nh in VmFlags", {flag}, {"hg", "nh"} & set(mapping.flags))
        live.expect("AnonHugePages: what is huge stays so", memory.length, mapping.anon_huge_pages)


@POLICY.case(
    "each value that a file offers is shown when it was written, and no other file changes, nor what is switched on",
    f"{THP_DOC} defrag, use_zero_page, khugepaged/defrag; mm/huge_memory.c defrag_store()",
)
def values_that_are_shown(live: Live) -> None:
    # no size but that of a PMD may inherit where shmem_enabled=force
    set_policy(live, "madvise")
    for path in _switches(live.host):
        live.set_knob(path, "1")
    before, switched = _selected(live.host), _switches(live.host)
    of_all = before.get(f"{DIRECTORY}/shmem_enabled")
    for path in before:
        live.set_knob(path, before[path])
    for path, value in before.items():
        offered = parse_selection(live.host.read(path) or "", path).allowed
        for word in (*offered, *reversed(offered), value):
            try:
                live.host.write(path, word)
            except OSError as refusal:
                is_refused = word == "force" or (word == "inherit" and of_all == "force")
                if path.endswith("shmem_enabled") and refusal.errno == errno.EINVAL and is_refused:
                    continue
                raise
            tree = ObservedTree(live.host)
            live.expect(f"files after {word} was written to {path}", before | {path: word}, _selected(tree))
            live.expect(f"switches after {word} was written to {path}", switched, _switches(tree))
    for path, word in product(switched, ("0", "1")):
        live.host.write(path, word)
        tree = ObservedTree(live.host)
        live.expect(f"switches after {word} was written to {path}", switched | {path: word}, _switches(tree))
        live.expect(f"files after {word} was written to {path}", before, _selected(tree))


@POLICY.case(
    "what is written for one size of huge pages leaves all others at what they have, whatever that is",
    f"{THP_DOC}; mm/huge_memory.c anon_enabled_store(); mm/shmem.c thpsize_shmem_enabled_store()",
    since="6.8",
)
def one_size_alone(live: Live) -> None:
    set_policy(live, "madvise")
    # no size but that of a PMD may inherit where it is force
    live.set_knob_if_there(f"{DIRECTORY}/shmem_enabled", "never")
    for name in ("enabled", "shmem_enabled"):
        paths = [f"{path}/{name}" for path in size_directories(live.host, DIRECTORY).values()]
        paths = [path for path in paths if live.host.read(path) is not None]
        before = _selected(live.host)
        for path in paths:
            live.set_knob(path, before[path])
        for one in dict.fromkeys((*paths[:1], *paths[-1:])):
            offered = parse_selection(live.host.read(one) or "", one).allowed
            for others, word in permutations([word for word in offered if word != "force"], 2):
                for path in paths:
                    live.host.write(path, others)
                live.host.write(one, word)
                wanted = before | dict.fromkeys(paths, others) | {one: word}
                with live.about(f"{word} is written to {one}, all others have {others}"):
                    live.expect("files that are not so", {}, _unlike(wanted, _selected(ObservedTree(live.host))))


def _unlike(wanted: Mapping[str, str], found: Mapping[str, str]) -> dict[str, tuple[str, str | None]]:
    """Return what was ``wanted`` and ``found`` of each file where that is not the same."""
    return {path: (value, found.get(path)) for path, value in wanted.items() if found.get(path) != value}


@POLICY.case("values that the files do not offer are refused and change nothing", f"{THP_DOC}")
def values_that_are_refused(live: Live) -> None:
    keep_min_free(live)
    sizes = [
        f"{path}/{name}" for path in size_directories(live.host, DIRECTORY).values() for name in live.host.names(path)
    ]
    files = [f"{DIRECTORY}/{name}" for name in ("enabled", "defrag", "shmem_enabled", "use_zero_page")]
    for path in [*files, *(path for path in sizes if path.endswith("enabled"))]:
        before = live.host.read(path)
        if before is None:
            continue
        for text in ("sometimes", "2", "-1", "\n", "[always]"):
            live.expect_errno(errno.EINVAL, live.host.write, path, text)
            live.expect(path, before, live.host.observe(path))


@POLICY.case(
    "huge pages that are switched on raise vm.min_free_kbytes where that is low, and leave it where it is higher; when"
    " they are switched off it is lower again",
    "mm/khugepaged.c start_stop_khugepaged(), set_recommended_min_free_kbytes(), since bd3400ea173f",
)
def reserve_of_free_memory(live: Live) -> None:
    raised = _raised_reserve(live)
    live.expect("vm.min_free_kbytes was raised", True, raised > _LOW_KIB)
    higher = 2 * raised
    live.host.write(f"{DIRECTORY}/enabled", "never")
    # what it is lowered to goes by memory, and is more on large machines (calculate_min_free_kbytes())
    if live.kernel_version >= _LOWERS and isqrt(16 * (read_meminfo(live.host)["MemTotal"] >> 10)) < raised:
        lowered = read_integer(ObservedTree(live.host), MIN_FREE) or 0
        live.expect(f"{lowered} KiB without huge pages is less than {raised} KiB", True, lowered < raised)
    live.host.write(MIN_FREE, str(higher))
    for policy in ("madvise", "never", "always"):
        live.host.write(f"{DIRECTORY}/enabled", policy)
        found = read_integer(ObservedTree(live.host), MIN_FREE)
        live.expect(f"vm.min_free_kbytes that was set higher, {policy}", higher, found)


@POLICY.case(
    "huge pages that are switched on raise vm.min_free_kbytes by nothing more where there is memory besides for what"
    " can be moved alone",
    "Documentation/admin-guide/mm/memory-hotplug.rst ZONE_MOVABLE; mm/khugepaged.c set_recommended_min_free_kbytes()",
)
def reserve_beside_movable_memory(live: Live) -> None:
    keep_struct_pages_that_nobody_counts(live)
    block = take_a_block(live)
    raised = _raised_reserve(live)
    block.add(live, ONLINE_MOVABLE)
    live.when_actors_have_ended(block.make_ordinary, live)
    live.expect("vm.min_free_kbytes with movable memory", raised, _raised_reserve(live))


def _raised_reserve(live: Live) -> int:
    """Return vm.min_free_kbytes, which is low, as huge pages have raised it that were switched on."""
    set_policy(live, "never")
    if live.host.read(f"{DIRECTORY}/shmem_enabled") is not None:
        # later kernels run khugepaged for shared memory alone, too, also by the policy of its size
        # (shmem_hpage_pmd_enabled() in mm/shmem.c)
        let_only_pmd_inherit(live, is_used=False)
        live.host.write(f"{DIRECTORY}/enabled", "never")
    live.host.write(MIN_FREE, str(_LOW_KIB))
    for policy in ("madvise", "never", "always"):
        live.host.write(f"{DIRECTORY}/enabled", policy)
    return read_integer(ObservedTree(live.host), MIN_FREE) or 0


@POLICY.case(
    "hpage_pmd_size is the bytes that the processor maps by one entry of the page middle directory",
    f"{THP_DOC} hpage_pmd_size; mm/huge_memory.c hpage_pmd_size_show()",
)
def size_that_is_shown(live: Live) -> None:
    pmd_size(live)
    found = read_integer(ObservedTree(live.host), f"{DIRECTORY}/hpage_pmd_size")
    live.expect("hpage_pmd_size", live.mmu.pmd, found)


@POLICY.case(
    "a process with PR_SET_THP_DISABLE gets no huge pages, nor do those that it forks, nor what they execute",
    PRCTL,
)
def disabled_for_a_process(live: Live) -> None:
    for policy in ("always", "madvise"):
        set_policy(live, policy)
        parent = live.actor()
        parent.call("prctl", PR_SET_THP_DISABLE, 1, 0, 0, 0)
        child, executed = parent.fork(), parent.fork()
        executed.exec()
        for actor, name in ((parent, "the process"), (child, "its child"), (executed, "a child after exec")):
            live.expect(f"PR_GET_THP_DISABLE of {name}", 1, actor.call("prctl", PR_GET_THP_DISABLE, 0, 0, 0, 0))
            for advice in (None, MADV_HUGEPAGE):
                where = f"{name}, {policy}, advice {advice}"
                expect_at_fault(live, where, False, partial(advised, live, 1, advice, actor=actor))
            actor.call("prctl", PR_SET_THP_DISABLE, 0, 0, 0, 0)
            for advice in ADVICES:
                where = f"{name}, enabled again, {policy}, advice {advice}"
                huge = allows(policy, "inherit", advice)
                expect_at_fault(live, where, huge, partial(advised, live, 1, advice, actor=actor))


@POLICY.case(
    "with use_zero_page=0 a read maps a huge page of the process's own, filled with zeroes",
    f"{THP_DOC} use_zero_page",
)
def no_zero_page(live: Live) -> None:
    set_policy(live, "madvise")
    for allowed in ("0", "1"):
        live.set_knob(f"{DIRECTORY}/use_zero_page", allowed)
        with_blocks(live, pmd_size(live), 1)
        memory = advised(live)
        memory.expect_zero(0)
        if allowed == "0" and memory.smaps().rss != memory.length:
            expect_no_shortage(live, memory.size, 1)
        live.expect(f"Rss with use_zero_page={allowed}", 0 if allowed == "1" else memory.length, memory.smaps().rss)
        memory.fill()
        memory.expect_filled()


def _selected(tree: Tree) -> dict[str, str]:
    """Return the value that each file with a choice shows."""
    sizes = (f"{path}/{name}" for path in size_directories(tree, DIRECTORY).values() for name in _CHOICES)
    paths = (*(f"{DIRECTORY}/{name}" for name in (*_CHOICES, "defrag")), *sizes)
    shown = ((path, tree.read(path)) for path in paths)
    return {path: parse_selection(text, path).selected for path, text in shown if text is not None}


def _switches(tree: Tree) -> dict[str, str]:
    """Return what each file shows that switches something on or off."""
    shown = ((path, tree.read(path)) for path in (f"{DIRECTORY}/{name}" for name in _SWITCHES))
    return {path: text.strip() for path, text in shown if text is not None}


def _faults(live: Live, path: str, name: str) -> dict[str, int]:
    """Return how many pages of a size faults gave, by all processes, under ``name``."""
    return {name: read_integer(ObservedTree(live.host), f"{path}/stats/anon_fault_alloc") or 0}


class ThpPolicy(LiveTest):
    def test_policy(self) -> None:
        self.run_area(POLICY)
