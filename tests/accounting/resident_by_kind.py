"""What of a process is resident, by kind: RssAnon, RssFile and RssShmem of status, and what statm tells of the same."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.process_counters import expect_process_swap, process_status, tells_resident
from hugepage_qa.cases.swapped import need_swap, parts_out, zswap_knob
from hugepage_qa.cases.thp_memory import free_lazily, pmd_size
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, mapped_in_parts
from hugepage_qa.cases.thp_shared_memory import filled_file, map_file, mount_tmpfs, shared_base_pages, shared_huge_pages
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

RESIDENT_BY_KIND = Area("accounting/resident-by-kind", sizes=Sizes.ONCE)

_PAGES = 2
_ANONYMOUS, _SHARED = {"RssAnon": _PAGES}, {"RssShmem": _PAGES}
_KINDS = "RssAnon", "RssFile", "RssShmem"
_RESIDENT, _SHARED_PAGES = "resident of statm", "shared of statm"


@RESIDENT_BY_KIND.case(
    "huge pages and base pages of a process count as what they are, RssAnon or RssShmem, and as nothing else, and for a"
    " private mapping of a file what it reads as the file's and what it writes as its own; VmRSS and statm are their"
    " sum, and statm tells which of it files and shared memory have; nothing is left of what is unmapped",
    "Documentation/filesystems/proc.rst RssAnon, RssFile, RssShmem, statm; fs/proc/task_mmu.c task_mem(), task_statm()",
)
def each_kind_for_itself(live: Live) -> None:
    let_nobody_else_act(live)
    some = base_pages(live, 1)
    some.unmap()
    besides = _resident(live, some.actor)
    some.actor.end()
    for make, expected in _MADE.items():
        memory = make(live, _PAGES)
        with live.about(make.__name__.strip("_").replace("_", " ")):
            _expect_resident(live, memory, expected, besides)
            memory.unmap()
            _expect_resident(live, memory, {}, besides)
        memory.actor.end()


@RESIDENT_BY_KIND.case(
    "what the kernel takes of huge pages and base pages, mapped as a whole or in parts, is resident no more: RssAnon"
    " falls by all that it takes after MADV_FREE, and by all that goes to swap, which VmSwap rises by, of whole pages"
    " and of halves of two; what is had again counts again, and nothing is left when it is unmapped",
    "Documentation/filesystems/proc.rst RssAnon, VmSwap; madvise(2) MADV_FREE; mm/rmap.c try_to_unmap_one(),"
    " ttu_anon_lazyfree_folio(); mm/huge_memory.c __discard_anon_folio_pmd_locked()",
    since="5.4",  # MADV_PAGEOUT
)
def taken_by_the_kernel(live: Live) -> None:
    let_nobody_else_act(live)
    need_swap(live, 2 * _PAGES * pmd_size(live))
    live.set_knob_if_there(zswap_knob("enabled"), "N")
    some = base_pages(live, 1)
    some.unmap()
    besides = _resident(live, some.actor)
    some.actor.end()
    for make, is_free, is_all in product((huge_pages, mapped_in_parts, base_pages), (True, False), (True, False)):
        memory = make(live, _PAGES)
        start, length = (0, memory.length) if is_all else (memory.size // 2, memory.size)
        what = f"{length} bytes from {start} on are {'free to be taken' if is_free else 'swapped out'}"
        with live.about(f"{make.__name__.replace('_', ' ')}, {what}"):
            if is_free:
                live.host.wait_until(partial(free_lazily, live, memory))
            live.host.wait_until(partial(parts_out, live, memory, [(start, length)], partial(_is_out, memory, length)))
            left = memory.smaps()
            live.expect(f"whether it was taken, Rss {left.rss}", True, left.rss <= memory.length - length)
            _expect_resident(live, memory, {"RssAnon": round(left.rss / memory.size)}, besides)
            swap = left.fields["Swap"]
            expect_process_swap(live, memory, swap)
            live.expect("bytes in swap", 0 if is_free else memory.length - left.rss, swap)
            memory.fill()
            _expect_resident(live, memory, _ANONYMOUS, besides)
            memory.unmap()
            _expect_resident(live, memory, {}, besides)
        memory.actor.end()


def _is_out(memory: Memory, length: int) -> bool:
    return memory.smaps().rss <= memory.length - length


def _expect_resident(live: Live, memory: Memory, expected: Mapping[str, int], besides: Mapping[str, int]) -> None:
    """Expect what ``memory``'s process has of each kind, in huge pages: kind -> how many, ``besides`` what actors have.

    CPUs or threads add up some base pages later: in huge pages all places have to agree.
    """
    if not tells_resident(live, memory.size):
        return
    together, shared = sum(expected.values()), expected.get("RssShmem", 0)
    sums = {"VmRSS": together, _RESIDENT: together, _SHARED_PAGES: shared}
    wanted = {**dict.fromkeys(_KINDS, 0), **expected, **sums}
    for name, found in _resident(live, memory.actor).items():
        live.expect(name, wanted[name], round((found - besides[name]) / memory.size))


def _resident(live: Live, actor: Actor) -> Mapping[str, int]:
    """Return what each place tells of the memory of ``actor``, in bytes.

    Of its program and libraries a fault maps what lies around in the page cache, up to 1.5 MiB in all: no small thing.
    """
    sizes = process_status(live, actor).sizes
    statm = (ObservedTree(live.host).read(f"proc/{actor.pid}/statm") or "").split()
    if len(statm) < len(("size", "resident", "shared")):
        live.fail("statm", "seven numbers", statm)
    resident, shared = (int(pages) * live.base_page for pages in statm[1:3])
    return {name: sizes[name] for name in (*_KINDS, "VmRSS")} | {_RESIDENT: resident, _SHARED_PAGES: shared}


def _huge_pages_of_a_file(live: Live, pages: int) -> Memory:
    return filled_file(live, f"{mount_tmpfs(live, 'always')}/file", pages)


def _private_mapping(live: Live, pages: int, use: Callable[[Memory], object]) -> Memory:
    path = f"{mount_tmpfs(live, 'always')}/file"
    filled_file(live, path, pages)
    actor = live.actor()
    memory = map_file(live, actor, live.open(actor, path, os.O_RDWR), pages, shared=False)
    use(memory)
    return memory


def _private_mapping_that_is_read(live: Live, pages: int) -> Memory:
    return _private_mapping(live, pages, Memory.expect_filled)


def _private_mapping_that_is_written(live: Live, pages: int) -> Memory:
    return _private_mapping(live, pages, Memory.fill)


_MADE: Mapping[Callable[[Live, int], Memory], Mapping[str, int]] = {
    huge_pages: _ANONYMOUS,
    mapped_in_parts: _ANONYMOUS,
    base_pages: _ANONYMOUS,
    shared_huge_pages: _SHARED,
    shared_base_pages: _SHARED,
    _huge_pages_of_a_file: _SHARED,
    _private_mapping_that_is_read: _SHARED,
    _private_mapping_that_is_written: _ANONYMOUS,
}


class ResidentByKind(LiveTest):
    def test_resident_by_kind(self) -> None:
        self.run_area(RESIDENT_BY_KIND)
