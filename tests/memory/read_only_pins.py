"""Pages that are pinned, to be read alone or written: whose they are then, and who may write them."""

import errno
import mmap
import os
import signal
from collections.abc import Callable, Sequence
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.pinned_pages import open_for_direct_io
from hugepage_qa.cases.places import ordinary_memory
from hugepage_qa.cases.reached_from_outside import word_read_by
from hugepage_qa.cases.registered_memory import Registry
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import advised, base_pages, huge_pages, mapped_in_parts, set_policy, smaller_sizes
from hugepage_qa.cases.thp_shared_memory import expect_huge_page_for_words, let_only_pmd_inherit, mount_tmpfs
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

READ_ONLY_PINS = Area("memory/read-only-pins", sizes=Sizes.ONCE)

UNSHARE = "mm/gup.c FOLL_LONGTERM; mm/internal.h gup_must_unshare(); mm/memory.c do_wp_page()"
FILES = "mm/gup.c FOLL_LONGTERM, writable_file_mapping_allowed(), gup_fast_folio_allowed() (84209e87c696, a6e79df92e4a)"
READERS = "mm/process_vm_access.c process_vm_rw_single_vec(); mm/internal.h gup_must_unshare()"
OLD, NEW, NEWER = 7, 8, 9
#: what has base pages of memory pinned that its owner may only read, from an offset on, and tells what it read there
Reading = Callable[[Live, Memory, int], int]
#: forks the process of memory, and returns what its child has of it
Fork = Callable[[Live, Memory], Memory]


@READ_ONLY_PINS.case(
    "who has base pages, or huge pages of any size, mapped as a whole or in parts, pinned after a fork, to be read"
    " alone or written, has pages of its own from then on, and keeps them when it writes",
    f"{UNSHARE}, mm/huge_memory.c do_huge_pmd_wp_page()",
    since="5.19",
)
def anonymous_memory(live: Live) -> None:
    for make in (base_pages, huge_pages, mapped_in_parts):
        _expect_own_in_each_way(live, [make(live) for _way in range(4)])
        _expect_kept_without_child(live, [make(live) for _way in range(2)])
    sizes = smaller_sizes(live)
    for size, path in sizes[:1] + sizes[1:][-1:]:
        set_policy(live, "madvise", pmd="never")
        live.set_knob(f"{path}/enabled", "always")
        memories = [advised(live) for _way in range(4)]
        for memory in memories:
            memory.fill()
        with live.about(f"pages of {size >> 10} kB"):
            _expect_own_in_each_way(live, memories)


@READ_ONLY_PINS.case(
    "who has memory pinned that it has only read, base pages or a huge page, has pages of its own from then on, and"
    " keeps them when it writes",
    f"{UNSHARE}, mm/huge_memory.c do_huge_pmd_wp_page(); {FILES}",
    since="5.19",
)
def memory_that_was_only_read(live: Live) -> None:
    for enabled in ("never", "madvise"):
        set_policy(live, enabled)
        for written in (False, True):
            memory = advised(live)
            live.expect("what is read", 0, memory.read())
            with live.about(f"enabled={enabled}, written {written}"):
                _expect_kept(live, memory, written=written, value=0)
            memory.actor.end()


@READ_ONLY_PINS.case(
    "who has a hugetlb page pinned after a fork, to be read alone or written, has a page of its own from then on, and"
    " keeps it when it writes",
    f"{UNSHARE}, mm/hugetlb.c hugetlb_wp()",
    since="5.19",
    sizes=Sizes.EACH,
    pages=2,
)
def hugetlb_page(live: Live) -> None:
    for written in (False, True):
        for by_child in (False, True):
            memory = live.map(1)
            _expect_own(live, memory, forked, written=written, by_child=by_child)
            live.expect_pool(nr=2, free=0)
            memory.actor.end()
            live.expect_pool(nr=2, free=2)
    _expect_kept_without_child(live, [live.map(1) for _way in range(2)])
    live.expect_pool(nr=2, free=2)


@READ_ONLY_PINS.case(
    "who may only read a hugetlb page that parent and child have may not write it after it was read by"
    " process_vm_readv(2), its own or another's, wherever in it; allowed to, it writes a page of its own",
    f"mprotect(2); {READERS}; mm/hugetlb.c hugetlb_wp()",
    since="5.19",
    sizes=Sizes.EACH,
    pages=2,
)
def protected_hugetlb_page(live: Live) -> None:
    _expect_protected_page(live, (_read_by_itself, _read_by_another))


@READ_ONLY_PINS.case(
    "who may only read a hugetlb page that parent and child have may not write it after O_DIRECT has carried it to a"
    " file, whichever base page of it; allowed to, it writes a page of its own",
    "mprotect(2); open(2) O_DIRECT; mm/internal.h gup_must_unshare(); mm/hugetlb.c hugetlb_wp()",
    since="5.19",
    sizes=Sizes.EACH,
    pages=2,
)
def protected_hugetlb_page_to_a_disk(live: Live) -> None:
    _expect_protected_page(live, (_carried_to_a_file,))


@READ_ONLY_PINS.case(
    "who may only read a hugetlb page that parent and child have, or one of a file that is a private mapping's, may not"
    " write it after it was pinned to be read alone; allowed to, it writes a page of its own",
    f"mprotect(2); {UNSHARE}, mm/hugetlb.c hugetlb_wp(); drivers/infiniband/core/umem.c ib_umem_get()",
    since="6.2",  # it asked for pages to be written until then
    sizes=Sizes.EACH,
    pages=2,
)
def protected_hugetlb_page_pinned(live: Live) -> None:
    _expect_protected_page(live, (_registered,))
    file = new_memfd(live)
    shared = file.map(1)
    _write_at_places(live, shared, OLD)
    private = file.map(1, shared=False)
    live.expect("what is read of the file", OLD, private.read())
    with live.about("of a file"):
        _expect_protected(live, private, shared, _registered, 0)


@READ_ONLY_PINS.case(
    "who may only read base pages or a huge page, mapped as a whole or in parts, that parent and child have may not"
    " write them after they were read by process_vm_readv(2), its own or another's, wherever in it; allowed to, it"
    " writes pages of its own",
    f"mprotect(2); {READERS}; mm/huge_memory.c do_huge_pmd_wp_page(); mm/memory.c do_wp_page()",
    since="5.19",
)
def protected_anonymous_memory(live: Live) -> None:
    for make in (base_pages, huge_pages, mapped_in_parts):
        with live.about(make.__name__):
            for number, row in enumerate(product((_read_by_itself, _read_by_another), (False, True), (False, True))):
                _expect_protected_of_two(live, make(live), _forked, row, number)


@READ_ONLY_PINS.case(
    "a page of a file of hugetlbfs that is pinned is the file's for a shared mapping, and a copy for a private one",
    f"{FILES}; mm/hugetlb.c hugetlb_wp()",
    since="5.19",
    sizes=Sizes.EACH,
    pages=2,
)
def page_of_a_hugetlbfs(live: Live) -> None:
    for written in (False, True):
        file = new_memfd(live)
        shared = file.map(1)
        shared.touch(value=OLD)
        _expect_copy(live, shared, file.map(1, shared=False), written=written)
        live.expect_pool(nr=2, free=0)
        _expect_of_the_file(live, shared, written=written)
        file.actor.end()
        live.expect_pool(nr=2, free=2)


@READ_ONLY_PINS.case(
    "pages of a memfd and of a tmpfs, huge ones too, that are pinned are the file's for a shared mapping, copies for"
    " a private one",
    f"{FILES}; mm/shmem.c",
    since="5.19",
)
def pages_of_a_tmpfs(live: Live) -> None:
    let_only_pmd_inherit(live)
    actor = live.actor()
    point = mount_tmpfs(live, "always")
    for written in (False, True):
        files = (False, actor.call("memfd_create", "pinned", 0)), (True, live.open(actor, f"{point}/{written}"))
        for huge, file in files:
            with_blocks(live, pmd_size(live), 1)
            shared, private = _mappings(live, actor, file)
            if huge:
                expect_huge_page_for_words(live, actor, file)
            _expect_copy(live, shared, private, written=written)
            _expect_of_the_file(live, shared, written=written)


@READ_ONLY_PINS.case(
    "a page of a file on ext4 is the file's when it is pinned to be read by a shared mapping, refused with EFAULT to"
    " be written; by a private mapping it is a copy",
    FILES,
    since="6.5",
)
def page_on_ext4(live: Live) -> None:
    _expect_pinned_to_be_read_alone(live, "ext4")


@READ_ONLY_PINS.case(
    "a page of a file on XFS is the file's when it is pinned to be read by a shared mapping, refused with EFAULT to"
    " be written; by a private mapping it is a copy",
    FILES,
    since="6.5",
)
def page_on_xfs(live: Live) -> None:
    _expect_pinned_to_be_read_alone(live, "xfs")


@READ_ONLY_PINS.case(
    "a page of a file on btrfs is the file's when it is pinned to be read by a shared mapping, and refused with EFAULT"
    " to be written; by a private mapping it is a copy",
    FILES,
    since="6.5",
)
def page_on_btrfs(live: Live) -> None:
    _expect_pinned_to_be_read_alone(live, "btrfs")


def _expect_pinned_to_be_read_alone(live: Live, file_system: str) -> None:
    actor = live.actor()
    file = live.open(actor, live.host.disk(file_system), live.host.uapi.o_tmpfile | os.O_RDWR)
    shared, private = _mappings(live, actor, file)
    _expect_copy(live, shared, private, written=False)
    # a page of the file again
    private.advise(mmap.MADV_DONTNEED)
    _expect_copy(live, shared, private, written=True)
    with Registry(live, actor).registered(shared):
        live.expect("what is read of the page that is pinned", OLD, shared.read())
    with live.about("pinned to be written"):
        live.expect_errno(errno.EFAULT, _pin_to_write, live, shared)
    # a page that is mapped to be written is pinned without a look at its mapping
    shared.touch(value=NEW)
    with live.about("pinned to be written, mapped to be written"):
        live.expect_errno(errno.EFAULT, _pin_to_write, live, shared)


def _pin_to_write(live: Live, memory: Memory) -> None:
    with Registry(live, memory.actor).registered(memory, written=True):
        pass


def _mappings(live: Live, actor: Actor, file: int) -> tuple[Memory, Memory]:
    """Return a shared and a private mapping of the start of a file, which is written."""
    actor.call("ftruncate", file, pmd_size(live))
    actor.call("pwrite64", file, live.host.uapi.pack("Q", OLD), WORD, 0)
    size = live.base_page
    shared, private = (actor.mmap(size, READ_WRITE, kind, file) for kind in (mmap.MAP_SHARED, mmap.MAP_PRIVATE))
    return Memory(live, actor, shared, 1, size), Memory(live, actor, private, 1, size)


def _expect_own_in_each_way(live: Live, memories: list[Memory]) -> None:
    ways = [(written, by_child) for written in (False, True) for by_child in (False, True)]
    for memory, (written, by_child) in zip(memories, ways, strict=True):
        _expect_own(live, memory, _forked, written=written, by_child=by_child)
        memory.actor.end()


def _forked(_live: Live, memory: Memory) -> Memory:
    return memory.fork()


def _expect_own(live: Live, memory: Memory, fork: Fork, *, written: bool, by_child: bool) -> None:
    """Expect of memory that parent and child have that who has it pinned has a page of its own, and neither other."""
    memory.touch(value=OLD)
    child = fork(live, memory)
    owner, other = (child, memory) if by_child else (memory, child)
    with Registry(live, owner.actor).registered(owner, written=written):
        frames = owner.frames()
        live.expect("frames that both have", set(), frames & other.frames())
        other.touch(value=NEW)
        live.expect("what is read of the page that is pinned", OLD, owner.read())
        owner.touch(value=NEWER)
        live.expect("frames of the page that is pinned, when it is written", frames, owner.frames())
        live.expect("what both read", (NEWER, NEW), (owner.read(), other.read()))


def _expect_kept_without_child(live: Live, memories: list[Memory]) -> None:
    """Expect memory that a child had, which has ended, to be pinned as it is, to be read alone and to be written."""
    for memory, written in zip(memories, (False, True), strict=True):
        memory.touch(value=OLD)
        memory.actor.fork().end()
        with live.about("without the child"):
            _expect_kept(live, memory, written=written, value=OLD)
        memory.actor.end()


def _expect_kept(live: Live, memory: Memory, *, written: bool, value: int) -> None:
    """Expect the page that is pinned, of which the first word is ``value``, to stay when it is written."""
    with Registry(live, memory.actor).registered(memory, written=written):
        frames = memory.frames()
        live.expect("what is read of the page that is pinned", value, memory.read())
        memory.touch(value=NEWER)
        live.expect("frames of the page that is pinned, when it is written", frames, memory.frames())
        live.expect("what is read then", NEWER, memory.read())


def _expect_protected_page(live: Live, readings: Sequence[Reading]) -> None:
    rows = list(product(readings, (False, True), (False, True)))
    # a copy of a gigantic page takes seconds
    for number, row in enumerate(rows[1::5] if live.is_gigantic else rows):
        _expect_protected_of_two(live, live.map(1), forked, row, number)
        live.expect_pool(nr=2, free=2)


def _expect_protected_of_two(
    live: Live, memory: Memory, fork: Fork, row: tuple[Reading, bool, bool], number: int
) -> None:
    """Expect of memory that parent and child have that it stays protected, since before the fork or after it."""
    reading, by_child, before = row
    _write_at_places(live, memory, OLD)
    if before:
        memory.protect(mmap.PROT_READ)
    child = fork(live, memory)
    owner, other = (child, memory) if by_child else (memory, child)
    if before:
        other.protect(READ_WRITE)
    with live.about(f"{reading.__name__.strip('_')}, of the child {by_child}, protected before the fork {before}"):
        _expect_protected(live, owner, other, reading, number)
    memory.actor.end()


def _expect_protected(live: Live, owner: Memory, other: Memory, reading: Reading, number: int) -> None:
    """Expect who may only read memory not to write it after it was read, and who may again to write its own alone."""
    places = _places(live, owner)
    read = places[number % len(places)]
    owner.protect(mmap.PROT_READ)
    live.expect(f"what is read at {read}", OLD, reading(live, owner, read))
    for place in places:
        address = owner.address + place
        live.expect_signal(signal.SIGSEGV, owner.actor.write, address, NEWER, at=address)
    _write_at_places(live, other, NEW)
    live.expect("what both read", (OLD, NEW), _read_at_places(live, owner, other))
    owner.protect(READ_WRITE)
    _write_at_places(live, owner, NEWER)
    live.expect("what both read, when it was written", (NEWER, NEW), _read_at_places(live, owner, other))


def _places(live: Live, memory: Memory) -> tuple[int, ...]:
    """Return where base pages of a page begin: the first two, one in the middle, and the last."""
    return 0, live.base_page, memory.size // 2, memory.size - live.base_page


def _write_at_places(live: Live, memory: Memory, value: int) -> None:
    for place in _places(live, memory):
        memory.actor.write(memory.address + place, value)


def _read_at_places(live: Live, *memories: Memory) -> tuple[int | tuple[int, ...], ...]:
    """Return what is read of each memory: the one value that it has at all places, or those that it has."""
    each = [tuple(one.actor.read(one.address + place) for place in _places(live, one)) for one in memories]
    return tuple(found[0] if len(set(found)) == 1 else found for found in each)


def _read_by_itself(live: Live, memory: Memory, place: int) -> int:
    return word_read_by(live, memory.actor, memory, place)


def _read_by_another(live: Live, memory: Memory, place: int) -> int:
    reader = live.actor()
    found = word_read_by(live, reader, memory, place)
    reader.end()
    return found


def _carried_to_a_file(live: Live, memory: Memory, place: int) -> int:
    call, length = memory.actor.call, live.base_page
    file, page = open_for_direct_io(live, memory.actor), ordinary_memory(live, memory.actor, 1)
    live.expect("bytes written", length, call("pwrite64", file, memory.address + place, length, 0))
    live.expect("bytes read", length, call("pread64", file, page.address, length, 0))
    return page.read()


def _registered(live: Live, memory: Memory, place: int) -> int:
    with Registry(live, memory.actor).registered(memory):
        return memory.actor.read(memory.address + place)


def _expect_copy(live: Live, shared: Memory, private: Memory, *, written: bool) -> None:
    """Expect a private mapping of a file, of which the first word is OLD, to have a copy when it is pinned."""
    live.expect("what is read before", (OLD, OLD), (shared.read(), private.read()))
    with Registry(live, private.actor).registered(private, written=written):
        frames = private.frames()
        live.expect("frames that are the file's, too", set(), frames & shared.frames())
        private.touch(value=NEWER)
        live.expect("frames of the page that is pinned, when it is written", frames, private.frames())
        live.expect("what the file and the copy hold", (OLD, NEWER), (shared.read(), private.read()))


def _expect_of_the_file(live: Live, shared: Memory, *, written: bool) -> None:
    """Expect a shared mapping to have the page of the file when it is pinned, and after it was written."""
    with Registry(live, shared.actor).registered(shared, written=written):
        # from memory in which none is pinned for long it moves before
        frames = shared.frames()
        shared.touch(value=NEW)
        live.expect("frames of the page that is pinned", frames, shared.frames())
        # what is mapped anew is the file's
        shared.advise(mmap.MADV_DONTNEED)
        live.expect("what the file holds", NEW, shared.read())
        live.expect("frames of the page that the file has", frames, shared.frames())
    shared.touch(value=OLD)


class ReadOnlyPins(LiveTest):
    def test_read_only_pins(self) -> None:
        self.run_area(READ_ONLY_PINS)
