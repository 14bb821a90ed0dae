"""Memory of a process that others reach, as debuggers do: who sees what they write."""

import errno
import os
from collections.abc import Callable
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.places import ordinary_memory
from hugepage_qa.cases.reached_from_outside import read_of_another, write_from_outside, write_to_file
from hugepage_qa.cases.thp_policy import base_pages, huge_pages
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

WRITTEN_BY_OTHERS = Area("memory/written-by-others")
OLD, NEW = 7, 8
VM_WRITE = "process_vm_readv(2) process_vm_writev; fs/proc/base.c mem_rw()"

#: who writes, and whether it is to /proc/PID/mem: process_vm_writev(2) otherwise
_WAYS = tuple(product(("a third process", "its owner", "the other one"), (False, True)))


@WRITTEN_BY_OTHERS.case(
    "what others write into a child's page, wherever in it, is seen by the child alone, and of a shared page by both:"
    " by process_vm_writev(2) and /proc/PID/mem",
    f"{VM_WRITE}; fork(2); mm/hugetlb.c hugetlb_wp(), copy_hugetlb_page_range()",
    pages=4,
)
def others_write_after_a_fork(live: Live) -> None:
    source = live.map(1)
    for shared, by_file in product((False, True), (False, True)):
        memory = live.map(1, shared=shared)
        memory.fill(OLD)
        # a shared page is mapped for the child when it is reached
        child = memory.fork() if shared else forked(live, memory)
        places = 0, live.base_page, live.size - WORD
        for offset in places:
            _expect_others_to_reach(live, source, child, offset, by_file=by_file)
        if shared:
            found = [memory.actor.read(memory.address + offset) for offset in places]
            live.expect("what the parent reads", [NEW] * len(places), found)
        else:
            memory.expect_filled(OLD)
        live.expect_pool(nr=4, free=2 if shared else 1)
        memory.actor.end()
        live.expect_pool(nr=4, free=3)


def _expect_others_to_reach(live: Live, source: Memory, child: Memory, offset: int, *, by_file: bool) -> None:
    """Expect the owner of ``source`` to read a word of ``child``, which was filled with OLD, and to write NEW there."""
    place = source.address + offset
    local, remote = (live.host.uapi.pack("2Q", one.address + offset, WORD) for one in (source, child))
    # before it is written: the machine may forbid both
    live.expect("bytes read", WORD, read_of_another(live, source.actor, child.actor.pid, local, remote))
    live.expect(f"what was read at {offset}", OLD + offset, source.actor.read(place))
    source.actor.write(place, NEW)
    if by_file:
        written = write_to_file(live, source.actor, child, offset, live.host.uapi.pack("Q", NEW))
    else:
        written = source.actor.call("process_vm_writev", child.actor.pid, local, 1, remote, 1, 0)
    live.expect("bytes written", WORD, written)
    live.expect(f"what the child reads at {offset}", NEW, child.actor.read(child.address + offset))


@WRITTEN_BY_OTHERS.case(
    "what is written first of all into a page that parent and child have, or into a private one of a file, is seen by"
    " its owner alone, whoever writes it, by process_vm_writev(2) or /proc/PID/mem",
    f"{VM_WRITE}; mm/hugetlb.c hugetlb_wp()",
    pages=2,
)
def first_write_of_others(live: Live) -> None:
    _need_access(live)
    # a child may lack the pages of its parent, where the case ends
    pairs: list[Callable[[Live], tuple[Memory, Memory]]] = [_unread_of_a_file, _read_of_a_file, _parent, _child]
    # gigantic pages take seconds each
    for pair, way in zip(pairs[1::2], (0, 5), strict=True) if live.is_gigantic else product(pairs, range(len(_WAYS))):
        owner, other = pair(live)
        with live.about(f"page{pair.__name__.replace('_', ' ')}"):
            _expect_own(live, owner, other, way)
            live.expect_pool(nr=2, free=0)
        for one in (owner, other):
            one.actor.end()
        live.expect_pool(nr=2, free=2)


@WRITTEN_BY_OTHERS.case(
    "what is written first of all into base pages or a huge page that parent and child have is seen by its owner alone,"
    " whoever writes it, by process_vm_writev(2) or /proc/PID/mem",
    f"{VM_WRITE}; mm/huge_memory.c do_huge_pmd_wp_page(); mm/memory.c do_wp_page()",
    sizes=Sizes.ONCE,
)
def first_write_of_others_to_a_thp(live: Live) -> None:
    _need_access(live)
    ways = tuple(product((False, True), range(len(_WAYS))))
    for make in (base_pages, huge_pages):
        memory = make(live, len(ways))
        pages = [memory.part(page) for page in range(len(ways))]
        for page in pages:
            page.fill(OLD)
        child = memory.actor.fork()
        for page, (by_child, way) in zip(pages, ways, strict=True):
            owner, other = (page.seen_by(child), page) if by_child else (page, page.seen_by(child))
            with live.about(f"{make.__name__.replace('_', ' ')}, of the child {by_child}"):
                _expect_own(live, owner, other, way)
        memory.actor.end()


@WRITTEN_BY_OTHERS.case(
    "what others read of a page is what lies there, and what they write changes no other byte: from any byte on, over"
    " the end of a base page and of the page, by process_vm_readv(2), process_vm_writev(2) and /proc/PID/mem",
    f"{VM_WRITE}; mm/memory.c __access_remote_vm()",
    pages=2,
)
def any_bytes(live: Live) -> None:
    _need_access(live)
    for make in (_private, _shared, _private_of_a_file):
        memory = make(live)
        with live.about(make.__name__.strip("_").replace("_", " ")):
            _expect_any_bytes(live, memory)
            live.expect_pool(nr=2, free=0)
        memory.actor.end()
        live.expect_pool(nr=2, free=2)


@WRITTEN_BY_OTHERS.case(
    "what others read of base pages and huge pages is what lies there, and what they write changes no other byte: from"
    " any byte on, over the end of a base page and of a huge page, by process_vm_readv(2), process_vm_writev(2) and"
    " /proc/PID/mem",
    f"{VM_WRITE}; mm/memory.c __access_remote_vm()",
    sizes=Sizes.ONCE,
)
def any_bytes_of_a_thp(live: Live) -> None:
    _need_access(live)
    for make in (base_pages, huge_pages):
        with live.about(make.__name__.replace("_", " ")):
            _expect_any_bytes(live, make(live, 2))


@WRITTEN_BY_OTHERS.case(
    "who cannot reach the memory of its own that it gives reads and writes nothing of another one, EFAULT, and has no"
    " hold of its pages after that",
    "process_vm_readv(2) EFAULT; mm/process_vm_access.c process_vm_rw_single_vec()",
    pages=1,
)
def unreachable_buffer(live: Live) -> None:
    _need_access(live)
    other = live.actor()
    gone = ordinary_memory(live, other, 1)
    gone.unmap()
    for shared in (False, True):
        memory = live.map(1, shared=shared)
        memory.fill(OLD)
        for name, offset in product(("process_vm_readv", "process_vm_writev"), (0, live.size - WORD)):
            with live.about(f"{name} at {offset}, shared {shared}"):
                vectors = (live.host.uapi.pack("2Q", at, WORD) for at in (gone.address, memory.address + offset))
                local, remote = vectors
                live.expect_errno(errno.EFAULT, other.call, name, memory.actor.pid, local, 1, remote, 1, 0)
        memory.expect_filled(OLD)
        memory.unmap()
        live.expect_pool(nr=1, free=1)


def _private(live: Live) -> Memory:
    return live.map(2)


def _shared(live: Live) -> Memory:
    return live.map(2, shared=True)


def _private_of_a_file(live: Live) -> Memory:
    return new_memfd(live).map(2, shared=False)


def _expect_any_bytes(live: Live, memory: Memory) -> None:
    """Expect others, and its owner, to read and write bytes at places all over two pages of ``memory``."""
    base, size = live.base_page, memory.size
    #: words that are looked at, and how far from the first the bytes are that are read and written
    words, shift, count = 6, 5, 21
    places = (
        0,
        base,
        2 * base - 2 * WORD,
        size // 2 + base // 2,
        size - base,
        size - 2 * WORD,
        2 * size - words * WORD,
    )
    for (reader, by_file), place in product(product((memory.actor, live.actor()), (False, True)), places):
        with live.about(f"by its owner {reader is memory.actor}, by /proc/PID/mem {by_file}, at {place + shift}"):
            memory.fill_part(place, words * WORD, OLD)
            before = live.host.uapi.pack(f"{words}Q", *(OLD + place + WORD * word for word in range(words)))
            found = _bytes_at(live, reader, memory, place + shift, count, by_file=by_file)
            live.expect("what is read", before[shift : shift + count].hex(), found.hex())
            new = bytes(range(1, count + 1))
            write_from_outside(live, reader, memory, place + shift, new, by_file=by_file)
            after = [memory.actor.read(memory.address + place + WORD * word) for word in range(words)]
            expected = before[:shift] + new + before[shift + count :]
            live.expect("what its owner has", expected.hex(), live.host.uapi.pack(f"{words}Q", *after).hex())


def _bytes_at(live: Live, reader: Actor, memory: Memory, offset: int, count: int, *, by_file: bool) -> bytes:
    """Return what ``reader`` reads of another's, or its own, ``memory``. Raises Refused."""
    if by_file:
        file = live.open(reader, f"/proc/{memory.actor.pid}/mem", os.O_RDONLY)
        read, (found,) = reader.call_with_buffers("pread64", file, bytes(count), count, memory.address + offset)
        reader.call("close", file)
    else:
        at = ordinary_memory(live, reader, 1).address
        local, remote = (live.host.uapi.pack("2Q", one, count) for one in (at, memory.address + offset))
        read = read_of_another(live, reader, memory.actor.pid, local, remote)
        words = [reader.read(at + start) for start in range(0, count, WORD)]
        found = live.host.uapi.pack(f"{len(words)}Q", *words)[:count]
    live.expect("bytes read", count, read)
    return found


def _need_access(live: Live) -> None:
    """Raise CannotRun where processes may not reach the memory of others, or the kernel has no call for it."""
    actors = live.actor(), live.actor()
    words = (ordinary_memory(live, one, 1).address for one in actors)
    read_of_another(live, actors[0], actors[1].pid, *(live.host.uapi.pack("2Q", word, WORD) for word in words))


def _read_of_a_file(live: Live) -> tuple[Memory, Memory]:
    private, shared = _unread_of_a_file(live)
    live.expect("what is read of the file", OLD, private.read())
    return private, shared


def _unread_of_a_file(live: Live) -> tuple[Memory, Memory]:
    file = new_memfd(live)
    shared = file.map(1)
    shared.fill(OLD)
    return file.map(1, shared=False), shared


def _parent(live: Live) -> tuple[Memory, Memory]:
    memory = live.map(1)
    memory.fill(OLD)
    return memory, forked(live, memory)


def _child(live: Live) -> tuple[Memory, Memory]:
    memory, child = _parent(live)
    return child, memory


def _expect_own(live: Live, owner: Memory, other: Memory, way: int) -> None:
    """Expect a word that is written in one of the ways into memory that both have, filled with OLD, to be the owner's.

    In both files and calls it is one of the first, of the second and of the last base page.
    """
    (who, by_file), offset = _WAYS[way], (0, live.base_page, owner.size - WORD)[way % 3]
    writer = {"its owner": owner.actor, "the other one": other.actor}.get(who) or live.actor()
    with live.about(f"by {who}, to /proc/PID/mem {by_file}, at {offset}"):
        write_from_outside(live, writer, owner, offset, live.host.uapi.pack("Q", NEW), by_file=by_file)
        live.expect("what its owner reads", NEW, owner.actor.read(owner.address + offset))
        other.expect_filled(OLD)
        # all but that word
        owner.actor.write(owner.address + offset, OLD + offset)
        owner.expect_filled(OLD)


class WrittenByOthers(LiveTest):
    def test_written_by_others(self) -> None:
        self.run_area(WRITTEN_BY_OTHERS)
