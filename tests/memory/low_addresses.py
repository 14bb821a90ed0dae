"""Addresses below vm.mmap_min_addr: who may map huge pages and others there, and in which way."""

import errno
import mmap
import signal
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product

from hugepage_qa.cases.capabilities import IPC_LOCK, SYS_RAWIO, become_nobody, become_user_with
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_segments import IPC_CREAT, SHM_NORESERVE, get_segment
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.kernel.smaps import read_smaps
from hugepage_qa.kernel.uapi import MAP_FIXED, MAP_FIXED_NOREPLACE, NOBODY
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused
from hugepage_qa.version import KernelVersion

LOW = Area("memory/low-addresses")

MAY = (
    "below vm.mmap_min_addr nobody maps {} without CAP_SYS_RAWIO, root neither, with MAP_FIXED, MAP_FIXED_NOREPLACE,"
    " mremap(2){}: EPERM, and nothing is there; who has it may, and anybody from there on; a hint below it leads above"
)
SOURCE = (
    "Documentation/admin-guide/sysctl/vm.rst mmap_min_addr; capabilities(7) CAP_SYS_RAWIO; mm/mmap.c"
    " __get_unmapped_area(), round_hint_to_min()"
)
_LEAST, _SELINUX = "proc/sys/vm/mmap_min_addr", "sys/fs/selinux/enforce"
#: what most kernels begin with
_USUAL = 1 << 16
_SHMAT = "shmat"
#: 550a7d60bd5e
_HUGETLB_MOVES_SINCE = KernelVersion(5, 16)
_VALUE = 7
#: whether they may, and how an actor, which is root, becomes one of them
_WHO: Mapping[str, tuple[bool, Callable[[Actor], None]]] = {
    "nobody": (False, become_nobody),
    "nobody with CAP_SYS_RAWIO": (True, partial(become_user_with, user=NOBODY, number=SYS_RAWIO)),
    "root": (True, lambda _actor: None),
    "root without CAP_SYS_RAWIO": (False, partial(become_user_with, user=0, number=IPC_LOCK)),
}
#: maps one page at an address, or looks for another one near it
Way = Callable[[int], Memory]
#: returns the ways in which an actor maps one page at an address, and the one that takes it for a hint
Ways = Callable[[Live, Actor], tuple[Mapping[str, Way], Way]]


@LOW.case(MAY.format("huge pages", " or shmat(2)"), SOURCE, sizes=Sizes.BUDDY, pages=3)
def hugetlb_pages(live: Live) -> None:
    around = (live.size + offset for offset in (-live.base_page, 0, live.base_page))
    _expect_rights(live, live.size, _of_hugetlb_pages, 0, _USUAL, *around)
    live.expect_pool(nr=3, free=3)


@LOW.case(MAY.format("base pages, private, shared or of a file,", ""), SOURCE, sizes=Sizes.ONCE)
def other_pages(live: Live) -> None:
    around = (max(_USUAL, 2 * live.base_page) + offset for offset in (-1, 0, 1, live.base_page))
    _expect_rights(live, live.base_page, _of_other_pages, 0, live.base_page, *around)


def _expect_rights(live: Live, size: int, make_ways: Ways, *least: int) -> None:
    """Expect addresses below ``least``, what vm.mmap_min_addr is set to, to be for those who may have them alone."""
    if (live.host.read(_SELINUX) or "0").strip() == "1":
        raise CannotRun("SELinux has a rule of its own for low addresses (mmap_zero)")
    usual = int(live.host.read(_LEAST) or "0")
    known, wrong = dict[str, str](), dict[str, str]()
    # programs of others may have to be below it, and nothing of the kernel's is to be open to them
    for lowest, (who, (may, become)) in product(least if live.host.is_thrown_away() else (usual,), _WHO.items()):
        live.set_knob(_LEAST, str(lowest))
        actor = live.actor()
        ways, look_near = make_ways(live, actor)
        # of who has not answered yet it may be that of the program before
        end = min(mapping.start for mapping in read_smaps(ObservedTree(live.host), actor.pid) or ())
        become(actor)
        below, above = max(lowest - 1, 0) // size * size, -(-lowest // size) * size
        for place, (way, map_at) in product(sorted({0, below, above}), ways.items()):
            if place + size > end or (way == _SHMAT and not place):
                # something of the program may be there, and shmat(2) takes 0 for no address
                continue
            with live.about(f"vm.mmap_min_addr {lowest}, {who}, {way} at {place:#x}"):
                if place < lowest and not may:
                    live.expect_errno(errno.EPERM, map_at, place)
                    live.expect_signal(signal.SIGSEGV, actor.read, place)
                else:
                    _expect_used(live, map_at(place), place)
        for hint in {1, live.base_page, max(lowest - 1, 1)}:
            row = f"vm.mmap_min_addr {lowest}, {who}, the hint {hint:#x}"
            # one in the first base page is none; others are rounded up first (round_hint_to_min()), then down to pages
            rounded = max(hint, -(-lowest // live.base_page) * live.base_page) // size * size
            if hint >= live.base_page and rounded < lowest:
                known[row] = f"{rounded:#x}" if may else "EPERM"
            with live.about(row):
                try:
                    memory = look_near(hint)
                except Refused as refusal:
                    wrong[row] = errno.errorcode.get(refusal.errno or 0, "another error")
                    continue
                if memory.address < lowest:
                    wrong[row] = f"{memory.address:#x}"
                _expect_used(live, memory, memory.address)
        actor.end()
    quirks = {Quirk.LOW_HINT_ROUNDED_DOWN: known} if size > live.base_page else None
    live.expect("hints that do not lead to a place above", {}, wrong, quirks)


def _expect_used(live: Live, memory: Memory, place: int) -> None:
    live.expect("the address", f"{place:#x}", f"{memory.address:#x}")
    memory.touch(value=_VALUE)
    live.expect("what the page holds", _VALUE, memory.read())
    memory.unmap()


def _of_hugetlb_pages(live: Live, actor: Actor) -> tuple[Mapping[str, Way], Way]:
    file = new_memfd(live, actor, pages=1)
    segment = get_segment(live, live.size, actor, flags=IPC_CREAT | SHM_NORESERVE | 0o666)
    # it goes with the actor, and can be attached until then
    segment.attach_for_good()

    def map_page(at: int, flags: int = 0) -> Memory:
        return live.map(1, actor, noreserve=True, at=at, flags=flags)

    moves: dict[str, Way] = {"mremap": lambda at: map_page(0).moved_to(at)}
    ways: dict[str, Way] = {
        "MAP_FIXED": partial(map_page, flags=MAP_FIXED),
        "MAP_FIXED_NOREPLACE": partial(map_page, flags=MAP_FIXED_NOREPLACE),
        "MAP_FIXED, shared": lambda at: live.map(1, actor, shared=True, noreserve=True, at=at, flags=MAP_FIXED),
        "MAP_FIXED of a file": lambda at: file.map(1, noreserve=True, at=at, flags=MAP_FIXED),
        "MAP_FIXED of a private file": lambda at: file.map(1, shared=False, noreserve=True, at=at, flags=MAP_FIXED),
        **(moves if live.kernel_version >= _HUGETLB_MOVES_SINCE else {}),
        _SHMAT: lambda at: segment.attach(actor, address=at),
    }
    return ways, map_page


def _of_other_pages(live: Live, actor: Actor) -> tuple[Mapping[str, Way], Way]:
    file = actor.call("memfd_create", "low", 0)
    actor.call("ftruncate", file, live.base_page)

    def map_page(at: int, flags: int = 0, kind: int = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) -> Memory:
        descriptor = -1 if kind & mmap.MAP_ANONYMOUS else file
        address = actor.mmap(live.base_page, READ_WRITE, kind | flags, descriptor, address=at)
        return Memory(live, actor, address, 1, live.base_page)

    ways: dict[str, Way] = {
        "MAP_FIXED": partial(map_page, flags=MAP_FIXED),
        "MAP_FIXED_NOREPLACE": partial(map_page, flags=MAP_FIXED_NOREPLACE),
        "MAP_FIXED, shared": partial(map_page, flags=MAP_FIXED, kind=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS),
        "MAP_FIXED of a file": partial(map_page, flags=MAP_FIXED, kind=mmap.MAP_SHARED),
        "MAP_FIXED of a private file": partial(map_page, flags=MAP_FIXED, kind=mmap.MAP_PRIVATE),
        "mremap": lambda at: map_page(0).moved_to(at),
    }
    return ways, map_page


class LowAddresses(LiveTest):
    def test_low_addresses(self) -> None:
        self.run_area(LOW)
