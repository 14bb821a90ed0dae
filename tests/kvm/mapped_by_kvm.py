"""Which pages KVM maps for a guest, as it counts them itself, and what is in them when it splits and joins them."""

import errno

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import compact_if_short, expect_no_shortage
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.kvm_guest import HALT, PARAMETERS, START, KvmGuest, largest_page
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import advised, set_policy
from hugepage_qa.kernel.kvm import PAGES, SPLITS, read_kvm_directory
from hugepage_qa.kernel.uapi import MADV_DONTNEED
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.kvm_mapping import (
    GivenMemory,
    mapped_after_execution,
    mapped_by_kvm,
    mapped_with_dirty_log,
    split_for_execution,
)
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused
from hugepage_qa.sizes import KIB, MIB

KVM = Area("kvm/mapped-by-kvm")

#: since then the pages are counted by their sizes (71f51d2c3253)
SINCE = "5.15"
MAPS = "arch/x86/kvm/x86.c kvm_alloc_memslot_metadata(); arch/x86/kvm/mmu/mmu.c kvm_mmu_max_mapping_level()"
LOGS = "Documentation/virt/kvm/api.rst KVM_GET_DIRTY_LOG; arch/x86/kvm/x86.c kvm_mmu_slot_apply_flags()"
NOTIFIES = "virt/kvm/kvm_main.c kvm_mmu_notifier_invalidate_range_start()"
EXECUTES = "Documentation/admin-guide/hw-vuln/multihit.rst nx_huge_pages; arch/x86/kvm/mmu/mmu.c"
STATISTICS = "Documentation/virt/kvm/api.rst KVM_GET_STATS_FD; virt/kvm/kvm_main.c kvm_create_vm_debugfs()"

_PAGES = 2
_STEP_IN_GIGANTIC = 256 * KIB
#: the smallest page that is split into base pages
_WITH_BASE_PAGES = 2 * MIB
#: of the transparent ones
_THP_PAGES = 4


def with_memory(live: Live, pages: int = _PAGES) -> tuple[KvmGuest, Memory]:
    """Return a guest without memory, and pages of the pool in its process."""
    guest = KvmGuest(live)
    return guest, live.map(pages, guest.actor)


def step_within(live: Live) -> int:
    """Return how many bytes what a guest touches is apart where KVM maps it in smaller pages.

    Each of these is a fault, and an emulated processor takes a millisecond for one.
    """
    return _STEP_IN_GIGANTIC if live.is_gigantic else live.base_page


def expect_whole(live: Live, guest: KvmGuest, given: GivenMemory) -> None:
    """Expect KVM to map pages as large as can be when the guest has touched all of its memory."""
    guest.write(given)
    guest.expect_mapped(mapped_by_kvm(given, largest_page(live)))


def with_memory_mapped_whole(live: Live) -> tuple[KvmGuest, Memory, GivenMemory]:
    """Return a guest that has touched all of its memory, which KVM has mapped whole, and the pages that it is."""
    guest, memory = with_memory(live)
    given = guest.give(memory)
    expect_whole(live, guest, given)
    return guest, memory, given


def expect_whole_again(live: Live, guest: KvmGuest, given: GivenMemory, memory: Memory) -> None:
    """Expect the same once more, the process to find what the guest wrote, and the pool to have no other page."""
    expect_whole(live, guest, given)
    guest.expect_written(given, memory)
    live.expect_pool(nr=_PAGES, free=0)


@KVM.case("each huge page is mapped whole, and guest and process see what the other writes", MAPS, pages=2, since=SINCE)
def whole_pages(live: Live) -> None:
    guest, memory = with_memory(live)
    memory.actor.fill(memory.address, memory.length, live.base_page, START)
    given = guest.give(memory)
    live.expect("words of the process that the guest does not find", 0, guest.wrong(given))
    guest.expect_mapped(mapped_by_kvm(given, largest_page(live)))
    expect_whole_again(live, guest, given, memory)


@KVM.case(
    "where pages of guest and process begin at different places, none of them is mapped whole",
    MAPS,
    pages=2,
    since=SINCE,
)
def shifted(live: Live) -> None:
    guest, memory = with_memory(live)
    # by each smaller size; of a gigantic page there would be too many base pages
    for shift in sorted(size for size in PAGES.values() if step_within(live) <= size < live.size):
        given = guest.give(memory, at=START + shift, length=memory.length - shift)
        expect_whole(live, guest, given)
        guest.expect_written(given, memory)
        guest.take(given)


@KVM.case("of memory that begins and ends within pages, the whole ones are mapped whole", MAPS, pages=3, since=SINCE)
def parts_at_both_ends(live: Live) -> None:
    guest, memory = with_memory(live, 3)
    part = live.size // 2
    # the last GiB below 4 GiB is for devices
    given = guest.give(memory, at=START + part, offset=part, length=min(memory.length - 2 * part, 3 * START - part))
    expect_whole(live, guest, given)
    guest.expect_written(given, memory)


def dirty_log(live: Live, *, eagerly: bool) -> None:
    """Expect each page that the guest writes, and no other, in the log, and huge pages again without it."""
    switch = f"{PARAMETERS}/eager_page_split"
    guest, memory = with_memory(live)
    live.set_knob_if_there(switch, "Y" if eagerly else "N")
    given = guest.give(memory)
    expect_whole(live, guest, given)
    guest.log_dirty(given)
    live.expect("how many are in the log before the guest writes", 0, len(guest.dirty_pages(given)))
    # the first and the last base page of each huge page, and one in the middle
    page, inner = live.base_page, live.size // 2 + live.base_page
    written = set()
    for start in range(0, memory.length, live.size):
        for at in (start, start + inner, start + live.size - page):
            guest.write(given, at, page)
            written.add(at // page)
    found = guest.dirty_pages(given)
    live.expect("pages that were written and are not in the log", [], sorted(written - found))
    live.expect("how many are in the log that were not written", 0, len(found - written))
    live.expect("how many are in the log when it is read again", 0, len(guest.dirty_pages(given)))
    # what is mapped to be looked at, may be written at once where the process may write it, and counts as written then
    first = guest.wrong(given, step=live.size)
    live.expect("words of the guest that it does not find", 0, first)
    step = step_within(live)
    guest.write(given, step=step)
    if step == page:
        guest.expect_mapped(mapped_with_dirty_log(given))
    live.expect("larger pages that are mapped", 0, sum(guest.mapped[size] for size in PAGES.values() if size > page))
    found = guest.dirty_pages(given)
    live.expect("pages that are not in the log", [], sorted({*range(0, given.length // page, step // page)} - found))
    guest.log_dirty(given, on=False)
    expect_whole_again(live, guest, given, memory)


@KVM.case(
    "the log of dirty pages has each base page that is written, and huge pages are back after it",
    LOGS,
    pages=2,
    since=SINCE,
)
def logged_and_back(live: Live) -> None:
    dirty_log(live, eagerly=True)


@KVM.case(
    "the same where huge pages are split as they are written (kvm.eager_page_split=N)", LOGS, pages=2, since="5.17"
)
def logged_as_they_are_written(live: Live) -> None:
    dirty_log(live, eagerly=False)


@KVM.case(
    "a page that the process gives back is the guest's no more, who gets a zeroed one", NOTIFIES, pages=2, since=SINCE
)
def page_given_back(live: Live) -> None:
    guest = KvmGuest(live)
    file = new_memfd(live, guest.actor, pages=2)
    memory = file.map(2)
    given = guest.give(memory)
    expect_whole(live, guest, given)
    file.punch(1, first=1)
    live.expect_pool(nr=2, free=1)
    rest = GivenMemory(given.guest, given.host, live.size, live.size)
    guest.expect_mapped(mapped_by_kvm(rest, largest_page(live)))
    words = live.size // live.base_page
    live.expect("words that the guest still finds there", 0, words - guest.wrong(given, live.size, live.size))
    live.expect("words that it does not find in the other page", 0, guest.wrong(given, 0, live.size))
    expect_whole_again(live, guest, given, memory)


@KVM.case(
    "what the process unmaps is mapped for the guest no more, and is refused to it", NOTIFIES, pages=2, since=SINCE
)
def unmapped(live: Live) -> None:
    guest, memory, given = with_memory_mapped_whole(live)
    memory.unmap()
    guest.expect_mapped({})
    live.expect_pool(nr=2, free=2)
    live.expect_errno(errno.EFAULT, guest.write, given)


@KVM.case("memory that is taken from the guest is mapped for it no more", MAPS, pages=2, since=SINCE)
def taken(live: Live) -> None:
    guest, memory, given = with_memory_mapped_whole(live)
    guest.take(given)
    guest.expect_mapped({})
    live.expect_pool(nr=2, free=0)
    memory.actor.fill(memory.address, memory.length, live.base_page, START)
    live.expect("words that the guest finds in other memory", 0, guest.wrong(guest.give(memory)))


@KVM.case(
    "what a guest writes after its process forked is its own, and the child keeps what was there",
    NOTIFIES,
    pages=4,
    since=SINCE,
)
def written_after_fork(live: Live) -> None:
    guest, memory = with_memory(live)
    memory.fill()
    given = guest.give(memory)
    live.expect("words that the guest finds", given.length // live.base_page, guest.wrong(given))
    theirs = forked(live, memory, _PAGES)
    expect_whole(live, guest, given)
    guest.expect_written(given, memory)
    theirs.expect_filled()
    live.expect_pool(nr=4, free=0)
    theirs.actor.end()
    live.expect_pool(nr=4, free=2)


@KVM.case(
    "with nx_huge_pages a page is split when the guest executes what is in it, and is whole again later",
    EXECUTES,
    pages=2,
    since="5.16",
)
def executed(live: Live) -> None:
    guest, memory = with_memory(live)
    try:
        live.set_knob(f"{PARAMETERS}/nx_huge_pages", "force")
    except Refused as refusal:
        raise CannotRun("nx_huge_pages is never: it cannot be set until a reboot") from refusal
    given = guest.give(memory)
    expect_whole(live, guest, given)
    live.expect(SPLITS, 0, guest.splits)
    code = memory.length - live.base_page
    memory.actor.write(memory.address + code, HALT)
    guest.execute(given.guest + code)
    # the page with the code stays as it is; 6.1 maps none of the others until it is touched, 7.3 all of them
    around = memory.length - _WITH_BASE_PAGES
    guest.write(given, 0, around, _WITH_BASE_PAGES)
    guest.write(given, around, _WITH_BASE_PAGES - live.base_page)
    guest.expect_mapped(mapped_after_execution(given, largest_page(live)))
    live.expect(SPLITS, split_for_execution(given, largest_page(live)), guest.splits)
    live.set_knob(f"{PARAMETERS}/nx_huge_pages_recovery_ratio", "1")
    live.set_knob(f"{PARAMETERS}/nx_huge_pages_recovery_period_ms", "100")
    live.host.wait_until(lambda: guest.splits == 0)
    live.expect(f"{SPLITS} later", 0, guest.splits)
    expect_whole(live, guest, given)
    guest.expect_written(given, memory)


@KVM.case(
    "transparent huge pages are mapped whole, those that are split are not, and those that are collapsed are",
    f"{NOTIFIES}; mm/khugepaged.c collapse_huge_page()",
    sizes=Sizes.ONCE,
    since="6.1",
)
def transparent(live: Live) -> None:
    size = pmd_size(live)
    set_policy(live, "madvise")
    compact_if_short(live, size, _THP_PAGES)
    expect_no_shortage(live, size, _THP_PAGES)
    guest = KvmGuest(live)
    memory = advised(live, _THP_PAGES, actor=guest.actor)
    memory.fill()
    memory.expect_huge()
    given = guest.give(memory)
    expect_whole(live, guest, given)
    # one base page of the last one: what is left of that cannot be huge
    memory.actor.call("madvise", memory.address + memory.length - live.base_page, live.base_page, MADV_DONTNEED)
    guest.write(given)
    whole = GivenMemory(given.guest, given.host, given.length - size, size)
    in_pieces = GivenMemory(whole.guest + whole.length, whole.host + whole.length, size, live.base_page)
    largest = largest_page(live)
    guest.expect_mapped({**mapped_by_kvm(whole, largest), **mapped_by_kvm(in_pieces, largest)})
    collapse_memory(live, memory)
    expect_whole(live, guest, given)
    guest.expect_written(given, memory)


@KVM.case(
    "KVM's own file and debugfs tell the same of a guest, and debugfs forgets it when it ends",
    STATISTICS,
    pages=2,
    since=SINCE,
)
def told_twice(live: Live) -> None:
    guest, memory = with_memory(live)
    expect_whole(live, guest, guest.give(memory))
    directory = guest.debugfs_directory
    if directory is None:
        raise CannotRun("debugfs cannot be read here")
    found = read_kvm_directory(ObservedTree(live.host), directory)
    told = guest.statistics()
    live.expect("what debugfs shows", {name: told[name] for name in (*PAGES, SPLITS)}, found)
    guest.actor.end()
    live.expect("what debugfs shows of a guest that has ended", [], live.host.names(directory))


class MappedByKvm(LiveTest):
    def test(self) -> None:
        self.run_area(KVM)
