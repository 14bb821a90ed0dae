"""Limits of memory of groups of version 1: transparent huge pages that they refuse, and what is counted of that."""

import errno
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup, Version, keeping_hierarchy, new_group
from hugepage_qa.cases.fragmentation import compact_if_short
from hugepage_qa.cases.group_memory import actor_in, expect_about, file_on_a_disk, need_exact_charges
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.thp_memory import anon_huge_pages, map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import fill_in_huge_pages, give_on_advice
from hugepage_qa.cases.thp_shared_memory import map_start, mount_tmpfs
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused
from hugepage_qa.version import KernelVersion

# as the other areas of this hierarchy
LIMITS = Area("cgroup/limits-of-version-1", sizes=Sizes.ONCE, around=keeping_hierarchy("memory"), first=True)

DOC = "Documentation/admin-guide/cgroup-v1/memory.rst"
#: before, a group has what is below it with memory.use_hierarchy alone
_SINCE = "5.11"
_MEMORY, _WITH_SWAP = "memory", "memory.memsw"
_USED, _LIMIT, _HIGHEST, _REFUSALS = "usage_in_bytes", "limit_in_bytes", "max_usage_in_bytes", "failcnt"
_SOURCES = "mm/memcontrol.c mem_cgroup_resize_max(), mem_cgroup_reset(); mm/page_counter.c page_counter_try_charge()"
#: 6.12.117 takes what is written and keeps nothing, as its document says, and 6.18.44 still keeps it
_SOFT_LIMIT_GIVEN_UP = KernelVersion(6, 12)
_NO_LIMIT, _ALL_MEMORY = "-1", 1 << 56
_SOFT_LIMIT, _RECLAIM, _HIERARCHY = "memory.soft_limit_in_bytes", "memory.force_empty", "memory.use_hierarchy"
_PAGES = 3

#: maps so many huge pages of a process, of which none is there yet
_Map = Callable[[Actor, int], Memory]


@dataclass(frozen=True)
class _Limited:
    """Groups, the one above first, the one that has a limit, and whether that is of memory alone or with swap."""

    groups: Sequence[ControlGroup]
    limited: ControlGroup
    kind: str

    def counted(self) -> list[dict[str, int]]:
        """Return how many charges were refused by the limits of each group, by kind."""
        return [
            {kind: group.read_number(f"{kind}.{_REFUSALS}") for kind in _kinds(self.limited)} for group in self.groups
        ]

    def limit(self, amount: int) -> None:
        """Give the group its limit. Raises Refused."""
        for kind in (_MEMORY, self.kind):
            self.limited.write(f"{kind}.{_LIMIT}", str(amount))

    def lift(self) -> None:
        """Take the limit away. Raises Refused."""
        for kind in (self.kind, _MEMORY):
            self.limited.write(f"{kind}.{_LIMIT}", _NO_LIMIT)


@LIMITS.case(
    "a limit below what is used and cannot be reclaimed is EBUSY and changes nothing; a huge page that a limit of"
    " memory has no room for, of the group or of the one above, is base pages, no more than that is used, and the limit"
    " that refused it counts that, and no other; the most that was used stays until it is reset",
    f"{DOC} 2.5, 3, 5.1, 6; {_SOURCES}",
    since=_SINCE,
)
def huge_pages_refused(live: Live) -> None:
    _expect_huge_pages_refused(live, _group(live), _MEMORY)


@LIMITS.case(
    "a huge page that a limit of memory and swap has no room for, of the group or of the one above, is base pages, no"
    " more than that is used, and that limit counts it, and none of memory; the most that was used stays until it is"
    " reset",
    f"{DOC} 2.4, 2.5, 3, 5.1, 6; {_SOURCES}",
    since=_SINCE,
)
def huge_pages_refused_with_swap(live: Live) -> None:
    group = _group(live)
    if _WITH_SWAP not in _kinds(group):
        raise CannotRun("this kernel does not count memory and swap together, or was booted with swapaccount=0")
    _expect_huge_pages_refused(live, group, _WITH_SWAP)


@LIMITS.case(
    "limits are kept in whole base pages, and none is beyond all memory; that of memory and swap is never below that of"
    " memory; the root has none; groups are always part of those above; a soft limit takes nothing at once",
    f"{DOC} 3, 6, 7; mm/memcontrol.c mem_cgroup_write(), mem_cgroup_resize_max(), mem_cgroup_hierarchy_write()",
    since=_SINCE,
)
def what_is_written(live: Live) -> None:
    group, size = _group(live), pmd_size(live)
    soft = [_SOFT_LIMIT] if _has_soft_limit(live, group) else []
    memory = _filled(live, _memory(live)["private"](actor_in(live, group), _PAGES))
    # the limit of memory first, which that with swap may not be below
    for name in [f"{kind}.{_LIMIT}" for kind in _kinds(group)] + soft:
        with live.about(name):
            live.expect("whether none is beyond all memory", True, group.read_number(name) > _ALL_MEMORY)
            for text, bytes_of_it in (
                (str(6 * size), 6 * size),
                (f"{5 * size >> 10}K", 5 * size),
                (str(4 * size + live.base_page - 1), 4 * size),
            ):
                group.write(name, text)
                live.expect(f"after {text}", bytes_of_it, group.read_number(name))
            for text in ("x", "1x", "-2", "1 2", "max"):
                live.expect_errno(errno.EINVAL, group.write, name, text)
            live.expect("after what is no number", 4 * size, group.read_number(name))
    if len(_kinds(group)) > 1:
        for name, pages in ((f"{_WITH_SWAP}.{_LIMIT}", 4 * size - live.base_page), (f"{_MEMORY}.{_LIMIT}", 5 * size)):
            live.expect_errno(errno.EINVAL, group.write, name, str(pages))
            live.expect(f"{name} that was refused", 4 * size, group.read_number(name))
    root = group.path.rpartition("/")[0]
    for name in (f"{_MEMORY}.{_LIMIT}", _RECLAIM):
        live.expect_errno(errno.EINVAL, live.host.write, f"{root}/{name}", str(1 << 50))
    live.expect(_HIERARCHY, 1, group.read_number(_HIERARCHY))
    group.write(_HIERARCHY, "1")
    live.expect_errno(errno.EINVAL, group.write, _HIERARCHY, "0")
    if soft:
        group.write(_SOFT_LIMIT, "0")
    expect_about(live, group, f"{_MEMORY}.{_USED}", _PAGES)
    live.expect("bytes in huge pages", memory.length, mapped_huge(memory))
    memory.expect_filled()


@LIMITS.case(
    "memory.force_empty leaves a group what cannot be reclaimed, its locked huge pages, and takes from it what is on a"
    " disk: no more is used, and it is read from there",
    f"{DOC} 5.1; mm/memcontrol.c mem_cgroup_force_empty()",
    since=_SINCE,
)
def emptied(live: Live) -> None:
    group, size = _group(live), pmd_size(live)
    file = file_on_a_disk(live, 2 * size)
    reader = file.actor.fork()
    group.add(reader)
    memory = _filled(live, _memory(live)["private"](actor_in(live, group), _PAGES))
    words = reader.mmap(2 * size, READ_WRITE, mmap.MAP_SHARED, file.descriptor)
    live.expect("words of the file that are others", 0, reader.check(words, 2 * size, WORD, 1))
    expect_about(live, group, f"{_MEMORY}.{_USED}", _PAGES + 2)

    def used() -> int:
        # somebody else may have a hold of a folio for a moment
        group.write(_RECLAIM, "0")
        return group.read_number(f"{_MEMORY}.{_USED}") // size

    live.expect("huge pages that are used when it was emptied", _PAGES, live.host.last_look(used, _PAGES.__eq__))
    live.expect("bytes in huge pages", memory.length, mapped_huge(memory))
    memory.expect_filled()
    live.expect("words of the file that changed", 0, reader.check(words, 2 * size, WORD, 1))
    expect_about(live, group, f"{_MEMORY}.{_USED}", _PAGES + 2)


def _expect_huge_pages_refused(live: Live, above: ControlGroup, kind: str) -> None:
    group = above.child("below")
    expected, found = dict[str, list[set[str]]](), dict[str, list[set[str]]]()
    for name, map_pages in _memory(live).items():
        actor = actor_in(live, group)
        memory = _filled(live, map_pages(actor, _PAGES))
        for limited in (group, above):
            row = f"{name}, of the {'group' if limited is group else 'one above'}"
            expected[row] = [{kind} if each is limited else set() for each in (above, group)]
            with live.about(row):
                setting = _Limited((above, group), limited, kind)
                _expect_no_limit_below(live, setting)
                found[row] = _expect_limited(live, setting, map_pages, actor)
                live.expect("bytes in huge pages", memory.length, mapped_huge(memory))
                memory.expect_filled()
        actor.end()
        for each in (group, above):
            expect_about(live, each, f"{_MEMORY}.{_USED}", 0)
    # at last: a known bug ends the case
    none = {row: [set[str](), set[str]()] for row in expected}
    known = {Quirk.REFUSALS_WITH_SWAP_UNCOUNTED: none} if kind == _WITH_SWAP else None
    live.expect("limits that have refused any", expected, found, known)


def _expect_no_limit_below(live: Live, setting: _Limited) -> None:
    """Expect a limit of memory that has no room for all that is used to be refused, and to change nothing."""
    before = setting.counted()
    live.expect_errno(errno.EBUSY, setting.limited.write, f"{_MEMORY}.{_LIMIT}", str((_PAGES - 1) * pmd_size(live)))
    found = setting.limited.read_number(f"{_MEMORY}.{_LIMIT}")
    live.expect("whether there is no limit still", True, found > _ALL_MEMORY)
    for group in setting.groups:
        expect_about(live, group, f"{_MEMORY}.{_USED}", _PAGES)
    live.expect("refused charges", before, setting.counted())


def _expect_limited(live: Live, setting: _Limited, map_pages: _Map, actor: Actor) -> list[set[str]]:
    """Expect a limit to have room for one huge page more, and to refuse the next one.

    Returns which limits of each group have counted a refusal since.
    """
    size, limited = pmd_size(live), setting.limited
    limit = (_PAGES + 1) * size + size // 2
    names = [f"{kind}.{name}" for kind in _kinds(limited) for name in (_HIGHEST, _REFUSALS)]
    for group in setting.groups:
        for name in names:
            group.write(name, "0")
    setting.limit(limit)
    before = setting.counted()
    more = map_pages(actor, 2)
    _filled(live, more.part(0))
    live.expect("refused charges of what there is room for", before, setting.counted())
    more.touch(1)
    live.expect("bytes that are had in huge pages", size, mapped_huge(more))
    live.expect("bytes that are had", size + live.base_page, sum(found.rss for found in more.mappings()))
    refused = [
        {name for name, count in now.items() if count > was[name]}
        for now, was in zip(setting.counted(), before, strict=True)
    ]
    for name in (_USED, _HIGHEST):
        found = limited.read_number(f"{setting.kind}.{name}")
        live.expect(f"whether {name} is within the limit", True, (_PAGES + 1) * size <= found <= limit)
    highest = [group.read_number(f"{_MEMORY}.{_HIGHEST}") for group in setting.groups]
    _give_back(more, shared=mapped_huge(more) != anon_huge_pages(more))
    live.expect(
        "the most that was used when it is given back",
        highest,
        [group.read_number(f"{_MEMORY}.{_HIGHEST}") for group in setting.groups],
    )
    for group in setting.groups:
        for name in names:
            group.write(name, "0")
        for kind in _kinds(group):
            live.expect(f"{kind}.{_REFUSALS} that was reset", 0, group.read_number(f"{kind}.{_REFUSALS}"))
            for name in (_USED, _HIGHEST):
                expect_about(live, group, f"{kind}.{name}", _PAGES)
    setting.lift()
    return refused


def _kinds(group: ControlGroup) -> list[str]:
    """Return what has limits: memory, and memory with swap, which a kernel may not count."""
    return [_MEMORY] + ([_WITH_SWAP] if group.read(f"{_WITH_SWAP}.{_USED}") is not None else [])


def _has_soft_limit(live: Live, group: ControlGroup) -> bool:
    """Tell whether a soft limit is kept: kernels for real time refuse it, and later ones may have given it up."""
    if group.read(_SOFT_LIMIT) is None:
        return False
    try:
        group.write(_SOFT_LIMIT, "0")
    except Refused as refusal:
        if refusal.errno != errno.EOPNOTSUPP:
            raise
        return False
    if live.kernel_version >= _SOFT_LIMIT_GIVEN_UP and group.read_number(_SOFT_LIMIT) > _ALL_MEMORY:
        live.expect_errno(errno.EINVAL, group.write, _SOFT_LIMIT, "x")
        return False
    group.write(_SOFT_LIMIT, _NO_LIMIT)
    return True


def _group(live: Live) -> ControlGroup:
    """Return a group. Raises CannotRun where a CPU may be charged for too much that nobody has."""
    need_exact_charges(live)
    return new_group(live, "memory", Version.ONE)


def _memory(live: Live) -> dict[str, _Map]:
    """Return what maps memory of each kind, which gets huge pages until the case ends."""
    give_on_advice(live)
    compact_if_short(live, pmd_size(live), _PAGES + 2)
    point = mount_tmpfs(live, "always")

    def of_a_file(actor: Actor, pages: int) -> Memory:
        return map_start(live, actor, live.open(actor, point, live.host.uapi.o_tmpfile | os.O_RDWR), pages)

    def anonymous(actor: Actor, pages: int, *, shared: bool) -> Memory:
        return map_aligned(live, pages, pmd_size(live), shared=shared, actor=actor, advice=MADV_HUGEPAGE)

    return {"private": partial(anonymous, shared=False), "shared": partial(anonymous, shared=True), "tmpfs": of_a_file}


def _filled(live: Live, memory: Memory) -> Memory:
    """Fill memory in huge pages, which nobody reclaims from then on. Raises CannotRun where it is too fragmented."""
    fill_in_huge_pages(live, memory)
    memory.lock()
    return memory


def _give_back(memory: Memory, *, shared: bool) -> None:
    """Give back all of memory, what a file has of it, too."""
    memory.unlock()
    memory.advise(mmap.MADV_REMOVE if shared else mmap.MADV_DONTNEED)
    memory.unmap()


class CgroupLimitsOfVersion1(LiveTest):
    def test_limits_of_version_1(self) -> None:
        self.run_area(LIMITS)
