"""Copy on write when pages are short: who made the mapping is safe, who inherited it is not."""

import re
import signal

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.hugetlb_files import new_memfd, open_again
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.khugepaged_sleep import shows_threads
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import value_or_signal
from hugepage_qa.kernel.uapi import MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.actor_link import ActorGone
from hugepage_qa.process.process_table import split_stat, state_and_cpu_seconds

COPY_ON_WRITE = Area("reservation/copy-on-write")
OWNER = "mm/hugetlb.c hugetlb_wp(), unmap_ref_private()"
# include/uapi/linux/time.h
_ITIMER_REAL = 0
_CHILD_SECONDS = 3
_LOST = re.compile(r"\bPID (\d+) killed due to inadequate hugepage pool$")
#: more than DEFAULT_RATELIMIT_INTERVAL of include/linux/ratelimit_types.h, in which there are ten such lines
_TELLS_AGAIN_SECONDS = 6
INHERITED = "mm/hugetlb.c hugetlb_dup_vma_private(), alloc_hugetlb_folio()"


@COPY_ON_WRITE.case(
    "the parent that writes when no page is free keeps its page, and the child gets SIGBUS, also when there are pages"
    " again: it gets none that lacks what was in its own",
    OWNER,
    pages=2,
)
def parent_writes_without_a_page(live: Live) -> None:
    # the memory for another one is there
    live.set_nr(1)
    memory = live.map(1)
    memory.fill(1)
    child = forked(live, memory)
    child.expect_filled(1)
    live.expect_pool(nr=1, free=0)
    memory.touch(value=2)
    live.expect("what the parent wrote", 2, memory.read())
    for free in (0, 1):
        live.reserve(1 + free)
        live.expect_signal(signal.SIGBUS, child.read)
        live.expect_signal(signal.SIGBUS, child.touch)
        live.expect_pool(nr=1 + free, free=free)
    live.set_nr(1)
    child.actor.end()
    live.expect("what the parent wrote", 2, memory.read())
    live.expect_pool(nr=1, free=0)


@COPY_ON_WRITE.case(
    "each access to a page that the parent took back is told in the kernel log, with who died of it, a child and its"
    " child; that of who finds no page for another reason is not",
    "mm/hugetlb.c hugetlb_no_page()",
    pages=1,
)
def lost_page_is_told(live: Live) -> None:
    if not shows_threads(live):
        raise CannotRun("processes have other numbers in the kernel log than in this PID namespace")
    memory = live.map(1)
    memory.touch(value=1)
    child = forked(live, memory)
    grandchild = forked(live, child)
    thief = live.map(1, noreserve=True)
    memory.touch(value=2)
    accesses = (child.read, grandchild.touch, thief.touch, thief.read, child.touch)
    expected = [child.actor.pid, grandchild.actor.pid, child.actor.pid]
    told = list[int]()
    # so many other cases may have had the kernel tell that it waits before it tells more
    for wait in (0, _TELLS_AGAIN_SECONDS):
        live.host.pause(wait)
        live.host.new_kernel_log()
        for access in accesses:
            live.expect_signal(signal.SIGBUS, access)
        told = [int(found[1]) for found in map(_LOST.search, live.host.new_kernel_log()) if found]
        if told == expected:
            break
    live.expect("processes that the kernel log tells of", expected, told)
    live.expect("what the parent wrote", 2, memory.read())
    live.expect_pool(nr=1, free=0)


@COPY_ON_WRITE.case(
    "the parent that has moved its page keeps it when no page is free, too, and the child gets SIGBUS",
    f"{OWNER}, vma_filebacked_address()",
    since="5.16",
    pages=1,
)
def moved_parent_writes_without_a_page(live: Live) -> None:
    if live.host.read("sys/devices/system/cpu/online") in (None, "0\n"):
        raise CannotRun("a kernel that is wrong here would leave nothing of its one CPU to others")
    memory = live.map(1)
    memory.touch(value=1)
    child = forked(live, memory)
    place = live.map(1, memory.actor, noreserve=True)
    flags = MREMAP_MAYMOVE | MREMAP_FIXED
    # a kernel that is wrong comes back from the write when the child has ended, and no signal ends it before
    before = _stat(live, memory.actor)[1]
    _end_after(live, child.actor, _CHILD_SECONDS)
    memory.actor.call("mremap", memory.address, live.size, live.size, flags, place.address)
    place.touch(value=2)
    # nobody has waited for it where its parent is still there
    if has_ended := _stat(live, child.actor)[0] in ("", "Z"):
        # to clear a gigantic page takes a second and more
        used = _stat(live, memory.actor)[1] - before
        if used < _CHILD_SECONDS / 2:
            raise CannotRun(f"the machine is too slow: what has {_CHILD_SECONDS} s was not done by then")
    live.expect("the child ended before its parent could write", False, has_ended, {Quirk.COPY_NEVER_ENDS: True})
    live.expect("what the parent wrote", 2, place.read())
    try:
        _end_after(live, child.actor, 0)
    except ActorGone as gone:
        raise CannotRun("the machine is too slow: the time of the child was over before it was looked at") from gone
    live.expect_signal(signal.SIGBUS, child.read)
    live.expect_pool(nr=1, free=0)


def _end_after(live: Live, actor: Actor, seconds: int) -> None:
    """Have SIGALRM end ``actor`` after ``seconds``, or with 0 no longer (setitimer(2))."""
    actor.call("setitimer", _ITIMER_REAL, live.host.uapi.pack("4q", 0, 0, seconds, 0), 0)


@COPY_ON_WRITE.case("every child loses the page that its parent needs, for good", OWNER, pages=2)
def parent_writes_among_children(live: Live) -> None:
    live.set_nr(1)
    memory = live.map(1)
    memory.touch()
    children = [forked(live, memory) for _number in range(3)]
    grandchild = forked(live, children[0])
    memory.touch(value=2)
    for heir in (*children, grandchild):
        live.expect_signal(signal.SIGBUS, heir.read)
    live.expect("what the parent wrote", 2, memory.read())
    live.expect_pool(nr=1, free=0)
    live.reserve(2)
    for heir in (grandchild, *children):
        live.expect_signal(signal.SIGBUS, heir.read)
    live.expect_pool(nr=2, free=1)


@COPY_ON_WRITE.case(
    "who is forked from a child that lost its page to its parent has lost it, too, and so has a child of that: SIGBUS,"
    " also when there are pages again, and no page without what was in the old one",
    f"{OWNER}, __unmap_hugepage_range() HPAGE_RESV_UNMAPPED, hugetlb_dup_vma_private()",
    pages=3,
)
def heirs_of_who_lost_a_page(live: Live) -> None:
    live.set_nr(1)
    memory = live.map(1)
    memory.fill(7)
    heirs = [forked(live, memory)]
    memory.touch(value=8)
    live.reserve(3)
    for _generation in range(2):
        heirs.append(heirs[-1].fork())
    for generation, heir in enumerate(heirs):
        with live.about(f"forked {generation} times from who lost the page"):
            known = {Quirk.GRANDCHILD_READS_ZEROES: 0} if generation else None
            live.expect("what is read", "SIGBUS", value_or_signal(heir.read), known)
            live.expect_signal(signal.SIGBUS, heir.touch)
    live.expect("what the parent wrote", 8, memory.read())
    live.expect_pool(nr=3, free=2)


@COPY_ON_WRITE.case(
    "the parent that writes when no page is free takes it from none but those who have the same page: a child that has"
    " written before keeps its own, and so do those who map the file, with what they reserved",
    f"{OWNER}, __unmap_hugepage_range()",
    pages=4,
)
def parent_takes_no_other_page(live: Live) -> None:
    file = new_memfd(live)
    shared = file.map(1)
    shared.touch(value=1)
    shared.unmap()
    memory = file.map(1, shared=False)
    memory.touch(value=2)
    wrote, reads = forked(live, memory), forked(live, memory)
    wrote.touch(value=3)
    again, owner = (open_again(live, file).map(1, shared=each) for each in (True, False))
    live.expect("the page of the file", 1, again.read())
    live.expect_pool(nr=4, free=1, resv=1)
    memory.touch(value=4)
    live.expect_signal(signal.SIGBUS, reads.read)
    live.expect("what the others read", (4, 3, 1), (memory.read(), wrote.read(), again.read()))
    live.expect_pool(nr=4, free=1, resv=1)
    live.expect("what the owner of the reservation reads", 1, owner.read())
    owner.touch(value=5)
    wrote.touch(value=6)
    found = tuple(each.read() for each in (owner, wrote, memory, again))
    live.expect("what each has", (5, 6, 4, 1), found)
    live.expect_pool(nr=4, free=0)
    wrote.actor.end()
    live.expect_pool(nr=4, free=1)


@COPY_ON_WRITE.case(
    "the child that writes when no page is free gets SIGBUS, and the page stays as it was", OWNER, pages=1
)
def child_writes_without_a_page(live: Live) -> None:
    memory = live.map(1)
    memory.touch(value=1)
    child = forked(live, memory)
    live.expect_signal(signal.SIGBUS, child.touch, 0, 2)
    live.expect("what both read", (1, 1), (memory.read(), child.read()))
    live.expect_pool(nr=1, free=0)


@COPY_ON_WRITE.case("after the child has gone, its parent writes without a new page", OWNER, pages=1)
def no_copy_for_the_last_one(live: Live) -> None:
    memory = live.map(1)
    memory.touch(value=1)
    forked(live, memory).actor.end()
    memory.touch(value=2)
    live.expect("what the parent wrote", 2, memory.read())
    live.expect_pool(nr=1, free=0)


@COPY_ON_WRITE.case("after its parent has gone, the child writes without a new page", OWNER, pages=1)
def no_copy_for_the_last_child(live: Live) -> None:
    memory = live.map(1)
    memory.touch(value=1)
    child = forked(live, memory)
    memory.actor.exit()
    child.touch(value=2)
    live.expect("what the child wrote", 2, child.read())
    live.expect_pool(nr=1, free=0, known={Quirk.UNMAP_RESERVES_PAGE_IN_USE: {"resv": -1}})


@COPY_ON_WRITE.case("a child does not inherit the reservations of its parent", INHERITED, pages=2)
def reservations_are_not_inherited(live: Live) -> None:
    memory = live.map(2)
    memory.touch(0)
    child = forked(live, memory)
    live.expect_pool(nr=2, free=1, resv=1)
    live.expect_signal(signal.SIGBUS, child.touch, 1)
    live.expect_signal(signal.SIGBUS, child.touch, 0)
    live.expect_pool(nr=2, free=1, resv=1)
    memory.touch(1, 2)
    live.expect_pool(nr=2, free=0)
    live.expect("what the parent wrote", 2, memory.read(1))


@COPY_ON_WRITE.case("a parent copies without a page that it has reserved for another address", OWNER, pages=2)
def copy_spares_the_reservations(live: Live) -> None:
    memory = live.map(2)
    memory.touch(0, 1)
    child = forked(live, memory)
    live.expect_pool(nr=2, free=1, resv=1)
    memory.touch(0, 2)
    live.expect_pool(nr=2, free=1, resv=1)
    live.expect_signal(signal.SIGBUS, child.read, 0)
    memory.touch(1, 3)
    live.expect("what the parent wrote", (2, 3), (memory.read(0), memory.read(1)))
    live.expect_pool(nr=2, free=0)


@COPY_ON_WRITE.case("a child that ends gives back what it took, and no reservation of its parent", INHERITED, pages=3)
def child_ends(live: Live) -> None:
    memory = live.map(2)
    memory.touch(0, 1)
    child = forked(live, memory)
    child.touch(0, 2)
    live.expect_pool(nr=3, free=1, resv=1)
    child.actor.end()
    live.expect_pool(nr=3, free=2, resv=1)
    memory.touch(1)
    live.expect_pool(nr=3, free=1)


@COPY_ON_WRITE.case(
    "a parent that ends takes its reservations along, and leaves the child its pages", INHERITED, pages=2
)
def parent_ends(live: Live) -> None:
    memory = live.map(2)
    memory.touch(0, 1)
    child = forked(live, memory)
    live.expect_pool(nr=2, free=1, resv=1)
    memory.actor.exit()
    live.expect_pool(nr=2, free=1, known={Quirk.UNMAP_RESERVES_PAGE_IN_USE: {"resv": -1}})
    live.expect("what the child reads", 1, child.read(0))
    child.touch(1, 2)
    live.expect_pool(nr=2, free=0)
    child.actor.end()
    live.expect_pool(nr=2, free=2)


@COPY_ON_WRITE.case("a private page of a file is copied from the reservation of its mapping", OWNER, pages=2)
def copy_of_a_page_of_a_file(live: Live) -> None:
    file = new_memfd(live)
    shared = file.map(1)
    shared.touch(value=1)
    private = file.map(1, shared=False)
    live.expect("the page of the file", 1, private.read())
    thief = live.map(1, noreserve=True)
    live.expect_signal(signal.SIGBUS, thief.touch)
    private.touch(value=2)
    live.expect("the page of the file and the copy", (1, 2), (shared.read(), private.read()))
    live.expect_pool(nr=2, free=0)


@COPY_ON_WRITE.case(
    "a private write leaves the file as it was, also where no other mapping has the page, and one that was read first;"
    " what is written to the file then leaves the copy as it was",
    "mmap(2) MAP_PRIVATE; mm/hugetlb.c hugetlb_wp(), hugetlb_no_page()",
    pages=3,
)
def private_write_leaves_the_file(live: Live) -> None:
    # who writes first and who has read before get the page in different ways
    for is_read_before in (False, True):
        file = new_memfd(live)
        shared = file.map(2)
        shared.fill(1)
        shared.unmap()
        private = file.map(1, shared=False)
        live.expect_pool(nr=3, free=1, resv=1)
        if is_read_before:
            private.expect_filled(1)
            live.expect_pool(nr=3, free=1, resv=1)
        private.fill(2)
        live.expect_pool(nr=3, free=0)
        again = file.map(2)
        again.expect_filled(1)
        private.expect_filled(2)
        again.fill(3)
        private.expect_filled(2)
        private.unmap()
        live.expect_pool(nr=3, free=1)
        again.expect_filled(3)
        file.actor.end()
        live.expect_pool(nr=3, free=3)


@COPY_ON_WRITE.case(
    "what is written privately to a hole of a file stays out of the file", "mmap(2) MAP_PRIVATE; mm/hugetlb.c", pages=2
)
def private_write_to_a_hole(live: Live) -> None:
    file = new_memfd(live, pages=1)
    private = file.map(1, shared=False)
    private.expect_zero(0)
    private.fill(2)
    live.expect_pool(nr=2, free=1)
    live.expect("bytes that the file occupies", 0, file.blocks)
    file.map(1).expect_zero(0)
    private.expect_filled(2)
    live.expect_pool(nr=2, free=0)


def _stat(live: Live, actor: Actor) -> tuple[str, float]:
    """Return the state of a process and the CPU time in seconds that it has had; nothing of one that is gone."""
    text = ObservedTree(live.host).read(f"proc/{actor.pid}/stat")
    return state_and_cpu_seconds(split_stat(text) if text else ())


class CopyOnWrite(LiveTest):
    def test_copy_on_write(self) -> None:
        self.run_area(COPY_ON_WRITE)
