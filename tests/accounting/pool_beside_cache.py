"""Pages of the pools beside the page cache: what they hold is no cached, shared or anonymous memory of the kernel."""

from collections.abc import Callable, Collection
from functools import partial

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.changed_counters import OF_NODES, expect_change, read_counters_with_nodes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import Live
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.sizes import MIB

BESIDE_CACHE = Area("accounting/pool-beside-cache")

#: what processes take and give back by the way is less than half of it
_LEAST = 16 * MIB
_ATTEMPTS = 10
#: lines of /proc/meminfo and of the meminfo of nodes
_LINES = (
    "Cached",
    "FilePages",
    "Shmem",
    "Mapped",
    "AnonPages",
    "Active(file)",
    "Inactive(file)",
    "Active(anon)",
    "Inactive(anon)",
    "Unevictable",
    "Mlocked",
)
#: lines of the same that nothing else changes by the way
_OF_HUGE_PAGES = "FileHugePages", "FilePmdMapped", "ShmemHugePages", "ShmemPmdMapped", "AnonHugePages"
#: counters of /proc/vmstat, of base pages
_COUNTERS = (
    "nr_file_pages",
    "nr_shmem",
    "nr_mapped",
    "nr_anon_pages",
    "nr_active_file",
    "nr_inactive_file",
    "nr_active_anon",
    "nr_inactive_anon",
    "nr_unevictable",
    "nr_mlock",
)
#: has a process use so many pages
_Use = Callable[[Live, Actor, int], None]


@BESIDE_CACHE.case(
    "pages of a pool are counted as no page of a file, shared, mapped, anonymous or on a list of those that may be"
    " reclaimed, of the machine and of its nodes: allocated for a file, written to it through a mapping, read in a"
    " private one, or private; and nothing is taken from these counts when they are given back",
    f"{HUGETLB_DOC} Hugetlb; Documentation/filesystems/proc.rst meminfo Cached, Shmem, Mapped, AnonPages; mm/filemap.c"
    " __filemap_add_folio(), filemap_unaccount_folio()",
)
def used_pages(live: Live) -> None:
    pages = -(-_LEAST // live.size)
    live.reserve(pages)
    uses: dict[str, _Use] = {
        "allocated for a file": _allocate,
        "written to a file through a mapping": _write_to_a_file,
        "read in a private mapping of a file": _read_in_a_private_mapping,
        "private": _fill_private,
    }
    for name, use in uses.items():
        with live.about(name):
            _expect_in_no_huge_page(live, use, pages)
            began = live.host.clock()
            used, given_back = live.host.last_attempt(partial(_counted, live, use, pages), lambda seen: not any(seen))
            _need_rest(live, {*used, *given_back}, pages * live.size // 4, live.host.clock() - began)
            live.expect("bytes that are counted of pages in use", {}, used)
            live.expect("bytes that are counted when they are given back", {}, given_back)


def _expect_in_no_huge_page(live: Live, use: _Use, pages: int) -> None:
    """Expect no count of transparent huge pages to change by as little as a base page, when pages are used and then."""
    expected = dict.fromkeys((*_OF_HUGE_PAGES, *(f"{OF_NODES}{line}" for line in _OF_HUGE_PAGES)), 0)
    actors = [live.actor()]

    def another() -> Actor:
        # what others change meanwhile has it done again
        actors.pop().end()
        actors.append(live.actor())
        return actors[0]

    def using() -> Actor:
        actor = another()
        use(live, actor, pages)
        return actor

    expect_change(live, expected, another, lambda actor: use(live, actor, pages), read_counters_with_nodes)
    expect_change(live, expected, using, Actor.end, read_counters_with_nodes).end()


def _counted(live: Live, use: _Use, pages: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return what is counted of pages while a process uses them, and then, where it is no less than half of them."""
    before, actor = _read(live), live.actor()
    use(live, actor, pages)
    live.expect_pool(nr=pages, free=0)
    in_use = _read(live)
    actor.end()
    live.expect_pool(nr=pages, free=pages)
    after = _read(live)
    used, given_back = ({name: now[name] - before[name] for name in before} for now in (in_use, after))
    most = pages * live.size // 2
    return (
        {name: change for name, change in used.items() if abs(change) >= most},
        {name: change for name, change in given_back.items() if abs(change) >= most},
    )


def _need_rest(live: Live, names: Collection[str], much: int, seconds: float) -> None:
    """Raise CannotRun where others change one of the counts by as ``much`` in so many seconds, with nothing done."""
    if not names or not live.host.has_others:
        return
    before = _read(live)
    live.host.pause(seconds)
    after = _read(live)
    if changed := {name: after[name] - before[name] for name in names if abs(after[name] - before[name]) >= much}:
        raise CannotRun(f"others change the same counts: {changed}")


def _read(live: Live) -> dict[str, int]:
    """Return all of the counts that this kernel has, in bytes."""
    counters = read_counters_with_nodes(live)
    names = [*_LINES, *(f"{OF_NODES}{line}" for line in _LINES)]
    lines = {name: counters[name] for name in names if name in counters}
    return lines | {name: counters[name] * live.base_page for name in _COUNTERS if name in counters}


def _allocate(live: Live, actor: Actor, pages: int) -> None:
    new_memfd(live, actor, pages=pages).allocate(pages)


def _write_to_a_file(live: Live, actor: Actor, pages: int) -> None:
    new_memfd(live, actor, pages=pages).map(pages).fill()


def _read_in_a_private_mapping(live: Live, actor: Actor, pages: int) -> None:
    # what is read reserves nothing: the pages are those of the file
    new_memfd(live, actor, pages=pages).map(pages, shared=False, noreserve=True).expect_zero(0, pages)


def _fill_private(live: Live, actor: Actor, pages: int) -> None:
    live.map(pages, actor).fill()


class BesideCache(LiveTest):
    def test_pool_beside_cache(self) -> None:
        self.run_area(BESIDE_CACHE)
