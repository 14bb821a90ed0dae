"""Run one case on one page size, put the pools back, and judge."""

import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial

from hugepage_qa.cases.case import Area, Case, Sizes, result_name
from hugepage_qa.cases.expectations import Failed, KnownBug
from hugepage_qa.cases.kernel_objects import compare_objects, count_objects
from hugepage_qa.cases.kernel_trouble import KERNEL_CONTENT, TAINT, find_trouble
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.machine_under_test import running_mmu
from hugepage_qa.cases.memory_account import compare_account, left_behind, read_account, stored_pages
from hugepage_qa.cases.pool_view import (
    NO_HUGETLB,
    Counters,
    PoolView,
    read_pool_view,
)
from hugepage_qa.cases.result import BAD, NOT_RUN, Result, Verdict, because
from hugepage_qa.cases.selection import EVERYTHING, Selection
from hugepage_qa.cases.verdicts import decide
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.tree import size_name
from hugepage_qa.machine.host import CannotRun, Host, ObservedTree
from hugepage_qa.oracle.compare import Difference, told
from hugepage_qa.oracle.rules import HUGETLB_DOC, Rule
from hugepage_qa.process.actor import Fault, Refused
from hugepage_qa.process.actor_link import ActorGone
from hugepage_qa.sizes import format_size

NOTHING_LEFT = Rule(
    "nothing-left",
    "when the processes have ended and the settings are back, every pool of every size and node is as before",
    f"{HUGETLB_DOC}; mm/hugetlb.c free_huge_folio(), hugetlb_unreserve_pages()",
)
#: so many differences of one rule are told on the terminal, the others in the evidence
_TOLD = 3
_EVIDENCE = ("proc/buddyinfo", "proc/meminfo", "proc/vmstat", "proc/pagetypeinfo")


def run_area(
    area: Area,
    host: Host,
    record: Callable[[Result], None],
    selection: Selection = EVERYTHING,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Run the cases of ``area`` that ``selection`` includes for every page size that they are meant for.

    They run size by size: a hypervisor takes back what its machine leaves free for two seconds (mm/page_reporting.c),
    and who touches that next waits, 2.6 s for each GiB that were seen. Cases in a row leave it free for a moment.
    A case that this machine cannot try on any page size is a skip. So is what is left when the run ``is_over``.
    """
    sizes = page_sizes(host)
    planned = [case for case in area.cases if selection.has(area, case, sizes)]
    tried: set[str] = set()
    with area.around(host) if planned and not is_over() else nullcontext():
        for size in (None, *sizes):
            for case in planned:
                if size not in selection.sizes_of(area, case, sizes):
                    continue
                result = _skipped(area, case, size, NOT_RUN) if is_over() else judge(area, case, host, size)
                if result:
                    tried.add(case.name)
                    record(result)
    for case in planned:
        if case.name not in tried:
            record(not_meant(area, case, sizes))


def not_meant(area: Area, case: Case, sizes: Collection[int]) -> Result:
    """Return the skip of a ``case`` that none of ``sizes``, which are all of the machine, is for."""
    reason = f"for {case.sizes.value} alone, of which the run has none" if sizes else NO_HUGETLB
    return _skipped(area, case, None, reason)


def _skipped(area: Area, case: Case, size: int | None, reason: str) -> Result:
    return Result(result_name(area, case, size), Verdict.SKIP, (reason,))


def page_sizes(host: Host) -> list[int]:
    """Return the page sizes of the machine, then those that its architecture has and it has not."""
    pools = read_pool_view(host).pools
    if not pools:
        return []
    try:
        return [*pools, *(size for size in running_mmu(host).hugetlb if size not in pools)]
    except InputError:  # nobody has told us what this architecture has
        return [*pools]


def judge(area: Area, case: Case, host: Host, size: int | None) -> Result | None:
    """Run ``case`` with pages of ``size`` bytes, None for a case that runs once; None when it is not meant for them."""
    began = time.monotonic()
    with ExitStack() as stack:
        live = Live(host, size, case.rule, stack)
        if not case.sizes.include(live):
            return None

        def act() -> None:
            _require(area, case, live)
            with checked_end(live, host, stack):
                if live.has_pool:
                    live.put_aside()
                    live.reserve(case.pages)
                case.act(live)

        # a call that the case relies on is refused, or memory that it may use is not there
        end = run_judged(live, act, (ActorGone, Fault, Refused))
    verdict, reason = _verdict(live, end)
    found = f"{live.traceback}{_all_told(live)}{evidence(host)}" if verdict in BAD else ""
    return Result(result_name(area, case, size), verdict, because(reason), time.monotonic() - began, found)


def run_judged(
    live: Live,
    act: Callable[[], None],
    of_the_kernel: tuple[type[Exception], ...],
    passed_on: tuple[type[Exception], ...] = (),
) -> CannotRun | KnownBug | None:
    """Call ``act`` and note what breaks it off: a difference if it is ``of_the_kernel``, else a problem of the suite.

    What says that it cannot be judged, or is a known bug, is returned; what is to be ``passed_on`` is raised.
    """
    try:
        act()
    except (CannotRun, KnownBug) as end:
        return end
    except Failed as failure:
        live.differences.append(failure.difference)
    except of_the_kernel as error:
        _note_of_the_kernel(live, error)
    except passed_on:
        raise
    except Exception as error:
        # where a process never ends nothing that it uses can be cleared up
        if live.gone:
            _note_of_the_kernel(live, live.gone[0])
        # whatever else goes wrong is the suite's: it must not be called the kernel's, nor end the run
        live.problems.append(f"{type(error).__name__}: {error}")
        live.traceback = traceback.format_exc()
    return None


def _note_of_the_kernel(live: Live, error: Exception) -> None:
    found = f"{type(error).__name__}: {error}"
    if live.ran_out_of_memory:
        live.problems.append(found)
    else:
        live.differences.append(Difference("the case", live.rule, "an end without an error", found))


def _all_told(live: Live) -> str:
    """Return what the reason of a result is too short for."""
    if len(live.differences) <= _TOLD:
        return ""
    return "".join(f"{difference}\n" for difference in ["--- all differences", *live.differences])


def _verdict(live: Live, end: CannotRun | KnownBug | None) -> tuple[Verdict, str]:
    found = told(live.differences, _TOLD)
    problems = "; ".join(live.problems)
    # what stays behind a case that the suite broke off is no finding; a kernel in trouble is one whatever broke
    if problems and not any(difference.rule in (live.rule, KERNEL_CONTENT) for difference in live.differences):
        return Verdict.ERROR, f"{problems} ({found})" if found else problems
    return decide(
        found=f"{found} ({problems})" if problems else found,
        known=str(end) if isinstance(end, KnownBug) else "",
        lacking=str(end) if isinstance(end, CannotRun) else "",
        passed="; ".join(live.notes),
    )


def _require(area: Area, case: Case, live: Live) -> None:
    if area.words:
        booted_with = (live.host.read("proc/cmdline") or "").split()
        if missing := [word for word in area.words.split() if word not in booted_with]:
            raise CannotRun(f"not booted with {' '.join(missing)}")
    if case.sizes is not Sizes.ONCE and not live.has_pool:
        raise CannotRun(f"this machine has no pages of {format_size(live.size)}")
    version = live.kernel_version
    if not case.rule.holds_for(version):
        since, until = case.rule.since, case.rule.until
        span = " ".join(word for word in (f"since {since}" if since else "", f"until {until}" if until else "") if word)
        raise CannotRun(f"Linux {version}: the rule holds {span}")
    if case.nodes > 1 and len(live.nodes) < case.nodes:
        raise CannotRun(f"{len(live.nodes)} NUMA node with memory, {case.nodes} are needed")


@contextmanager
def checked_end(live: Live, host: Host, stack: ExitStack) -> Iterator[None]:
    """End what the case started, put the pools back, and compare the machine with what it was.

    A known bug that spoils the machine, which ends with the case, may have left something in its pools.
    """
    before = live.before
    taint = host.read(TAINT)
    host.skip_kernel_log()
    left = _what_is_left(live) if host.is_accounted else None
    may_leave = False
    try:
        yield
    except KnownBug:
        may_leave = host.is_spoiled
        raise
    except ActorGone as gone:
        live.gone.append(gone)
        raise
    finally:
        stack.close()
        _put_back(live, host, before)
        after = read_pool_view(ObservedTree(host))
        if _short(before, after):
            # others may have taken what the case gave back, before the pool could have it again
            live.make_room()
            _put_back(live, host, before)
            after = read_pool_view(ObservedTree(host))
            live.problems += _taken_by_others(live, before, after)
        live.differences += [] if may_leave else _left(before, after)
        if left and not host.lacks_memory:
            live.differences += left()
        live.differences += find_trouble(live, host, taint)


def _what_is_left(live: Live) -> Callable[[], list[Difference]]:
    """Look at all memory and structures of the kernel that there are; return who tells what a case has left of them."""
    of_memory = partial(compare_account, live, read_account(live), stored_pages(live))
    return partial(left_behind, live, of_memory, partial(compare_objects, live, count_objects(live)))


def _put_back(live: Live, host: Host, before: PoolView) -> None:
    """Write the settings of every pool as they were; shrinking comes before growing, it makes room."""
    now = read_pool_view(host)
    for size, overcommit in before.overcommit.items():
        if now.overcommit[size] != overcommit:
            host.write(live.pool_file("nr_overcommit_hugepages", size=size), str(overcommit))
    changed = [size for size in before.pools if _persistent(before, size) != _persistent(now, size)]
    for size in sorted(changed, key=lambda size: now.pools[size].nr < before.pools[size].nr):
        for node, count in _persistent(before, size).items():
            host.write(live.pool_file("nr_hugepages", size=size, node=node), str(count))


def _persistent(view: PoolView, size: int) -> dict[int | None, int]:
    """Return node -> persistent pages, with None for the machine where the kernel has no nodes."""
    if not view.nodes:
        return {None: view.pools[size].nr - view.pools[size].surplus}
    return {node: pools[size].nr - pools[size].surplus for node, pools in view.nodes.items() if size in pools}


def _short(before: PoolView, after: PoolView) -> list[tuple[int, int | None]]:
    """Return page size and node of each pool that has fewer pages than before; None is the machine's."""
    pairs: list[tuple[int, int | None, int, int]] = [
        (size, None, pool.nr, after.pools[size].nr) for size, pool in before.pools.items() if size in after.pools
    ]
    for node, pools in before.nodes.items():
        pairs += [(size, node, pool.nr, after.nodes[node][size].nr) for size, pool in pools.items()]
    return [(size, node) for size, node, was, now in pairs if now < was]


def _taken_by_others(live: Live, before: PoolView, after: PoolView) -> list[str]:
    """Return what keeps pools short for want of free blocks; of gigantic pages that cannot be told from a page lost."""
    return [
        f"others have the memory of {size_name(size)}{'' if node is None else f' on node {node}'} that was given back"
        for size, node in _short(before, after)
        if size <= live.largest_block and not live.free_blocks(node, size)
    ]


def _left(before: PoolView, after: PoolView) -> list[Difference]:
    pairs = [(size_name(size), pool, after.pools.get(size)) for size, pool in before.pools.items()]
    for node, pools in before.nodes.items():
        pairs += [(f"node{node}/{size_name(size)}", pool, after.nodes[node].get(size)) for size, pool in pools.items()]
    limits = [
        (f"{size_name(size)}/nr_overcommit_hugepages", was, after.overcommit[size])
        for size, was in before.overcommit.items()
    ]
    return after.disagreements() + [
        Difference(f"{subject}{_lost(was, now)}", NOTHING_LEFT, str(was), str(now))
        for subject, was, now in (*pairs, *limits)
        if was != now
    ]


def _lost(was: object, now: object) -> str:
    """Say how many pages of a pool nobody has: in use before or not, no process of the case is left to use them."""
    if not (isinstance(was, Counters) and isinstance(now, Counters)):
        return ""
    lost = (now.nr - now.free) - (was.nr - was.free)
    return f", {lost} pages that are not free, and no process of the case is left that has them" if lost > 0 else ""


def evidence(host: Host) -> str:
    """Return what explains a failure."""
    return "\n".join(f"--- /{path}\n{host.read(path) or 'cannot be read'}" for path in _EVIDENCE)
