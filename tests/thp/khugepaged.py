"""What khugepaged makes huge, and the limits that it keeps to."""

import errno
from itertools import pairwise, product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import expect_no_node_short
from hugepage_qa.cases.khugepaged_clock import (
    KHUGEPAGED,
    PATIENT_SCANS,
    allow_absent,
    await_khugepaged,
    await_rest,
    await_scans,
    full_scans,
    let_rest,
    pages_collapsed,
)
from hugepage_qa.cases.khugepaged_sleep import shows_threads, thread
from hugepage_qa.cases.khugepaged_work import beyond_limit, expect_beyond_limit, expect_collapse, put_to_work
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.swapped import need_swap, swap_out, swapped
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import advised, base_pages, has_size_policy, leave_dirt, smaller_sizes
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import read_integer, size_name
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

KHUGEPAGED_AREA = Area("thp/khugepaged", sizes=Sizes.ONCE, uncleared=True)

DOC = f"{THP_DOC} Khugepaged controls"
#: each policy of all sizes after each other one, and "never" last
_CHANGES = ("never", "always", "never", "madvise", "always", "madvise", "never")
#: what lets shared memory of a size be huge
_OF_SHARED_MEMORY = ("always", "within_size", "advise", "inherit")
_END_SECONDS = 5.0


@KHUGEPAGED_AREA.case(
    "khugepaged makes huge pages of advised base pages, not of what was never touched, keeps what they hold, and counts"
    " them",
    DOC,
)
def advised_base_pages(live: Live) -> None:
    put_to_work(live)
    before, allocated = pages_collapsed(live), _counted(live, "thp_collapse_alloc")
    untouched, memory = advised(live), base_pages(live, 2)
    expect_collapse(live, memory, memory.length)
    nobodys = untouched.smaps()
    found = (nobodys.rss, nobodys.anon_huge_pages)
    live.expect("Rss and AnonHugePages of advised memory that nobody touched", (0, 0), found)
    _expect_rise(live, "pages_collapsed", before, pages_collapsed(live))
    _expect_rise(live, "thp_collapse_alloc", allocated, _counted(live, "thp_collapse_alloc"))
    memory.expect_filled()


@KHUGEPAGED_AREA.case(
    "memory that is not advised stays as it is with enabled=madvise",
    f"{THP_DOC} enabled",
)
def memory_without_advice(live: Live) -> None:
    put_to_work(live)
    memory = map_aligned(live, 1, pmd_size(live))
    memory.fill()
    reference = base_pages(live)
    expect_collapse(live, reference, reference.length)
    await_scans(live)
    memory.expect_huge(0, about="without advice")
    memory.expect_filled()


@KHUGEPAGED_AREA.case(
    "khugepaged makes huge pages of what a child has written in memory that its parent advised before fork()",
    f"{DOC}; fork(2); kernel/fork.c dup_mmap()",
)
def memory_of_a_child(live: Live) -> None:
    put_to_work(live)
    let_rest(live)
    parent = base_pages(live)
    child = parent.fork()
    # what both have limits itself (max_ptes_shared)
    child.fill(7)
    put_to_work(live)
    expect_collapse(live, child, child.length)
    child.expect_filled(7)
    parent.expect_filled()


@KHUGEPAGED_AREA.case(
    "max_ptes_none is how many pages may be absent of those that are made a huge page, which are zero then",
    f"{DOC} max_ptes_none",
)
def absent_pages(live: Live) -> None:
    put_to_work(live)
    pages = pmd_size(live) // live.base_page
    for absent in (1, pages // 2, pages - 1):
        for limit, huge in ((absent - 1, False), (absent, True)):
            allow_absent(live, limit)
            leave_dirt(live)
            memory = _with_absent(live, absent, pmd_size(live))
            _expect_limit(live, memory, huge, f"{absent} absent, max_ptes_none {limit}", "none")
            _expect_contents(live, memory, pages - absent, pmd_size(live))


@KHUGEPAGED_AREA.case(
    "khugepaged makes pages of a smaller size where that one is enabled and the PMD size is not, and counts them",
    f"{DOC}; {THP_DOC} collapse_alloc; mm/khugepaged.c mthp_collapse()",
    since="7.2",
)
def pages_of_smaller_sizes(live: Live) -> None:
    put_to_work(live, pmd="never")
    for size, path in smaller_sizes(live):
        live.set_knob(f"{path}/enabled", "madvise")
        before, memory = _made(live, path), base_pages(live)
        _expect_made(live, path, before, memory.length // size, size)
        memory.expect_filled()
        memory.actor.end()
        live.set_knob(f"{path}/enabled", "never")


@KHUGEPAGED_AREA.case(
    "of a smaller size no page may be absent, unless max_ptes_none is its highest value, by which one page is enough",
    f"{DOC} max_ptes_none; mm/khugepaged.c collapse_max_ptes_none()",
    since="7.2",
)
def absent_pages_of_a_smaller_size(live: Live) -> None:
    put_to_work(live, pmd="never")
    size, path = smaller_sizes(live)[-1]
    live.set_knob(f"{path}/enabled", "madvise")
    pages, small = pmd_size(live) // live.base_page, size // live.base_page
    # a value between the lowest and the highest counts as the lowest
    for limit, absent, huge in ((0, 1, False), (pages // 2, 1, False), (pages - 1, small - 1, True)):
        allow_absent(live, limit)
        leave_dirt(live)
        memory = _with_absent(live, absent, size)
        if huge:
            _expect_made_whole(live, memory, size)
        else:
            await_scans(live)
            present = memory.length // small * (small - absent)
            live.expect(f"Rss, {absent} absent of {small}, max_ptes_none {limit}", present, memory.smaps().rss)
        _expect_contents(live, memory, small - absent, size)
        memory.actor.end()


@KHUGEPAGED_AREA.case(
    "max_ptes_shared is how many pages may be shared with other processes of those that are made a huge page",
    f"{DOC} max_ptes_shared",
    since="5.8",
)
def shared_pages(live: Live) -> None:
    put_to_work(live)
    pages = pmd_size(live) // live.base_page
    for shared in (1, pages // 2, pages - 1):
        for limit, huge in ((shared - 1, False), (shared, True)):
            live.set_knob(f"{KHUGEPAGED}/max_ptes_shared", str(limit))
            parent = map_aligned(live, 1, pmd_size(live), advice=MADV_NOHUGEPAGE)
            parent.fill()
            child = parent.fork()
            # what it writes is its own
            child.fill_part(0, (pages - shared) * live.base_page, 7)
            child.advise(MADV_HUGEPAGE)
            _expect_limit(live, child, huge, f"{shared} shared, max_ptes_shared {limit}", "share")
            parent.expect_filled()
            wrong = child.wrong(0, (pages - shared) * live.base_page, 7)
            live.expect("words of the child that changed", 0, wrong)
            parent.actor.end()


@KHUGEPAGED_AREA.case(
    "max_ptes_swap is how many pages may be in swap of those that are made a huge page, which holds what they held",
    f"{DOC} max_ptes_swap; mm/khugepaged.c __collapse_huge_page_swapin()",
    since="5.4",  # MADV_PAGEOUT
)
def pages_in_swap(live: Live) -> None:
    put_to_work(live)
    need_swap(live, pmd_size(live))
    pages = pmd_size(live) // live.base_page
    # half of the pages have to be in use, or the huge page is not worth what swap costs
    for absent in (1, pages // 8, pages // 4):
        for limit, huge in ((absent - 1, False), (absent, True)):
            live.set_knob(f"{KHUGEPAGED}/max_ptes_swap", str(limit))
            memory = map_aligned(live, 1, pmd_size(live), advice=MADV_NOHUGEPAGE)
            memory.fill()
            swap_out(live, memory, absent * live.base_page)
            memory.advise(MADV_HUGEPAGE)
            _expect_limit(live, memory, huge, f"{absent} in swap, max_ptes_swap {limit}", "swap")
            live.expect("memory in swap", 0 if huge else absent * live.base_page, swapped(memory))
            memory.expect_filled()
            memory.actor.end()


@KHUGEPAGED_AREA.case("each knob shows the number that was written to it, and no other one changes", DOC)
def numbers_that_are_shown(live: Live) -> None:
    pages = pmd_size(live) // live.base_page
    values: dict[str, tuple[int, ...]]
    values = {f"max_ptes_{name}": (0, pages // 2, pages - 1) for name in ("none", "swap", "shared")}
    values |= {"pages_to_scan": (1, 4 * pages), "defrag": (0, 1)}
    values |= dict.fromkeys(("scan_sleep_millisecs", "alloc_sleep_millisecs"), (0, 123456))
    knobs = [name for name in values if live.host.read(f"{KHUGEPAGED}/{name}") is not None]
    for name in knobs:
        live.set_knob(f"{KHUGEPAGED}/{name}", str(values[name][0]))
    shown = {name: values[name][0] for name in knobs}
    for name in knobs:
        for value in (*values[name][1:], values[name][0]):
            live.host.write(f"{KHUGEPAGED}/{name}", str(value))
            found = {each: read_integer(ObservedTree(live.host), f"{KHUGEPAGED}/{each}") for each in knobs}
            live.expect(f"knobs after {value} was written to {name}", shown | {name: value}, found)


@KHUGEPAGED_AREA.case(
    "numbers beyond what a huge page has are refused, and the knobs keep their values",
    f"{DOC}; mm/khugepaged.c max_ptes_none_store()",
)
def numbers_that_are_refused(live: Live) -> None:
    pages = pmd_size(live) // live.base_page
    limits: dict[str, tuple[str, ...]]
    limits = {f"max_ptes_{name}": (str(pages), "-1", "x") for name in ("none", "swap", "shared")}
    limits |= {"pages_to_scan": ("0", "-1", "4294967296"), "scan_sleep_millisecs": ("-1", "4294967296", "x")}
    limits |= {"defrag": ("2", "x")}
    for name, texts in limits.items():
        path = f"{KHUGEPAGED}/{name}"
        before = live.host.read(path)
        for text in texts if before is not None else ():
            live.expect_errno(errno.EINVAL, live.host.write, path, text)
            live.expect(path, before, live.host.observe(path))


@KHUGEPAGED_AREA.case(
    "khugepaged rests while no size of any memory is enabled, and goes on when one is",
    f"{THP_DOC} khugepaged; mm/khugepaged.c start_stop_khugepaged()",
)
def rest(live: Live) -> None:
    put_to_work(live)
    _need_anonymous_memory_alone(live)
    memory = base_pages(live)
    live.host.write(f"{DIRECTORY}/enabled", "never")
    before, huge = await_rest(live), memory.smaps().anon_huge_pages
    other = base_pages(live)
    live.host.pause(0.5)
    live.expect("full scans", before, full_scans(live))
    live.expect("AnonHugePages", huge, memory.smaps().anon_huge_pages)
    other.expect_huge(0, about="of new memory")
    live.host.write(f"{DIRECTORY}/enabled", "madvise")
    other.advise(MADV_HUGEPAGE)
    expect_collapse(live, memory, memory.length)


@KHUGEPAGED_AREA.case(
    "khugepaged is there while enabled or the policy of the PMD size is always or madvise, and gone while both allow"
    " nothing, whichever was written before",
    f"{THP_DOC} khugepaged; mm/khugepaged.c start_stop_khugepaged(); mm/huge_memory.c enabled_store()",
)
def thread_comes_and_goes(live: Live) -> None:
    _need_threads(live)
    put_to_work(live)
    pmd = f"{DIRECTORY}/{size_name(pmd_size(live))}"
    for path in (f"{DIRECTORY}/shmem_enabled", f"{pmd}/shmem_enabled"):
        live.set_knob_if_there(path, "never")
    _need_anonymous_memory_alone(live)
    # so that there is something for it to do
    memory = base_pages(live)
    has_policy = has_size_policy(live)
    for of_size, change in product(("inherit", "never") if has_policy else (None,), pairwise(_CHANGES)):
        if of_size is not None:
            live.host.write(f"{pmd}/enabled", of_size)
        for policy in change:
            live.host.write(f"{DIRECTORY}/enabled", policy)
            if of_size == "never" and policy != "never":
                # read-only files may be huge then (CONFIG_READ_ONLY_THP_FOR_FS)
                continue
            _expect_thread(live, policy != "never", f"enabled={policy}, of the size {of_size}")
    for of_size in ("always", "never", "madvise", "inherit", "madvise", "never") if has_policy else ():
        live.host.write(f"{pmd}/enabled", of_size)
        _expect_thread(live, of_size in ("always", "madvise"), f"enabled=never, of the size {of_size}")
    memory.expect_filled()


@KHUGEPAGED_AREA.case(
    "khugepaged is there while only shared memory of the PMD size may be huge, by a policy of its own or by the one"
    " that it inherits, and gone while that is never or all is denied",
    f"{THP_DOC} shmem_enabled; mm/shmem.c shmem_hpage_pmd_enabled()",
    since="7.3",  # 6.12 does not ask for the policies of shared memory
)
def thread_for_shared_memory(live: Live) -> None:
    _need_threads(live)
    put_to_work(live, pmd="never")
    everywhere, of_size = (f"{path}/shmem_enabled" for path in _shared_policies(live))
    for path in (everywhere, of_size):
        live.set_knob(path, "never")
    _need_anonymous_memory_alone(live)
    live.set_knob(f"{DIRECTORY}/enabled", "never")
    # so that it must leave something alone
    memory = base_pages(live)
    # the kernel refuses "force" unless the size inherits
    for policy, own in product(("never", "always", "within_size", "advise", "deny"), _OF_SHARED_MEMORY):
        live.host.write(of_size, "never")
        live.host.write(everywhere, policy)
        where = f"shmem_enabled={policy}, of the size"
        _expect_thread(live, False, f"{where} never")
        live.host.write(of_size, own)
        _expect_thread(live, policy != "deny" and (own != "inherit" or policy != "never"), f"{where} {own}")
    memory.expect_huge(0)
    memory.expect_filled()


@KHUGEPAGED_AREA.case(
    "a shorter scan_sleep_millisecs ends the longer sleep that khugepaged is in",
    f"{THP_DOC} scan_sleep_millisecs; mm/khugepaged.c scan_sleep_millisecs_store()",
)
def shorter_sleep(live: Live) -> None:
    put_to_work(live)
    # with nobody on its list it would be woken by the first one who comes
    memory = base_pages(live)
    expect_collapse(live, memory, memory.length)
    let_rest(live)
    live.host.write(f"{KHUGEPAGED}/scan_sleep_millisecs", "10")
    await_scans(live)
    memory.expect_filled()


def _expect_thread(live: Live, is_there: bool, where: str) -> None:
    """Expect khugepaged to be there, or not: who switches it off waits for its end. Raises Failed."""
    live.host.wait_until(lambda: (thread(live) is not None) == is_there, _END_SECONDS)
    found = thread(live)
    if (found is not None) != is_there:
        live.fail(f"khugepaged is there, {where}", is_there, found is not None)
    if found is not None:
        status = live.host.observe(f"proc/{found}/status") or ""
        shown = [line.split()[1] for line in status.splitlines() if line.startswith(("Name:", "Pid:"))]
        live.expect(f"name and number of the thread, {where}", ["khugepaged", found], shown)


def _with_absent(live: Live, absent: int, size: int) -> Memory:
    """Map a PMD-sized page that lacks the last ``absent`` base pages of each ``size`` bytes."""
    memory = map_aligned(live, 1, pmd_size(live), advice=MADV_NOHUGEPAGE)
    for address in range(memory.address, memory.address + memory.length, size):
        memory.actor.fill(address, size - absent * live.base_page, WORD, 1)
    memory.advise(MADV_HUGEPAGE)
    return memory


def _made(live: Live, path: str) -> int:
    """Return how many pages khugepaged has made of the size whose directory is ``path``."""
    return read_integer(ObservedTree(live.host), f"{path}/stats/collapse_alloc") or 0


def _expect_made(live: Live, path: str, before: int, wanted: int, size: int) -> None:
    if not await_khugepaged(live, lambda: _made(live, path) - before >= wanted, PATIENT_SCANS):
        expect_no_node_short(live, size, wanted)
    # it may make those of others, too: never fewer than ours
    live.expect(f"pages of {size >> 10} kB", wanted, min(_made(live, path) - before, wanted))


def _expect_made_whole(live: Live, memory: Memory, size: int) -> None:
    """Expect pages of ``size`` bytes, which are there as a whole, in place of base pages of which some are absent."""
    if not await_khugepaged(live, lambda: memory.smaps().rss == memory.length, PATIENT_SCANS):
        expect_no_node_short(live, size, memory.length // size)
    live.expect(f"Rss of pages of {size >> 10} kB", memory.length, memory.smaps().rss)


def _expect_limit(live: Live, memory: Memory, huge: bool, where: str, limit: str) -> None:
    """Expect a huge page, or none; what is beyond the ``limit`` is counted for it (/proc/vmstat, since Linux 5.17)."""
    if huge:
        expect_collapse(live, memory, memory.length)
        return
    before = beyond_limit(live, limit)
    await_scans(live)
    live.expect(f"AnonHugePages, {where}", 0, memory.smaps().anon_huge_pages)
    expect_beyond_limit(live, limit, before, where)


def _counted(live: Live, name: str) -> int:
    return read_vmstat(ObservedTree(live.host)).get(name, 0)


def _expect_rise(live: Live, name: str, before: int, now: int) -> None:
    """Expect a counter to have risen by at least two: others have huge pages, too."""
    live.expect(f"whether {name}, {before} before and {now} now, rose by at least two", True, now - before >= 2)


def _expect_contents(live: Live, memory: Memory, present: int, size: int) -> None:
    """Expect the first ``present`` base pages of each ``size`` bytes as they were written, and the others zero."""
    length = present * live.base_page
    for address in range(memory.address, memory.address + memory.length, size):
        live.expect("words that changed", 0, memory.actor.check(address, length, WORD, 1))
        absent = memory.actor.nonzero(address + length, size - length)
        live.expect("words of unpopulated pages that are not zero", 0, absent)


def _shared_policies(live: Live) -> tuple[str, str]:
    """Return the directories of the policies of all shared memory, and of that of the PMD size. Raises CannotRun."""
    of_size = f"{DIRECTORY}/{size_name(pmd_size(live))}"
    if live.host.read(f"{of_size}/shmem_enabled") is None:
        raise CannotRun("shared memory has no policy of its own for the PMD size")
    return DIRECTORY, of_size


def _need_threads(live: Live) -> None:
    if not shows_threads(live):
        raise CannotRun("threads of the kernel are not to be seen here")


def _need_anonymous_memory_alone(live: Live) -> None:
    """Raise CannotRun where what is no anonymous memory has khugepaged work, too."""
    texts = [live.host.read(f"{DIRECTORY}/{name}") or "" for name in ("shmem_enabled", "hugetext_enabled")]
    if not ("[never]" in texts[0] or "[deny]" in texts[0]) or texts[1].strip() not in ("", "0"):
        raise CannotRun("shared memory or a mode of hugetext keeps khugepaged at work")


class Khugepaged(LiveTest):
    def test_khugepaged(self) -> None:
        self.run_area(KHUGEPAGED_AREA)
