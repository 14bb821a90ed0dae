"""Huge pages and what else the kernel does with memory: futexes, protection keys, tags, seals, its own statistics."""

import errno
import mmap
import signal
from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.charged_frames import KINDS, expect_group, expect_groups_to_pay
from hugepage_qa.cases.control_group import Version, new_group
from hugepage_qa.cases.fragmentation import compact_if_short
from hugepage_qa.cases.frames import HUGE, TRANSPARENT, kpagecount, kpageflags
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import FRAME, Memory
from hugepage_qa.cases.thp_memory import allow_on_advice, pmd_size
from hugepage_qa.cases.thp_policy import advised, huge_pages
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit
from hugepage_qa.kernel.cpu import read_cpu
from hugepage_qa.kernel.proc_tables import read_mounts
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_NOHUGEPAGE, MAP_FIXED
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Fault, Refused

INTERFACES = Area("memory/other-interfaces")
COUNTED = (
    "kpagecount shows of each part of a page in how many places it is mapped: once for who has touched it, and for each"
    " child that has it; not where it was unmapped"
)
COUNT_DOC = "Documentation/admin-guide/mm/pagemap.rst kpagecount; fs/proc/page.c kpagecount_read()"
GROUP_DOC = "Documentation/admin-guide/mm/pagemap.rst kpagecgroup; mm/memcontrol.c page_cgroup_ino()"
TAGS = "Documentation/arch/arm64/memory-tagging-extension.rst"

# include/uapi/asm-generic/mman-common.h, siginfo.h
PKEY_DISABLE_ACCESS, PKEY_DISABLE_WRITE = 1, 2
_DEFAULT_KEY = 0
_SEGV_PKUERR = 4
# arch/arm64/include/uapi/asm/mman.h
_PROT_MTE = 0x20
# include/uapi/linux/prctl.h: tags are checked at once, and those of random tags that are allowed are all
_PR_SET_TAGGED_ADDR_CTRL, _TAGGED_ADDR_ENABLE, _TCF_SYNC = 55, 1, 2
# include/uapi/asm-generic/siginfo.h
_SEGV_MTESERR = 9
_TAG_SHIFT, _TAG, _TAGGED_BYTES = 56, 5, 4096
#: struct cachestat_range: from where on, and 0 for up to the end; struct cachestat: five counts
_WHOLE_FILE, _COUNTS = "QQ", 5 * 8


@INTERFACES.case(
    "two words of one page are two futexes, wherever in it they lie: waking one leaves those that wait for the other",
    "futex(2); kernel/futex/core.c get_futex_key() (13d60f4b6ab5)",
    pages=1,
)
def futexes_in_a_page(live: Live) -> None:
    for shared in (False, True):
        memory = live.map(1, shared=shared)
        memory.touch(value=0)
        # at the same place in two base pages, and side by side
        for other in (live.base_page, live.size // 2, live.size - live.base_page, 4):
            woken = memory.actor.wake(memory.address, memory.address + other)
            live.expect(f"threads woken at the first word, and at one {other} bytes behind it", (1, 1), woken)
        memory.unmap()
        live.expect_pool(nr=1, free=1)


@INTERFACES.case(
    "a page with a protection key is accessed as the key allows, by a child, too, and if it was first touched with the"
    " key; its contents come back with another key",
    "pkeys(7); Documentation/core-api/protection-keys.rst",
    pages=2,
)
def protection_keys(live: Live) -> None:
    for shared in (False, True):
        memory = live.map(2, shared=shared)
        memory.actor.fill(memory.address, live.size, memory.step, 5)
        live.expect_pool(nr=2, free=1, resv=1)
        for rights in (PKEY_DISABLE_WRITE, PKEY_DISABLE_ACCESS):
            key = _protect(memory, rights)
            is_write = rights == PKEY_DISABLE_WRITE
            if is_write:
                memory.expect_filled(5, pages=1)
                # the first time nobody has touched the other page before
                memory.expect_zero(1)
                live.expect_pool(nr=2, free=0)
            child = memory.fork()
            for one, page in product((child, memory), range(2)):
                _expect_denied(live, one, page, is_write=is_write)
            child.actor.end()
            memory.actor.call("pkey_mprotect", memory.address, memory.length, READ_WRITE, _DEFAULT_KEY)
            memory.expect_filled(5, pages=1)
            memory.expect_zero(1)
            memory.actor.call("pkey_free", key)
        memory.unmap()
        live.expect_pool(nr=2, free=2)


def _protect(memory: Memory, rights: int) -> int:
    """Give ``memory`` a new protection key with which ``rights`` are denied, and return it. Raises CannotRun."""
    try:
        key = memory.actor.call("pkey_alloc", 0, rights)
    except Refused as refusal:
        if refusal.errno in (errno.ENOSPC, errno.ENOSYS, errno.EINVAL):
            raise CannotRun("this machine has no protection keys: pkey_alloc(2)") from refusal
        raise
    memory.actor.call("pkey_mprotect", memory.address, memory.length, READ_WRITE, key)
    return key


def _expect_denied(live: Live, memory: Memory, page: int, *, is_write: bool) -> None:
    found: tuple[signal.Signals, int] | None = None
    try:
        memory.touch(page, 6) if is_write else memory.read(page)
    except Fault as fault:
        found = fault.signal, fault.code
    # a signal handler begins with the rights of a new process, and so goes on who leaves it by siglongjmp()
    live.expect("signal and code", (signal.SIGSEGV, _SEGV_PKUERR), found)


@INTERFACES.case(
    "cachestat(2) of a file of huge pages is refused: what it has is in no page cache that the call knows",
    "mm/filemap.c filemap_cachestat()",
    since="6.5",
    pages=1,
)
def cachestat(live: Live) -> None:
    file = new_memfd(live)
    file.map(1).touch()
    span = live.host.uapi.pack(_WHOLE_FILE, 0, live.size)
    words = "cachestat", file.descriptor, span, bytes(_COUNTS), 0
    live.expect_errno(errno.EOPNOTSUPP, file.actor.call, *words)
    live.expect_pool(nr=1, free=0)


@INTERFACES.case(
    "a page of hugetlb, of a file or not, has tags where it is mapped with PROT_MTE, all 0 at first; a child has them,"
    " too, and the next one who gets the page has none of them",
    f"{TAGS}; fs/hugetlbfs/inode.c hugetlbfs_file_mmap(); arch/arm64/mm/copypage.c copy_highpage() (25c17c4b55de)",
    since="6.13",
    sizes=Sizes.BUDDY,
    pages=2,
)
def tagged_page(live: Live) -> None:
    for shared, of_a_file in ((False, False), (True, False), (False, True), (True, True)):
        with live.about(f"shared {shared}, of a file {of_a_file}"):
            actor = _checked(live)
            if of_a_file:
                memory = new_memfd(live, actor).map(1, shared=shared, prot=READ_WRITE | _PROT_MTE)
            else:
                memory = live.map(1, actor, shared=shared, prot=READ_WRITE | _PROT_MTE)
            _expect_tags(live, memory, shared=shared)
            actor.end()
            live.expect_pool(nr=2, free=2)


@INTERFACES.case(
    "a huge page has tags where it is mapped with PROT_MTE, all 0 at first, and a child has them, too",
    f"{TAGS}; arch/arm64/kernel/mte.c mte_sync_tags(); mm/huge_memory.c copy_huge_pmd(), do_huge_pmd_wp_page()",
    since="5.10",
    sizes=Sizes.ONCE,
)
def tagged_huge_page(live: Live) -> None:
    memory = huge_pages(live)
    _need_tags(live, memory.actor)
    memory.protect(READ_WRITE | _PROT_MTE)
    _expect_tags(live, memory, shared=False)


def _checked(live: Live) -> Actor:
    actor = live.actor()
    _need_tags(live, actor)
    return actor


def _need_tags(live: Live, actor: Actor) -> None:
    """Have the tags of pointers of ``actor`` checked. Raises CannotRun where the processor has none."""
    if "mte" not in read_cpu(live.host).features:
        raise CannotRun("this processor has no tagged memory (MTE of arm64)")
    actor.call("prctl", _PR_SET_TAGGED_ADDR_CTRL, _TAGGED_ADDR_ENABLE | _TCF_SYNC, 0, 0, 0)


def _expect_tags(live: Live, memory: Memory, *, shared: bool) -> None:
    """Expect a page whose tags are 0 to be tagged, in its first bytes, for its owner, and for a child."""
    actor, last = memory.actor, memory.address + memory.length - _TAGGED_BYTES
    memory.fill()
    live.expect("mt in VmFlags", True, "mt" in memory.smaps().flags)
    for place in (memory.address, last):
        _expect_refused(live, actor, place | _TAG << _TAG_SHIFT)
        actor.tag(place, _TAGGED_BYTES, _TAG)
        _expect_refused(live, actor, place)
    child = actor.fork()
    for one in (actor, child):
        for place in (memory.address, last):
            tagged = place | _TAG << _TAG_SHIFT
            live.expect("word of tagged memory", 1 + place - memory.address, one.read(tagged))
            _expect_refused(live, one, place)
    # a copy has the tags, too
    child.write(memory.address | _TAG << _TAG_SHIFT, 77)
    for place in (memory.address, last):
        _expect_refused(live, child, place)
    found = actor.read(memory.address | _TAG << _TAG_SHIFT)
    live.expect("first word of the parent", 77 if shared else 1, found)
    between = memory.address + _TAGGED_BYTES
    live.expect("words that changed", 0, memory.wrong(_TAGGED_BYTES, memory.length - 2 * _TAGGED_BYTES))
    _expect_refused(live, actor, between | _TAG << _TAG_SHIFT)
    child.end()


def _expect_refused(live: Live, actor: Actor, pointer: int) -> None:
    try:
        actor.read(pointer)
    except Fault as fault:
        live.expect("signal and code", (signal.SIGSEGV, _SEGV_MTESERR), (fault.signal, fault.code))
    else:
        live.expect("signal and code", (signal.SIGSEGV, _SEGV_MTESERR), None)


@INTERFACES.case(
    "kpageflags shows hugetlb pages as huge, and no transparent huge page nor base page, of which it shows the first as"
    " transparent",
    "Documentation/admin-guide/mm/pagemap.rst HUGE, THP; fs/proc/page.c stable_page_flags()",
    pages=1,
)
def flags_of_huge_pages(live: Live) -> None:
    # khugepaged leaves what is advised against
    memory, transparent, ordinary = live.map(1), huge_pages(live), advised(live, 1, MADV_NOHUGEPAGE)
    memory.touch()
    ordinary.fill()
    for one, expected in ((memory, HUGE), (transparent, TRANSPARENT), (ordinary, 0)):
        places = (one.address, one.address + live.base_page, one.address + one.size - live.base_page)
        frames = [entry & FRAME for entry in one.pagemap(places)]
        found = [flags & (HUGE | TRANSPARENT) for flags in kpageflags(live, one.actor, frames)]
        live.expect("HUGE and THP of the first base page, the second and the last one", [expected] * 3, found)


@INTERFACES.case(COUNTED, COUNT_DOC, pages=1)
def count_of_mappings(live: Live) -> None:
    for shared in (False, True):
        with live.about(f"shared {shared}"):
            memory = live.map(1, shared=shared)
            frames = _expect_counted(live, memory, live.actor(), fork=_fork if shared else partial(forked, live))
            live.expect("mappings with nobody", [0] * len(frames), kpagecount(live, live.actor(), frames))
            live.expect_pool(nr=1, free=1)


@INTERFACES.case(COUNTED, COUNT_DOC, sizes=Sizes.ONCE)
def count_of_mappings_of_a_huge_page(live: Live) -> None:
    _expect_counted(live, huge_pages(live), live.actor(), fork=_fork)


def _fork(memory: Memory) -> Memory:
    return memory.fork()


def _expect_counted(live: Live, memory: Memory, reader: Actor, fork: Callable[[Memory], Memory]) -> list[int]:
    """Expect ``memory``, a page, to be counted as its owner touches and unmaps it and children come and go.

    Returned are the frames that were looked at, which nobody has mapped any more unless they are for anybody.
    """
    memory.touch(value=5)
    places = memory.address, memory.address + live.base_page, memory.at(1) - live.base_page
    frames = [entry & FRAME for entry in memory.pagemap(places)]

    def expect_count(who: str, count: int) -> None:
        live.expect(f"mappings with {who}", [count] * len(frames), kpagecount(live, reader, frames))

    expect_count("its owner", 1)
    children = [fork(memory), fork(memory)]
    for child in children:
        # page tables of shared pages are not copied, and filled where a child looks
        live.expect("what a child reads", 5, child.read())
    expect_count("two children", 3)
    children[0].actor.end()
    expect_count("one child", 2)
    memory.unmap()
    expect_count("the child alone", 1)
    children[1].actor.end()
    return frames


@INTERFACES.case(
    "kpagecgroup shows of each part of a page, huge or not, shared or not, the group of the process that touched it"
    " first, wherever that process goes, who else has the page, and where it moves; of a copy that of who wrote; and"
    " the closest group above that is there where that group is gone, and the one above it, too",
    GROUP_DOC,
    since="4.5",
    sizes=Sizes.ONCE,
)
def group_that_pays(live: Live) -> None:
    allow_on_advice(live)
    let_only_pmd_inherit(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise")
    outer = new_group(live, "memory", Version.TWO)
    for kind in KINDS:
        with live.about(f"shared {kind.shared}, huge {kind.huge}"):
            compact_if_short(live, pmd_size(live), 2)
            expect_groups_to_pay(live, kind, outer)


@INTERFACES.case(
    "kpagecgroup shows of each part of a hugetlb page that no group is charged for it, unless groups are told to be",
    f"{GROUP_DOC}; Documentation/admin-guide/cgroup-v2.rst memory_hugetlb_accounting",
    pages=1,
)
def no_group_pays(live: Live) -> None:
    if any("memory_hugetlb_accounting" in mount.options.split(",") for mount in read_mounts(live.host)):
        raise CannotRun("groups are charged for hugetlb pages: memory_hugetlb_accounting")
    for shared in (False, True):
        memory = live.map(1, shared=shared)
        memory.fill()
        expect_group(live, memory, None, huge=True)
        memory.unmap()
        live.expect_pool(nr=1, free=1)


@INTERFACES.case(
    "a sealed mapping can be neither unmapped, moved, protected nor mapped over: EPERM; its pages go with the process",
    "Documentation/userspace-api/mseal.rst; mm/mseal.c",
    since="6.10",
    pages=2,
)
def sealed_mapping(live: Live) -> None:
    for shared in (False, True):
        memory = live.map(1, shared=shared)
        other = live.map(1, memory.actor, noreserve=True)
        memory.fill()
        memory.actor.call("mseal", memory.address, memory.length, 0)
        live.expect_errno(errno.EPERM, memory.unmap)
        live.expect_errno(errno.EPERM, memory.protect, mmap.PROT_READ)
        live.expect_errno(errno.EPERM, memory.moved_to, other.address)
        live.expect_errno(errno.EPERM, live.map, 1, memory.actor, at=memory.address, flags=MAP_FIXED)
        memory.fill(2)
        memory.expect_filled(2)
        live.expect_pool(nr=2, free=1)
        memory.actor.end()
        live.expect_pool(nr=2, free=2)


class OtherInterfaces(LiveTest):
    def test_other_interfaces(self) -> None:
        self.run_area(INTERFACES)
