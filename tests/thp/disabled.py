"""Huge pages that a process forbids itself, all of them or those that nobody advised: PR_SET_THP_DISABLE."""

import errno
from collections.abc import Iterator
from functools import partial
from itertools import count, product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import expect_at_fault, with_blocks
from hugepage_qa.cases.frames import COMPOUND_HEAD, COMPOUND_TAIL, TRANSPARENT, kpageflags
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse
from hugepage_qa.cases.mapped_memory import FRAME, PRESENT, WORD, Memory
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import ADVICES, advised, set_policy
from hugepage_qa.cases.thp_shared_memory import (
    expect_mapped_whole,
    is_whole_by_any_part,
    let_only_pmd_inherit,
    map_start,
    mount_tmpfs,
    shared_huge_pages,
)
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import (
    MADV_COLLAPSE,
    MADV_HUGEPAGE,
    MADV_NOHUGEPAGE,
    PR_GET_THP_DISABLE,
    PR_SET_THP_DISABLE,
    PR_THP_DISABLE_EXCEPT_ADVISED,
)
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

DISABLED = Area("thp/disabled", sizes=Sizes.ONCE)

SET = "PR_SET_THP_DISABLE(2const); kernel/sys.c prctl_set_thp_disable()"
#: what PR_GET_THP_DISABLE returns: 1 and the flags
_EXCEPT_ADVISED = 1 | PR_THP_DISABLE_EXCEPT_ADVISED
#: of shared memory: one that is read, and one that is written
_PAGES = 2


@DISABLED.case(
    "PR_SET_THP_DISABLE and PR_GET_THP_DISABLE refuse arguments that they do not have, and change nothing then",
    f"{SET}; PR_GET_THP_DISABLE(2const)",
    since="5.0",  # THP_enabled
)
def refused_arguments(live: Live) -> None:
    # without it THP_enabled is 0 of all
    pmd_size(live)
    actor = live.actor()
    for disabled in (0, 1):
        _disable(actor, disabled)
        # the second may be a flag since Linux 6.18: of what is disabled, and only that one
        for arguments in ((1, 1, 0, 0), (1, 4, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1), (0, 1, 0, 0), (0, 2, 0, 0)):
            live.expect_errno(errno.EINVAL, actor.call, "prctl", PR_SET_THP_DISABLE, *arguments)
        for arguments in ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)):
            live.expect_errno(errno.EINVAL, actor.call, "prctl", PR_GET_THP_DISABLE, *arguments)
        live.expect("PR_GET_THP_DISABLE", disabled, _disabled(actor))
        shown = live.host.observe(f"proc/{actor.pid}/status") or ""
        live.expect("THP_enabled", True, f"THP_enabled:\t{1 - disabled}\n" in shown)


@DISABLED.case(
    "MADV_COLLAPSE makes no memory huge of a process with PR_SET_THP_DISABLE, of its child, or of what that executes,"
    " anonymous, shared or of a file, whatever was advised and whoever asks: it is EINVAL and changes nothing; it makes"
    " the same memory huge when they may have huge pages again, for one that may have none, too",
    f"{SET}; madvise(2) MADV_COLLAPSE, EINVAL; mm/khugepaged.c madvise_collapse()",
    since="6.1",
)
def collapsed_for_none(live: Live) -> None:
    let_only_pmd_inherit(live)
    set_policy(live, "never")
    point, stranger = mount_tmpfs(live, "never"), live.actor()
    _disable(stranger, 1)
    parent = live.actor()
    _disable(parent, 1)
    child, executed = parent.fork(), parent.fork()
    executed.exec()
    for actor, who in ((parent, "the process"), (child, "its child"), (executed, "a child after exec")):
        for memory, what in _memory_of_each_kind(live, actor, f"{point}/{actor.pid}"):
            with live.about(f"{what} of {who}"):
                memory.fill()
                ask_for_it = partial(memory.advised_by, stranger, MADV_COLLAPSE)
                for ask in (partial(memory.advise, MADV_COLLAPSE), ask_for_it):
                    live.expect_errno(errno.EINVAL, collapse, live, ask)
                    live.expect("huge pages", 0, mapped_huge(memory))
                    memory.expect_filled()
                _disable(actor, 0)
                collapse(live, ask_for_it)
                _disable(actor, 1)
                live.expect("huge pages when it may have them", memory.length, mapped_huge(memory))
                memory.expect_filled()
                memory.unmap()


@DISABLED.case(
    "shared memory that a process with PR_SET_THP_DISABLE, its child, or what that executes uses first is no huge page,"
    " of a file of a tmpfs, of one without a name or anonymous, whatever shmem_enabled, its mount and advice say, and"
    " whichever byte is read or written; when they may have huge pages again, it is one",
    f"{SET}; mm/shmem.c shmem_is_huge(), shmem_allowable_huge_orders(); include/linux/huge_mm.h vma_thp_disabled()",
)
def shared_memory_for_none(live: Live) -> None:
    let_only_pmd_inherit(live)
    numbers = count()
    for policy, advice in (("always", None), ("within_size", None), ("advise", MADV_HUGEPAGE), ("force", None)):
        live.set_knob(f"{DIRECTORY}/shmem_enabled", policy)
        point = mount_tmpfs(live, "never" if policy == "force" else policy)
        parent = live.actor()
        _disable(parent, 1)
        executed = parent.fork()
        executed.exec()
        for actor, who in ((parent, "the process"), (parent.fork(), "its child"), (executed, "a child after exec")):
            for disabled, make in product((1, 0), (_new_file, _new_memfd, _new_anonymous)):
                if not disabled:
                    # until then it is disabled as it came to be: by itself, or for its parent
                    _disable(actor, 0)
                memory = make(live, actor, f"{point}/{next(numbers)}")
                if advice is not None:
                    memory.advise(advice)
                with live.about(f"{make.__name__[5:]} of {who}, {policy}, disabled {disabled}"):
                    _expect_first_use(live, memory, disabled)
                memory.unmap()


@DISABLED.case(
    "a huge page of shared memory is mapped as base pages by a process with PR_SET_THP_DISABLE, and where that was"
    " advised against, read or written, whichever part of it first; it stays one, and is mapped as a whole by others",
    f"{SET}; madvise(2) MADV_NOHUGEPAGE; mm/memory.c do_set_pmd() (2b0f922323cc)",
    since="6.12",
)
def huge_page_of_others(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, base = pmd_size(live), live.base_page
    for by_process, is_written, offset in product((True, False), (False, True), (0, size - base)):
        owner = shared_huge_pages(live)
        # which has no page tables of it yet
        memory = owner.fork()
        if by_process:
            _disable(memory.actor, 1)
        else:
            memory.advise(MADV_NOHUGEPAGE)
        with live.about(f"by the process {by_process}, written {is_written} at {offset}"):
            if is_written:
                memory.actor.write(memory.address + offset, 1 + offset)
            memory.expect_filled()
            live.expect("bytes mapped as a whole", 0, mapped_huge(memory))
            expect_mapped_whole(live, owner, 1, "by its owner")
        owner.actor.end()


def _new_file(live: Live, actor: Actor, path: str) -> Memory:
    return map_start(live, actor, live.open(actor, path), _PAGES)


def _new_memfd(live: Live, actor: Actor, _path: str) -> Memory:
    return map_start(live, actor, actor.call("memfd_create", "disabled", 0), _PAGES)


def _new_anonymous(live: Live, actor: Actor, _path: str) -> Memory:
    return map_aligned(live, _PAGES, pmd_size(live), shared=True, actor=actor)


def _expect_first_use(live: Live, memory: Memory, disabled: int) -> None:
    """Read one huge page of ``memory`` and write the next: expect them to be huge, or base pages if ``disabled``.

    Raises CannotRun where memory is too fragmented for huge ones.
    """
    size = memory.size
    with_blocks(live, size, 0 if disabled else memory.pages)
    live.expect("the first word", 0, memory.read(0))
    offset = size + (size - WORD if is_whole_by_any_part(live) else 0)
    memory.actor.write(memory.address + offset, 1)
    entries = memory.whole_pagemap()
    used = entries[0], entries[offset // live.base_page]
    if not disabled:
        expect_mapped_whole(live, memory, memory.pages)
    live.expect("whether both are there", [True, True], [bool(entry & PRESENT) for entry in used])
    flags = kpageflags(live, memory.actor, [entry & FRAME for entry in used])
    of_huge_pages = COMPOUND_HEAD | COMPOUND_TAIL | TRANSPARENT
    found = [bool(each & of_huge_pages) for each in flags]
    live.expect("whether they are parts of huge pages", [not disabled] * 2, found)
    live.expect("huge pages", 0 if disabled else memory.length, mapped_huge(memory))
    live.expect("words that are not zero", 1, memory.nonzero(0, memory.length))


@DISABLED.case(
    "with PR_THP_DISABLE_EXCEPT_ADVISED a fault gets a huge page where policy and advice give it, and without advice"
    " none; so in a child, and in what it executes",
    f"{SET}, PR_THP_DISABLE_EXCEPT_ADVISED; include/linux/huge_mm.h vma_thp_disabled()",
    since="6.18",
)
def advised_alone(live: Live) -> None:
    for policy in ("always", "madvise", "never"):
        set_policy(live, policy)
        parent = _except_advised(live)
        executed = parent.fork()
        executed.exec()
        for actor, name in ((parent, "the process"), (parent.fork(), "its child"), (executed, "a child after exec")):
            live.expect(f"PR_GET_THP_DISABLE of {name}", _EXCEPT_ADVISED, _disabled(actor))
            for advice in ADVICES:
                huge = advice == MADV_HUGEPAGE and policy != "never"
                where = f"{name}, enabled={policy}, advice {advice}"
                expect_at_fault(live, where, huge, partial(advised, live, 1, advice, actor=actor))


@DISABLED.case(
    "MADV_COLLAPSE is advice: with PR_THP_DISABLE_EXCEPT_ADVISED it makes memory huge, but for that advised against",
    f"{SET}, PR_THP_DISABLE_EXCEPT_ADVISED; madvise(2) MADV_COLLAPSE; include/linux/huge_mm.h vma_thp_disabled()",
    since="6.18",
)
def collapsed(live: Live) -> None:
    set_policy(live, "never")
    parent = _except_advised(live)
    for actor in (parent, parent.fork()):
        for advice in ADVICES:
            memory = advised(live, 1, advice, actor=actor)
            memory.fill()
            ask = partial(collapse, live, partial(memory.advise, MADV_COLLAPSE))
            if advice == MADV_NOHUGEPAGE:
                live.expect_errno(errno.EINVAL, ask)
            else:
                ask()
            expected = 0 if advice == MADV_NOHUGEPAGE else memory.length
            live.expect(f"AnonHugePages, advice {advice}", expected, memory.smaps().anon_huge_pages)
            memory.expect_filled()
            memory.unmap()


@DISABLED.case(
    "what a process forbids itself is what it said last: all huge pages, those that nobody advised, or none",
    f"{SET}; PR_GET_THP_DISABLE(2const)",
    since="6.18",
)
def said_last(live: Live) -> None:
    set_policy(live, "always")
    actor = live.actor()
    flags = PR_THP_DISABLE_EXCEPT_ADVISED
    for disabled, flag in ((1, flags), (1, 0), (1, flags), (0, 0), (1, 0), (0, 0)):
        actor.call("prctl", PR_SET_THP_DISABLE, disabled, flag, 0, 0)
        live.expect("PR_GET_THP_DISABLE", disabled | flag, _disabled(actor))
        for advice in (None, MADV_HUGEPAGE):
            huge = not disabled or bool(flag and advice)
            where = f"PR_SET_THP_DISABLE {disabled}, flags {flag}, advice {advice}"
            expect_at_fault(live, where, huge, partial(advised, live, 1, advice, actor=actor))


def _memory_of_each_kind(live: Live, actor: Actor, path: str) -> Iterator[tuple[Memory, str]]:
    """Yield one page of each kind of memory that MADV_COLLAPSE makes huge; the one of a file is that of ``path``."""
    for advice in (None, MADV_HUGEPAGE):
        yield advised(live, 1, advice, actor=actor), f"anonymous memory, advice {advice}"
        yield map_aligned(live, 1, pmd_size(live), shared=True, actor=actor, advice=advice), f"shared, advice {advice}"
    yield map_start(live, actor, live.open(actor, path)), "a file of a tmpfs"


def _except_advised(live: Live) -> Actor:
    actor = live.actor()
    actor.call("prctl", PR_SET_THP_DISABLE, 1, PR_THP_DISABLE_EXCEPT_ADVISED, 0, 0)
    return actor


def _disable(actor: Actor, disabled: int) -> None:
    actor.call("prctl", PR_SET_THP_DISABLE, disabled, 0, 0, 0)


def _disabled(actor: Actor) -> int:
    return actor.call("prctl", PR_GET_THP_DISABLE, 0, 0, 0, 0)


class ThpDisabled(LiveTest):
    def test_disabled(self) -> None:
        self.run_area(DISABLED)
