"""When khugepaged is there, rests and goes on, and which numbers its knobs take."""

import errno
from itertools import pairwise, product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import KHUGEPAGED, await_rest, await_scans, full_scans, let_rest
from hugepage_qa.cases.khugepaged_sleep import shows_threads, thread
from hugepage_qa.cases.khugepaged_work import expect_collapse, put_to_work
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import base_pages, has_size_policy
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import read_integer, size_name
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

THREAD = Area("thp/khugepaged-thread", sizes=Sizes.ONCE, uncleared=True)

DOC = f"{THP_DOC} Khugepaged controls"
#: each policy of all sizes after each other one, and "never" last
_CHANGES = ("never", "always", "never", "madvise", "always", "madvise", "never")
#: what lets shared memory of a size be huge
_OF_SHARED_MEMORY = ("always", "within_size", "advise", "inherit")
_END_SECONDS = 5.0


@THREAD.case("each knob shows the number that was written to it, and no other one changes", DOC)
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


@THREAD.case(
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


@THREAD.case(
    "khugepaged rests while no size of any memory is enabled, and goes on when one is",
    f"{THP_DOC} khugepaged; mm/khugepaged.c start_stop_khugepaged()",
)
def rest(live: Live) -> None:
    put_to_work(live)
    _let_only_anonymous_be_huge(live)
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


@THREAD.case(
    "khugepaged is there while enabled or the policy of the PMD size is always or madvise, and gone while both allow"
    " nothing, whichever was written before",
    f"{THP_DOC} khugepaged; mm/khugepaged.c start_stop_khugepaged(); mm/huge_memory.c enabled_store()",
)
def thread_comes_and_goes(live: Live) -> None:
    _need_threads(live)
    put_to_work(live)
    _let_only_anonymous_be_huge(live)
    pmd = f"{DIRECTORY}/{size_name(pmd_size(live))}"
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


@THREAD.case(
    "khugepaged is there while only shared memory of the PMD size may be huge, by a policy of its own or by the one"
    " that it inherits, and gone while that is never or all is denied",
    f"{THP_DOC} shmem_enabled; mm/shmem.c shmem_hpage_pmd_enabled()",
    since="7.3",  # 6.12 does not ask for the policies of shared memory
)
def thread_for_shared_memory(live: Live) -> None:
    _need_threads(live)
    put_to_work(live, pmd="never")
    everywhere, of_size = (f"{path}/shmem_enabled" for path in _shared_policies(live))
    _let_only_anonymous_be_huge(live)
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


@THREAD.case(
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


def _shared_policies(live: Live) -> tuple[str, str]:
    """Return the directories of the policies of all shared memory, and of that of the PMD size. Raises CannotRun."""
    of_size = f"{DIRECTORY}/{size_name(pmd_size(live))}"
    if live.host.read(f"{of_size}/shmem_enabled") is None:
        raise CannotRun("shared memory has no policy of its own for the PMD size")
    return DIRECTORY, of_size


def _need_threads(live: Live) -> None:
    if not shows_threads(live):
        raise CannotRun("threads of the kernel are not to be seen here")


def _let_only_anonymous_be_huge(live: Live) -> None:
    """Have shared memory give khugepaged no work until the case ends. Raises CannotRun where hugetext does."""
    for directory in (DIRECTORY, f"{DIRECTORY}/{size_name(pmd_size(live))}"):
        live.set_knob_if_there(f"{directory}/shmem_enabled", "never")
    if (live.host.read(f"{DIRECTORY}/hugetext_enabled") or "").strip() not in ("", "0"):
        raise CannotRun("a mode of hugetext keeps khugepaged at work")


class KhugepagedThread(LiveTest):
    def test_khugepaged_thread(self) -> None:
        self.run_area(THREAD)
