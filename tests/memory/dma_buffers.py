"""Buffers for devices (/dev/udmabuf) that lie in huge pages: they are what their file has, and hold it."""

import errno
import fcntl
import os
from collections.abc import Sequence
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.hugetlb_files import HugeFile, new_memfd, open_file
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.swapped import need_swap, page_all_out
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import advised
from hugepage_qa.cases.thp_shared_memory import expect_mapped_whole, let_only_pmd_inherit, map_file, map_start
from hugepage_qa.cases.udmabuf import DeviceBuffer, Part, create_buffer, map_buffer, open_device
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import F_SEAL_FUTURE_WRITE, MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import MIB
from hugepage_qa.version import KernelVersion

BUFFERS = Area("memory/dma-buffers", uncleared=True)

CREATE = "include/uapi/linux/udmabuf.h UDMABUF_CREATE, UDMABUF_CREATE_LIST; drivers/dma-buf/udmabuf.c udmabuf_create()"
_PAGES = 3
#: all parts of one buffer together may have 64 MiB (size_limit_mb in drivers/dma-buf/udmabuf.c)
_MOST = 8 * MIB
_VALUE = 77
#: with 16c243e99d33, until that was taken back (b7cb3821905b), and by memfd_pin_folios() since
_TAKES_POOL_PAGES, _TAKES_NONE, _TAKES_THEM_AGAIN = KernelVersion(5, 14), KernelVersion(6, 4), KernelVersion(6, 11)


@BUFFERS.case(
    "a buffer of any part of the huge pages of a file, or of several, shows what the file holds there, and the file"
    " what is written to it; its pages are in use until it is closed, though the file has gone",
    CREATE,
    pages=_PAGES,
)
def pages_of_a_file(live: Live) -> None:
    for parts in _parts(live, live.size):
        with live.about(f"parts of {parts}"):
            file, device = _sealed_file(live)
            memory = file.map(_PAGES)
            memory.fill()
            _expect_the_same(live, memory, _buffer(file, device, parts), parts)
            buffers = [_buffer(file, device, parts) for _number in range(2)]
            memory.unmap()
            file.close()
            held = len({page for start, end in parts for page in range(start // live.size, -(-end // live.size))})
            for buffer in buffers:
                # a page may be let go of in a moment
                live.host.wait_until(partial(_is_free, live, _PAGES - held))
                live.expect_pool(nr=_PAGES, free=_PAGES - held)
                _expect_in(live, memory, buffer, parts)
                buffer.close()
            live.host.wait_until(partial(_is_free, live, _PAGES))
            live.expect_pool(nr=_PAGES, free=_PAGES)
            file.actor.end()


@BUFFERS.case(
    "a buffer of holes of a file is of zeroes, of pages that are the file's from then on, out of what was reserved for"
    " it, though others used them before",
    "mm/gup.c memfd_pin_folios(); mm/memfd.c memfd_alloc_folio()",
    pages=_PAGES,
    since="6.12",
)
def holes_of_a_file(live: Live) -> None:
    used = live.map(_PAGES)
    used.fill()
    used.actor.end()
    file, device = _sealed_file(live)
    memory = file.map(_PAGES)
    memory.part(2).fill()
    live.expect_pool(nr=_PAGES, free=2, resv=2)
    # the end of a hole, and the start of the page behind it, or of the next hole
    for page, left in ((1, 1), (0, 0)):
        start, end = (page + 1) * live.size - live.base_page, (page + 1) * live.size + live.base_page
        buffer = _buffer(file, device, [(start, end)])
        live.expect_pool(nr=_PAGES, free=left, resv=left)
        live.expect("words that are not zero", 0, file.actor.nonzero(buffer.address, live.base_page))
        live.expect("words of what was there", 0, _wrong_behind(memory, buffer, page))
        file.actor.write(buffer.address, _VALUE)
        live.expect("what is written to the hole", _VALUE, file.actor.read(memory.address + start))
        live.expect("words of it that are not zero", 1, file.actor.nonzero(memory.at(page), live.size, memory.step))
        file.actor.write(buffer.address, 0)
        buffer.close()
        live.expect_pool(nr=_PAGES, free=left, resv=left)
    memory.unmap()
    file.close()
    live.host.wait_until(partial(_is_free, live, _PAGES))
    live.expect_pool(nr=_PAGES, free=_PAGES)


@BUFFERS.case(
    "a buffer of a hole that nothing is reserved for takes a free page, which is the file's until it has gone, and none"
    " where there is none, or others have reserved it: ENOMEM",
    "mm/memfd.c memfd_alloc_folio(); mm/hugetlb.c hugetlb_reserve_pages()",
    pages=_PAGES,
    since="6.12",
)
def unreserved_hole(live: Live) -> None:
    for reserved in (1, 0):
        others = live.map(reserved) if reserved else None
        file, device = _sealed_file(live)
        for page in range(_PAGES - reserved):
            start = page * live.size + live.base_page
            buffer = _buffer(file, device, [(start, start + live.base_page)])
            left = _PAGES - page - 1
            known = {Quirk.BUFFER_TAKES_RESERVED: {"resv": reserved - 1}}
            live.expect_pool(nr=_PAGES, free=left, resv=reserved, known=known)
            live.expect("words that are not zero", 0, file.actor.nonzero(buffer.address, live.base_page))
            buffer.close()
            live.expect_pool(nr=_PAGES, free=left, resv=reserved)
        if others is not None:
            behind = (_PAGES - 1) * live.size
            live.expect_errno(errno.ENOMEM, _buffer, file, device, [(behind, behind + live.base_page)])
            live.expect_pool(nr=_PAGES, free=reserved, resv=reserved)
            others.touch(value=_VALUE)
            live.expect("what the reserved page holds", _VALUE, others.read())
            live.expect_errno(errno.ENOMEM, _buffer, file, device, [(behind, behind + live.base_page)])
            live.expect_pool(nr=_PAGES, free=0)
            others.actor.end()
        file.close()
        live.host.wait_until(partial(_is_free, live, _PAGES))
        live.expect_pool(nr=_PAGES, free=_PAGES)


def _wrong_behind(memory: Memory, buffer: DeviceBuffer, page: int) -> int:
    """Return how many words of the second base page of a buffer of a hole and what is behind it are wrong."""
    base = buffer.length // 2
    if page == 1:
        return buffer.actor.check(buffer.address + base, base, memory.step, 1)
    return buffer.actor.nonzero(buffer.address + base, base)


@BUFFERS.case(
    "what is refused a buffer holds no page and takes none: a file that may become shorter, or is sealed against"
    " writing, a part of a base page, nothing, what lies behind the end of a file, and one of several parts of which"
    " another one is refused",
    f"{CREATE} check_memfd_seals()",
    pages=_PAGES,
)
def refused(live: Live) -> None:
    file, device = _sealed_file(live)
    file.map(_PAGES).fill()
    actor, base, whole = file.actor, live.base_page, _PAGES * live.size
    good = Part(file.descriptor, live.size - base, 2 * base)
    named = open_file(live, f"{live.mount()}/file", actor).descriptor
    other, unsealed, sealed = (new_memfd(live, actor, os.MFD_ALLOW_SEALING) for _number in range(3))
    other.seal(fcntl.F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE)
    sealed.seal(fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE)
    for what, number, part in (
        ("a file of a mount", errno.EINVAL, Part(named, 0, base)),
        ("a file that may become shorter", errno.EINVAL, Part(unsealed.descriptor, 0, base)),
        ("a file sealed against writing", errno.EINVAL, Part(sealed.descriptor, 0, base)),
        ("a file sealed against writing later", errno.EINVAL, Part(other.descriptor, 0, base)),
        ("a descriptor that is none", errno.EBADFD, Part(-1 % (1 << 32), 0, base)),
        ("a file that is not in memory", errno.EBADFD, Part(device, 0, base)),
        ("an offset within a base page", errno.EINVAL, Part(file.descriptor, base // 2, base)),
        ("a length of half a base page", errno.EINVAL, Part(file.descriptor, 0, base // 2)),
        ("what lies behind the end", errno.EINVAL, Part(file.descriptor, whole, base)),
        ("what reaches behind the end", errno.EINVAL, Part(file.descriptor, whole - base, 2 * base)),
    ):
        with live.about(what):
            live.expect_errno(number, create_buffer, actor, device, [part])
            live.expect_errno(number, create_buffer, actor, device, [good, part])
            live.expect_pool(nr=_PAGES, free=0)
    live.expect_errno(errno.EINVAL, create_buffer, actor, device, [])
    actor.end()
    live.host.wait_until(partial(_is_free, live, _PAGES))
    live.expect_pool(nr=_PAGES, free=_PAGES)


@BUFFERS.case(
    "a buffer of any part of shared memory, in huge pages, in base pages or in swap, shows what its file holds there,"
    " and the file what is written to it, and holds it though the file has gone",
    f"{CREATE}; mm/gup.c memfd_pin_folios(); mm/shmem.c shmem_read_folio_gfp()",
    sizes=Sizes.ONCE,
)
def shared_memory(live: Live) -> None:
    let_only_pmd_inherit(live)
    size = pmd_size(live)
    need_swap(live, _PAGES * size)
    for is_huge, is_out, parts in product((True, False), (False, True), _parts(live, size)):
        live.set_knob(f"{DIRECTORY}/shmem_enabled", "always" if is_huge else "never")
        with live.about(f"huge {is_huge}, in swap {is_out}, parts {parts}"):
            _expect_buffers_of_shared_memory(live, parts, is_huge=is_huge, is_out=is_out)


def _expect_buffers_of_shared_memory(
    live: Live, parts: Sequence[tuple[int, int]], *, is_huge: bool, is_out: bool
) -> None:
    actor, size = live.actor(), pmd_size(live)
    device = open_device(live, actor)
    file = HugeFile(live, actor, actor.call("memfd_create", "hugepage-qa", os.MFD_ALLOW_SEALING))
    with_blocks(live, size, _PAGES if is_huge else 0)
    memory = map_start(live, actor, file.descriptor, _PAGES)
    file.seal(fcntl.F_SEAL_SHRINK)
    memory.fill()
    expect_mapped_whole(live, memory, _PAGES if is_huge else 0, f"huge {is_huge}")
    if is_out:
        page_all_out(live, memory)
    _expect_the_same(live, memory, _buffer(file, device, parts), parts)
    buffer = _buffer(file, device, parts)
    memory.unmap()
    file.close()
    _expect_in(live, memory, buffer, parts)
    buffer.close()
    actor.end()


@BUFFERS.case(
    "a buffer of shared memory that fallocate(2) allocated and nobody has used, in huge pages or in base pages, is"
    " of zeroes, whatever others had there before, and what is written to it is what the file holds, read or mapped",
    "fallocate(2), what did not contain data is initialized to zero; mm/gup.c memfd_pin_folios(); mm/shmem.c"
    " shmem_fallocate(), shmem_get_folio_gfp()",
    sizes=Sizes.ONCE,
)
def allocated(live: Live) -> None:
    let_only_pmd_inherit(live)
    for is_huge, parts in product((True, False), _parts(live, pmd_size(live))):
        live.set_knob(f"{DIRECTORY}/shmem_enabled", "always" if is_huge else "never")
        with live.about(f"huge {is_huge}, parts {parts}"):
            _expect_buffers_of_allocated(live, parts, is_huge=is_huge)


def _expect_buffers_of_allocated(live: Live, parts: Sequence[tuple[int, int]], *, is_huge: bool) -> None:
    actor, size, pages = live.actor(), pmd_size(live), _PAGES if is_huge else 0
    device = open_device(live, actor)
    with_blocks(live, size, pages)
    used = advised(live, _PAGES, MADV_HUGEPAGE if is_huge else MADV_NOHUGEPAGE)
    used.fill()
    used.actor.end()
    file = HugeFile(live, actor, actor.call("memfd_create", "hugepage-qa", os.MFD_ALLOW_SEALING))
    actor.call("fallocate", file.descriptor, 0, 0, _PAGES * size)
    file.seal(fcntl.F_SEAL_SHRINK)
    buffer = _buffer(file, device, parts)
    dirty, ends = actor.nonzero(buffer.address, buffer.length), _ends(parts)
    for place, _in_file in ends:
        actor.write(buffer.address + place, _VALUE)
    read = [live.host.uapi.unpack("Q", file.read(place, WORD))[0] for _in_buffer, place in ends]
    memory = map_file(live, actor, file.descriptor, _PAGES)
    mapped = [actor.read(memory.address + place) for _in_buffer, place in ends]
    # what fallocate(2) leaves as it is gets cleared at the first access through the file
    nothing = [0] * len(ends)
    subject = "words of the buffer that are not zero, and what is read and mapped of what was written to it"
    wanted, lost = (0, [_VALUE] * len(ends), [_VALUE] * len(ends)), (dirty, nothing, nothing)
    live.expect(subject, wanted, (dirty, read, mapped), {Quirk.BUFFER_NOT_CLEARED: lost})
    memory.fill()
    expect_mapped_whole(live, memory, pages, f"huge {is_huge}")
    _expect_the_same(live, memory, buffer, parts)
    actor.end()


def _parts(live: Live, size: int) -> list[list[tuple[int, int]]]:
    """Return parts of which buffers are made, from byte to byte: alone, and several, in other orders, some twice."""
    base, most = live.base_page, min(size, _MOST)
    whole = _PAGES * size
    return [
        [(0, base)],
        [(size - base, size)],
        [(size - base, size + base)],
        [(size // 2, size // 2 + most)],
        [(whole - most, whole)],
        [(2 * size, 2 * size + base), (0, 2 * base), (size - 2 * base, size + base), (0, base)],
    ]


def _ends(parts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return where a buffer of ``parts`` has the first and the last word of each, and where the file has them."""
    ends, at = list[tuple[int, int]](), 0
    for start, end in parts:
        ends += [(at, start), (at + end - start - WORD, end - WORD)]
        at += end - start
    return ends


def _sealed_file(live: Live) -> tuple[HugeFile, int]:
    """Return a file of ``_PAGES`` pages, sealed against shrinking, and the device that makes buffers.

    Raises CannotRun where that takes no hugetlb pages.
    """
    actor = live.actor()
    device = open_device(live, actor)
    if live.kernel_version < _TAKES_POOL_PAGES or _TAKES_NONE <= live.kernel_version < _TAKES_THEM_AGAIN:
        raise CannotRun("buffers of this kernel take no hugetlb pages")
    file = new_memfd(live, actor, os.MFD_ALLOW_SEALING, pages=_PAGES)
    file.seal(fcntl.F_SEAL_SHRINK)
    return file, device


def _buffer(file: HugeFile, device: int, parts: Sequence[tuple[int, int]]) -> DeviceBuffer:
    return map_buffer(file.actor, device, [Part(file.descriptor, start, end - start) for start, end in parts])


def _expect_in(live: Live, memory: Memory, buffer: DeviceBuffer, parts: Sequence[tuple[int, int]]) -> None:
    """Expect a buffer to show ``parts`` of a file as ``fill`` of its ``memory`` left them, one behind the other."""
    at = buffer.address
    for start, end in parts:
        wrong = buffer.actor.check(at, end - start, memory.step, 1 + start)
        live.expect(f"words that a buffer has of others than {start} to {end}", 0, wrong)
        at += end - start


def _expect_the_same(live: Live, memory: Memory, buffer: DeviceBuffer, parts: Sequence[tuple[int, int]]) -> None:
    """Expect a buffer to show what is in a file, and the file what is written to the buffer; close it."""
    _expect_in(live, memory, buffer, parts)
    at = buffer.address
    for start, end in parts:
        for place in (0, end - start - WORD):
            buffer.actor.write(at + place, _VALUE)
            found = memory.actor.read(memory.address + start + place)
            live.expect(f"what the file has at {start + place} of what is written to a buffer", _VALUE, found)
        memory.actor.fill(memory.address + start, end - start, memory.step, 1 + start)
        at += end - start
    _expect_in(live, memory, buffer, parts)
    buffer.close()
    memory.expect_filled()


def _is_free(live: Live, pages: int) -> bool:
    return live.pool().free == pages


class DmaBuffers(LiveTest):
    def test_dma_buffers(self) -> None:
        self.run_area(BUFFERS)
