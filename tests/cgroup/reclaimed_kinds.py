"""Which memory of a group is reclaimed on request: with a swappiness of 0 files alone, with max none of them."""

import errno
from dataclasses import dataclass

from hugepage_qa.cases.cache_counts import cached_pages
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup
from hugepage_qa.cases.fragmentation import compact_if_short
from hugepage_qa.cases.group_memory import IN_SWAP, file_on_a_disk, need_exact_charges, swapping_groups
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.swapped import need_swap, zswap_knob
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import expect_all_huge, give_on_advice
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused
from hugepage_qa.version import KernelVersion

KINDS = Area("cgroup/reclaimed-kinds", sizes=Sizes.ONCE)

_SOURCE = "Documentation/admin-guide/cgroup-v2.rst memory.reclaim swappiness"
#: Debian's 6.1 has no swappiness= there, its 6.12 has
_SINCE = "6.12"
_SWAPPINESS, _RECLAIM, _SWAP_LIMIT = "proc/sys/vm/swappiness", "memory.reclaim", "memory.swap.max"
#: huge pages of each kind
_PAGES = 3
_SECONDS = 60.0
#: swappiness=max
_MAX_SINCE = KernelVersion(6, 16)
#: before, files were reclaimed with swappiness=max where nothing can go to swap; Linux 7.3 leaves them
_MAX_WITHOUT_SWAP_SINCE = KernelVersion(7, 3)

_FILE, _MEMORY = "of a file", "of processes"


@dataclass(frozen=True)
class Request:
    """The swappiness of the machine and the one that is given, and which kinds of memory go and stay then."""

    of_machine: int
    given: str | None
    goes: tuple[str, ...]
    stays: tuple[str, ...]
    may_swap: bool = True
    since: KernelVersion | None = None

    @property
    def words(self) -> str:
        """What is written behind the number of bytes."""
        return "" if self.given is None else f" swappiness={self.given}"


_REQUESTS = (
    Request(100, "0", (_FILE,), (_MEMORY,)),
    Request(200, "0", (_FILE,), (_MEMORY,)),
    Request(0, None, (_FILE,), (_MEMORY,)),
    Request(0, "1", (_MEMORY, _FILE), ()),
    Request(0, "200", (_MEMORY,), ()),
    Request(0, "max", (_MEMORY,), (_FILE,), since=_MAX_SINCE),
    Request(100, "200", (_FILE,), (_MEMORY,), may_swap=False),
    Request(100, "max", (), (_MEMORY, _FILE), may_swap=False, since=_MAX_WITHOUT_SWAP_SINCE),
)
_INVALID = ("201", "-1", "", "x", "0x", "1.5", "maximum", "0 x", "0 swappiness=201", "100 200")


class Contents:
    """What a process of a group has: huge and base pages, private and shared, and a file that it has read."""

    def __init__(self, live: Live, group: ControlGroup) -> None:
        self._live = live
        self._group = group
        size = pmd_size(live)
        self.file = file_on_a_disk(live, _PAGES * size)
        self._actor = self.file.actor.fork()
        group.add(self._actor)
        advices = ((MADV_HUGEPAGE, False), (MADV_HUGEPAGE, True), (MADV_NOHUGEPAGE, True), (MADV_NOHUGEPAGE, False))
        self._memories = [
            map_aligned(live, _PAGES, size, actor=self._actor, shared=shared, advice=advice)
            for advice, shared in advices
        ]
        for memory in self._memories[:2]:
            memory.fill()
            expect_all_huge(live, memory)
        self._memories[2].fill()
        self._read_the_file()

    @property
    def length(self) -> int:
        """The bytes of memory of the process."""
        return sum(memory.length for memory in self._memories)

    @property
    def _buffer(self) -> Memory:
        """The private base pages, which the file was read to: it has the words that memory is filled with."""
        return self._memories[-1]

    def of(self, kind: str) -> int:
        """Return how many bytes there are of one kind."""
        return self._buffer.length if kind == _FILE else self.length

    def gone(self, kind: str) -> int:
        """Return how many bytes of one kind are in the page cache no more, or in swap."""
        if kind == _MEMORY:
            return self._group.read_number(IN_SWAP)
        cached = cached_pages(self._live, self._actor, self.file.descriptor, 0, self._buffer.length).cached
        return self._buffer.length - cached * self._live.base_page

    def expect_all(self) -> None:
        """Expect all of it to hold what it held, and end the process."""
        for memory in self._memories:
            memory.expect_filled()
        self._read_the_file()
        self._buffer.expect_filled()
        for actor in (self._actor, self.file.actor):
            actor.end()

    def _read_the_file(self) -> None:
        for page in range(_PAGES):
            words = self.file.descriptor, self._buffer.at(page), self._buffer.size, page * self._buffer.size
            self._live.expect("bytes read", self._buffer.size, self._actor.call("pread64", *words))


@KINDS.case(
    "memory.reclaim of a group, or of the one above it, with swappiness=0 has files reclaimed and nothing swapped out,"
    " with max the other way round, and with a number between them memory of processes, too, huge pages and base"
    " pages, private and shared, whatever vm.swappiness is, which counts where none is given; where nothing may go to"
    " swap no memory of processes goes; it is EAGAIN where that is less than was asked for; nothing is lost",
    f"{_SOURCE}; mm/vmscan.c sc_swappiness(), get_scan_count(), isolate_folios()",
    since=_SINCE,
)
def each_swappiness(live: Live) -> None:
    let_nobody_else_act(live)
    need_exact_charges(live)
    need_swap(live, 8 * _PAGES * pmd_size(live))
    live.set_knob_if_there(zswap_knob("enabled"), "N")
    give_on_advice(live)
    compact_if_short(live, pmd_size(live), 2 * _PAGES)
    below, above = swapping_groups(live)
    for number, request in enumerate(_REQUESTS):
        if request.since and live.kernel_version < request.since:
            continue
        swappiness = "nothing" if request.given is None else request.given
        about = f"{swappiness} given, vm.swappiness {request.of_machine}, " + ("swap" if request.may_swap else "none")
        with live.about(about):
            live.set_knob(_SWAPPINESS, str(request.of_machine))
            below.write(_SWAP_LIMIT, "max" if request.may_swap else "0")
            _expect_reclaimed(live, request, (below, above)[number % 2], Contents(live, below))


def _expect_reclaimed(live: Live, request: Request, asked: ControlGroup, contents: Contents) -> None:
    def left() -> int:
        more = sum(contents.of(kind) - contents.gone(kind) for kind in request.goes)
        try:
            asked.write(_RECLAIM, f"{more}{request.words}")
        except Refused as refusal:
            # what is written to swap in that moment is not free yet
            if refusal.errno != errno.EAGAIN:
                raise
        return max((contents.of(kind) - contents.gone(kind) for kind in request.goes), default=0)

    # what else the process has, and what others have taken in that moment, is less
    size = pmd_size(live)
    most = live.host.last_look(left, lambda now: now < size, _SECONDS)
    live.expect(
        f"whether memory {' and '.join(request.goes) or 'of any kind'} is reclaimed, {most} bytes not",
        True,
        most < size,
    )
    live.expect_errno(errno.EAGAIN, asked.write, _RECLAIM, f"{3 * contents.length}{request.words}")
    for kind in request.stays:
        gone = contents.gone(kind)
        live.expect(f"whether memory {kind} stays, {gone} bytes do not", True, gone < size)
    contents.expect_all()


@KINDS.case(
    "a swappiness of memory.reclaim, and of reclaim of a node, that is none from 0 to 200, or another word, is EINVAL,"
    " and one that is, is not; max is since Linux 6.16",
    f"{_SOURCE}; Documentation/ABI/stable/sysfs-devices-node reclaim; mm/vmscan.c user_proactive_reclaim()",
    since=_SINCE,
)
def arguments(live: Live) -> None:
    group, _above = swapping_groups(live)
    files = [f"{group.path}/{_RECLAIM}"]
    for number in live.nodes[:1]:
        node = f"sys/devices/system/node/node{number}"
        if "reclaim" in live.host.names(node):  # since Linux 6.17
            files.append(f"{node}/reclaim")
    valid = ["0", "1", "60", "100", "200", *(["max"] if live.kernel_version >= _MAX_SINCE else ())]
    for file in files:
        for given in _INVALID:
            with live.about(f"{file}: {given!r}"):
                live.expect_errno(errno.EINVAL, live.host.write, file, f"0 swappiness={given}")
        for text in ("0 x", "0 swappiness", "swappiness=0", "0 swappines=0", "0 Swappiness=0"):
            with live.about(f"{file}: {text!r}"):
                live.expect_errno(errno.EINVAL, live.host.write, file, text)
        for given in valid:
            live.host.write(file, f"0 swappiness={given}")


class CgroupReclaimedKinds(LiveTest):
    def test_reclaimed_kinds(self) -> None:
        self.run_area(KINDS)
