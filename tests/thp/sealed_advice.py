"""Advice on sealed memory (mseal(2)): what discards it is refused where it is read only, and nothing else is."""

import errno
import mmap
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import compact_if_short, expect_no_node_short
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.madv_collapse import collapse
from hugepage_qa.cases.mapped_memory import Memory, value_or_signal
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, need_blocks, need_folios_of_mapping, pmd_size
from hugepage_qa.cases.thp_policy import set_policy
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import (
    MADV_COLD,
    MADV_COLLAPSE,
    MADV_DODUMP,
    MADV_DONTDUMP,
    MADV_DONTNEED,
    MADV_DONTNEED_LOCKED,
    MADV_GUARD_INSTALL,
    MADV_HUGEPAGE,
    MADV_KEEPONFORK,
    MADV_MERGEABLE,
    MADV_NOHUGEPAGE,
    MADV_NORMAL,
    MADV_PAGEOUT,
    MADV_POPULATE_READ,
    MADV_POPULATE_WRITE,
    MADV_SEQUENTIAL,
    MADV_UNMERGEABLE,
    MADV_WILLNEED,
    MADV_WIPEONFORK,
)
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused
from hugepage_qa.version import KernelVersion

SEALED_ADVICE = Area("thp/sealed-advice", sizes=Sizes.ONCE)

SEALS = "Documentation/userspace-api/mseal.rst; mm/mseal.c is_madv_discard(), can_modify_vma_madv()"
SINCE = "6.10"
_PAGES = 2
_KEEPS = {
    "MADV_HUGEPAGE": MADV_HUGEPAGE,
    "MADV_COLLAPSE": MADV_COLLAPSE,
    "MADV_NOHUGEPAGE": MADV_NOHUGEPAGE,
    "MADV_NORMAL": MADV_NORMAL,
    "MADV_RANDOM": mmap.MADV_RANDOM,
    "MADV_SEQUENTIAL": MADV_SEQUENTIAL,
    "MADV_WILLNEED": MADV_WILLNEED,
    "MADV_POPULATE_READ": MADV_POPULATE_READ,
    "MADV_POPULATE_WRITE": MADV_POPULATE_WRITE,
    "MADV_DONTDUMP": MADV_DONTDUMP,
    "MADV_DODUMP": MADV_DODUMP,
    "MADV_DOFORK": mmap.MADV_DOFORK,
    "MADV_KEEPONFORK": MADV_KEEPONFORK,
}
#: after which it is a matter of chance what stays huge
_MAY_SPLIT = {
    "MADV_COLD": MADV_COLD,
    "MADV_PAGEOUT": MADV_PAGEOUT,
    "MADV_MERGEABLE": MADV_MERGEABLE,
    "MADV_UNMERGEABLE": MADV_UNMERGEABLE,
}
_DISCARDS = {
    "MADV_DONTNEED": MADV_DONTNEED,
    "MADV_DONTNEED_LOCKED": MADV_DONTNEED_LOCKED,
    "MADV_FREE": mmap.MADV_FREE,
    "MADV_REMOVE": mmap.MADV_REMOVE,
    "MADV_DONTFORK": mmap.MADV_DONTFORK,
    "MADV_WIPEONFORK": MADV_WIPEONFORK,
}
#: VmFlags that advice sets: Documentation/filesystems/proc.rst
_SHOWN = "hg", "nh", "rr", "sr", "dd", "dc", "wf"
#: what no longer shows what it holds, as if it was discarded: is_discard() in mm/madvise.c
_GUARDS_SINCE = KernelVersion(7, 3)


@SEALED_ADVICE.case(
    "advice that discards nothing does to sealed memory, read only or not, private or shared, in huge pages or not, and"
    " sealed as a whole or in its second huge page alone, what it does to memory beside it that is not sealed; and so"
    " does advice that discards, but for private memory that is read only: there it is EPERM, and all holds what it"
    " held, in a child, too",
    f"{SEALS}; mm/madvise.c is_discard(), can_madvise_modify()",
    since=SINCE,
)
def refused_to_discard(live: Live) -> None:
    _let_advice_decide(live)
    for shared, prot, huge in product((False, True), (mmap.PROT_READ, READ_WRITE), (False, True)):
        for first_sealed, names in ((0, list(_KEEPS)), (1, list(reversed(_KEEPS)))):
            actor = live.actor()
            plain, sealed = (_filled(live, actor, shared=shared, huge=huge) for _each in range(2))
            for memory in (plain, sealed):
                memory.protect(prot)
            _seal(sealed, first_sealed)
            kind = f"shared {shared}, writable {prot == READ_WRITE}, huge {huge}, sealed from page {first_sealed} on"
            with live.about(kind):
                for name in names:
                    _expect_same(live, plain, sealed, name, _KEEPS[name])
                    _expect_shown_alike(live, plain, sealed, name)
                is_refused = not shared and prot != READ_WRITE
                for name, advice in (_MAY_SPLIT if is_refused else _MAY_SPLIT | _DISCARDS).items():
                    if name in _DISCARDS and prot == READ_WRITE:
                        for memory in (plain, sealed):
                            _fill(live, memory)
                    _expect_same(live, plain, sealed, name, advice)
                if is_refused:
                    _expect_refused(live, sealed.part(first_sealed, _PAGES - first_sealed), sealed)
            actor.end()
        if live.differences:
            return


@SEALED_ADVICE.case(
    "sealed memory, private or shared, that is advised after that gets huge pages when it is touched, or none with"
    " MADV_NOHUGEPAGE; its base pages are made huge by MADV_COLLAPSE, and hold what they held",
    f"{SEALS}; madvise(2) MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_COLLAPSE",
    since=SINCE,
)
def made_huge(live: Live) -> None:
    _let_advice_decide(live)
    for shared in (False, True):
        with live.about(f"shared {shared}"):
            advised, against, filled = (map_aligned(live, _PAGES, pmd_size(live), shared=shared) for _each in range(3))
            filled.fill()
            for memory in (advised, against, filled):
                _seal(memory, 0)
            live.expect_success(advised.advise, MADV_HUGEPAGE)
            live.expect_success(against.advise, MADV_NOHUGEPAGE)
            for memory in (advised, against):
                memory.fill()
            need_blocks(live, advised)
            live.expect_success(collapse, live, partial(filled.advise, MADV_COLLAPSE))
            for memory, length in ((advised, advised.length), (against, 0), (filled, filled.length)):
                live.expect("bytes in huge pages", length, mapped_huge(memory))
                memory.expect_filled()
                memory.actor.end()


def _let_advice_decide(live: Live) -> None:
    """Have memory get huge pages where it is advised so, and khugepaged make none."""
    let_nobody_else_act(live)
    set_policy(live, "madvise")
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise")
    compact_if_short(live, pmd_size(live), 2 * _PAGES)


def _filled(live: Live, actor: Actor, *, shared: bool, huge: bool) -> Memory:
    """Return memory with a word in each of its base pages."""
    memory = map_aligned(live, _PAGES, pmd_size(live), shared=shared, actor=actor)
    if huge:
        memory.advise(MADV_HUGEPAGE)
    _fill(live, memory)
    if huge and (found := mapped_huge(memory)) != memory.length:
        need_folios_of_mapping(live, memory)
        expect_no_node_short(live, memory.size, memory.pages)
        live.fail("bytes in huge pages when filled", memory.length, found)
    return memory


def _fill(live: Live, memory: Memory) -> None:
    memory.actor.fill(memory.address, memory.length, live.base_page, 1)


def _changed(live: Live, memory: Memory) -> int:
    """Return how many words of memory that ``_fill`` has filled are others."""
    return memory.actor.check(memory.address, memory.length, live.base_page, 1)


def _seal(memory: Memory, first: int) -> None:
    memory.actor.call("mseal", memory.at(first), (memory.pages - first) * memory.size, 0)


def _expect_same(live: Live, plain: Memory, sealed: Memory, name: str, advice: int) -> None:
    """Expect ``advice`` to come to the same on both."""
    plainly, sealed_so = (_outcome(live, memory, advice) for memory in (plain, sealed))
    live.expect(f"errno of {name}", plainly, sealed_so)
    # what MADV_FREE discards is there until it is taken
    if advice != mmap.MADV_FREE:
        live.expect(f"words that {name} changed", _changed(live, plain), _changed(live, sealed))


def _expect_shown_alike(live: Live, plain: Memory, sealed: Memory, name: str) -> None:
    """Expect the same flags of advice, and as much in huge pages, of both."""
    shown = list[tuple[list[str], int]]()
    for memory in (plain, sealed):
        mappings = memory.all_mappings()
        flags = [flag for flag in _SHOWN if any(flag in mapping.flags for mapping in mappings)]
        shown.append((flags, sum(mapping.anon_huge_pages + mapping.shmem_pmd_mapped for mapping in mappings)))
    live.expect(f"VmFlags, bytes in huge pages after {name}", shown[0], shown[1])


def _expect_refused(live: Live, part: Memory, sealed: Memory) -> None:
    """Expect all of ``sealed``, of which ``part`` is sealed, to refuse advice that discards, and the part to hold."""
    discards = dict(_DISCARDS)
    if live.kernel_version >= _GUARDS_SINCE:
        discards["MADV_GUARD_INSTALL"] = MADV_GUARD_INSTALL
    for name, advice in discards.items():
        with live.about(name):
            # what is not sealed is asked first, and private memory has no file from which to remove it
            asked = part if advice == mmap.MADV_REMOVE else sealed
            live.expect("errno", errno.EPERM, _outcome(live, asked, advice))
            child = part.fork()
            for memory in (part, child):
                value = 1 + memory.address - sealed.address
                check = partial(memory.actor.check, memory.address, memory.length, live.base_page, value)
                live.expect("words that changed", 0, value_or_signal(check))
            child.actor.end()


def _outcome(live: Live, memory: Memory, advice: int) -> int:
    """Return the errno of ``advice``, or 0."""
    try:
        collapse(live, partial(memory.advise, advice))
    except Refused as refusal:
        return refusal.errno or 0
    return 0


class ThpSealedAdvice(LiveTest):
    def test_sealed_advice(self) -> None:
        self.run_area(SEALED_ADVICE)
