"""Programs that are executed while memory is in huge pages: their arguments, and where they have files mapped."""

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from itertools import pairwise, product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_segments import IPC_CREAT, segment_number
from hugepage_qa.cases.khugepaged_clock import quicken
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.places import expect_random, ordinary_memory
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.cases.thp_policy import set_policy
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, mount_tmpfs
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MAP_FIXED_NOREPLACE, RLIM_INFINITY
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.sizes import MIB

PROGRAMS = Area("thp/programs", sizes=Sizes.ONCE)

_RLIMIT_STACK, _STACK = 3, 8 * MIB
#: include/uapi/linux/binfmts.h MAX_ARG_STRLEN: base pages of one argument; fs/exec.c bprm_stack_limits(): bytes of all
_LONGEST, _MOST = 32, 6 * MIB
_POINTER = 8
_ROUNDS = 8
_BOTTOM_UP = "proc/sys/vm/legacy_va_layout"
_VALUE = 7
#: 6.7 to 6.11, and 6.12 until it was mended there, place all that a huge page fits into where one fits
_LENGTHS_AND_HINTS_SINCE = "6.12.10"
#: mappings, of which the first half may fill holes that are there
_BESIDE_EACH_OTHER = 12
#: bytes for which there is no room between mappings that a program has from its start
_ROOM = 64 * MIB


@PROGRAMS.case(
    "a program gets arguments as large as they can be, in huge pages or not, and more of them are E2BIG",
    "execve(2) Limits on size of arguments and environment; fs/exec.c (CVE-2011-0999)",
)
def largest_arguments(live: Live) -> None:
    set_policy(live, "always")
    quicken(live)
    actor = live.actor()
    # a quarter of it, and no more than _MOST, may be arguments
    actor.call("setrlimit", _RLIMIT_STACK, live.host.uapi.pack("QQ", 8 * _MOST, RLIM_INFINITY))
    length = _LONGEST * live.base_page
    # one less: the environment is among them
    count = _MOST // (length + _POINTER) - 1
    for _round in range(_ROUNDS):
        # the last byte ends it
        live.expect(f"of {count} arguments, those that changed", 0, actor.exec("", count, length - 1))
        live.expect_errno(errno.E2BIG, actor.exec, "", count + 2, length - 1)


@PROGRAMS.case(
    "a file that is mapped where huge pages fit is at another place in each program: what alignment leaves is random",
    "Documentation/admin-guide/sysctl/vm.rst mmap_rnd_bits; mm/huge_memory.c thp_get_unmapped_area()",
)
def random_addresses_of_files(live: Live) -> None:
    size = pmd_size(live)
    actor = live.actor()
    for directory in (live.host.disk("ext4"), mount_tmpfs(live, "always")):
        file = live.open(actor, directory, os.O_RDWR | live.host.uapi.o_tmpfile)
        actor.call("ftruncate", file, 2 * size)

        def mapped(file: int = file) -> Memory:
            address = actor.mmap(2 * size, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, file)
            return Memory(live, actor, address, 2, size)

        expect_random(live, actor, mapped, size)


@PROGRAMS.case(
    "mmap() without an address, or with one that is taken, maps a file where a huge page of it fits if there is a whole"
    " one, wherever in the file it begins and ends, and replaces nothing; an address that is free is given",
    "mm/huge_memory.c __thp_get_unmapped_area(); mm/shmem.c shmem_get_unmapped_area()",
    since="5.18",
)
def fitting_addresses_of_files(live: Live) -> None:
    # with shmem_enabled=deny any address fits a file, whatever its mount has
    let_only_pmd_inherit(live)
    size, base = pmd_size(live), live.base_page
    directories = live.host.disk("ext4"), mount_tmpfs(live, "always")
    offsets = 0, base, 3 * base, size // 2, size - base, size, size + base
    for from_the_bottom, directory in product(("0", "1"), directories):
        live.set_knob(_BOTTOM_UP, from_the_bottom)
        # the layout of a program is chosen when it starts
        actor = live.actor()
        file = live.open(actor, directory, os.O_RDWR | live.host.uapi.o_tmpfile)
        actor.call("ftruncate", file, 5 * size)
        # the shortest with a whole huge page of the file, and what has a part of the next one, too
        for offset, more, kind in product(offsets, (0, base, size - base), (mmap.MAP_PRIVATE, mmap.MAP_SHARED)):
            length = -(-offset // size) * size + size - offset + more
            # so that the next free address is not one that fits
            beside = ordinary_memory(live, actor, 1)
            beside.touch(value=_VALUE)
            found = actor.mmap(length, mmap.PROT_READ, kind, file, offset)
            taken = actor.mmap(length, mmap.PROT_READ, kind, file, offset, beside.address)
            with live.about(f"{length} bytes at {offset}, {_BOTTOM_UP}={from_the_bottom}"):
                for address in (found, taken):
                    live.expect("bytes beyond an address that fits", offset % size, address % size)
                live.expect("what is in the memory beside it", _VALUE, beside.read())
                # free with room for a huge page more, and none of ours fits there
                free = room_for(actor, 4 + length // size, size) + 2 * base
                actor.call("munmap", free, length + size)
                given = actor.mmap(length, mmap.PROT_READ, kind, file, offset, free)
                live.expect("the address that was asked for", f"{free:#x}", f"{given:#x}")


@PROGRAMS.case(
    "what is mapped without an address where huge pages of it fit, a file of a tmpfs, shared and private memory,"
    " replaces nothing of what lies above the place that is free, wherever in a huge page that begins",
    "mm/huge_memory.c __thp_get_unmapped_area(); mm/shmem.c shmem_get_unmapped_area()",
)
def beside_neighbours(live: Live) -> None:
    let_only_pmd_inherit(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "always")
    # from the bottom up the first room there is lies beside the libraries of the program
    live.set_knob(_BOTTOM_UP, "0")
    size, base = pmd_size(live), live.base_page
    length = max(size, _ROOM)
    point = mount_tmpfs(live, "always")

    def of_a_file(live: Live, actor: Actor, length: int) -> int:
        file = live.open(actor, point, os.O_RDWR | live.host.uapi.o_tmpfile)
        actor.call("ftruncate", file, length)
        return actor.mmap(length, READ_WRITE, mmap.MAP_SHARED, file)

    ways: tuple[Callable[[Live, Actor, int], int], ...] = of_a_file, _anonymous, _private
    for way, before in product(ways, (0, base, 2 * base, size // 2, size - base)):
        actor = live.actor()
        # and so it is without a limit of the stack (mmap_is_legacy()); the layout is chosen when the program starts
        actor.call("setrlimit", _RLIMIT_STACK, live.host.uapi.pack("QQ", _STACK, RLIM_INFINITY))
        actor.exec()
        # where there is no room but below what was mapped last
        above = _private(live, actor, length)
        end = above - (above + before) % size
        if end < above:
            kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED_NOREPLACE
            actor.mmap(above - end, READ_WRITE, kind, address=end)
        actor.fill(end, base, WORD, _VALUE)
        with live.about(f"{way.__name__.strip('_')}, below what begins {before} bytes before a multiple"):
            found = way(live, actor, length)
            live.expect("whether it lies beside its neighbour", True, found + length <= end or found >= above + length)
            live.expect("words of its neighbour that changed", 0, actor.check(end, base, WORD, _VALUE))
        actor.end()


@PROGRAMS.case(
    "mmap() and shmat() map shared memory that has no file of a mount where a huge page of it fits, if shmem_enabled"
    " has it get huge pages, all of it, within its size or on advice that may come: anonymous memory, memfds and"
    " segments",
    f"{THP_DOC} shmem_enabled; mm/shmem.c shmem_get_unmapped_area()",
)
def fitting_addresses_of_shared_memory(live: Live) -> None:
    let_only_pmd_inherit(live)
    ways: tuple[Callable[[Live, Actor, int], int], ...] = _anonymous, _memfd, _segment
    for policy in ("always", "within_size", "advise"):
        live.set_knob(f"{DIRECTORY}/shmem_enabled", policy)
        with live.about(f"shmem_enabled={policy}"):
            _expect_fitting(live, *ways)


@PROGRAMS.case(
    "mmap() maps private memory that is as long as whole huge pages where they fit",
    "mm/mmap.c get_unmapped_area(), since efa7df3e3bb5 and, with no other length, d4148aeab412",
    since="6.7",
)
def fitting_addresses_of_private_memory(live: Live) -> None:
    _expect_fitting(live, _private, of_any_length=False)


@PROGRAMS.case(
    "mmap() maps private memory of another length beside what was mapped before it, without a hole, whether or not a"
    " huge page fits into it",
    "mm/mmap.c get_unmapped_area(), __get_unmapped_area(), since d4148aeab412 again",
    since=_LENGTHS_AND_HINTS_SINCE,
)
def other_lengths_side_by_side(live: Live) -> None:
    size, base = pmd_size(live), live.base_page
    for actor, length, where in _in_each_layout(live, size // 2, size - base, size + base, 3 * size // 2):
        places = [_private(live, actor, length) for _ in range(_BESIDE_EACH_OTHER)][_BESIDE_EACH_OTHER // 2 :]
        with live.about(where):
            between = {abs(place - before) - length for before, place in pairwise(places)}
            live.expect("bytes between one and the next", {0}, between)
            for number, place in enumerate(places):
                actor.write(place, number)
            live.expect("what each of them holds", [*range(len(places))], [actor.read(place) for place in places])


@PROGRAMS.case(
    "mmap() maps private memory at the address that is asked for where that is free, whether a huge page fits there or"
    " not, and though nothing more is free beside it",
    "mmap(2) addr; mm/mmap.c get_unmapped_area(), __get_unmapped_area(), since 249608ee4713 again",
    since=_LENGTHS_AND_HINTS_SINCE,
)
def addresses_that_are_asked_for(live: Live) -> None:
    size, base = pmd_size(live), live.base_page
    for actor, length, where in _in_each_layout(live, size, 3 * size, size + base):
        room = _private(live, actor, length + 2 * base)
        actor.call("munmap", room + base, length)
        address = actor.mmap(length, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, address=room + base)
        with live.about(where):
            live.expect("bytes beyond the address that was asked for", 0, address - room - base)
            actor.write(address, _VALUE)
            live.expect("what is there", _VALUE, actor.read(address))


def _in_each_layout(live: Live, *lengths: int) -> Iterator[tuple[Actor, int, str]]:
    """Yield for each of ``lengths`` a process with each layout of addresses, which it has from its start, and words."""
    for from_the_bottom, length in product(("0", "1"), lengths):
        live.set_knob(_BOTTOM_UP, from_the_bottom)
        actor = live.actor()
        yield actor, length, f"{length} bytes, {_BOTTOM_UP}={from_the_bottom}"
        actor.end()


def _expect_fitting(live: Live, *ways: Callable[[Live, Actor, int], int], of_any_length: bool = True) -> None:
    """Expect what is mapped in each of these ways to lie where a huge page fits, if one does."""
    size, base = pmd_size(live), live.base_page
    lengths = [size, 3 * size] + ([size + base, 2 * size - base] if of_any_length else [])
    for from_the_bottom in ("0", "1"):
        live.set_knob(_BOTTOM_UP, from_the_bottom)
        actor = live.actor()
        for make, length in product(ways, lengths):
            # so that the next free address is not one that fits
            beside = ordinary_memory(live, actor, 1)
            beside.touch(value=_VALUE)
            address = make(live, actor, length)
            with live.about(f"{make.__name__.strip('_')}, {length} bytes, {_BOTTOM_UP}={from_the_bottom}"):
                live.expect("bytes beyond an address that fits", 0, address % size)
                live.expect("what is in the memory beside it", _VALUE, beside.read())


def _anonymous(_live: Live, actor: Actor, length: int) -> int:
    return actor.mmap(length, READ_WRITE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)


def _private(_live: Live, actor: Actor, length: int) -> int:
    return actor.mmap(length, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _memfd(_live: Live, actor: Actor, length: int) -> int:
    file = actor.call("memfd_create", "hugepage-qa", 0)
    actor.call("ftruncate", file, length)
    return actor.mmap(length, READ_WRITE, mmap.MAP_SHARED, file)


def _segment(live: Live, actor: Actor, length: int) -> int:
    return actor.call("shmat", segment_number(live, actor, length, IPC_CREAT | 0o600), 0, 0) % (1 << 64)


class ThpPrograms(LiveTest):
    def test_programs(self) -> None:
        self.run_area(PROGRAMS)
