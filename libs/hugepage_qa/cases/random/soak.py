"""Races at random, one after the other, for a minute: threads use memory, and drawn rivals do the rest at once.

No model can tell who comes first. What is judged is what holds all the same: threads find what they stored, or what a
rival may have left of it, everything ends, the kernel says nothing, and all is as before when the processes are gone.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from operator import or_
from random import Random

from hugepage_qa.cases.case import Area, Case, Sizes
from hugepage_qa.cases.changed_counters import read_counters
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.kernel_trouble import TAINT, find_trouble
from hugepage_qa.cases.khugepaged_clock import quicken
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.race import at_once
from hugepage_qa.cases.random.rivals import HUGETLB, RIVALS, Arena, Kind
from hugepage_qa.cases.swapped import need_swap
from hugepage_qa.cases.thp_memory import keep_min_free, map_aligned, pmd_size
from hugepage_qa.cases.thp_shared_memory import map_start
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import size_directories
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.process.actor_threads import Came
from hugepage_qa.sizes import MIB

SOAK = Area("soak")
RULE = Rule(
    "soak",
    "whatever is done to memory at the same moment, who uses it finds what was stored there or what the other calls"
    " leave of it, everything ends, and nothing is lost",
    "mmap(2), madvise(2), mremap(2), mprotect(2), fork(2), fallocate(2); mm/hugetlb.c, mm/huge_memory.c",
)

_SECONDS = 50.0
_RACE_SECONDS = 0.7
_MOST_PAGES, _MOST_USERS, _MOST_RIVALS = 3, 3, 4
#: of each node, for all that the processes of a race copy, and for pages that move
_POOL = 12
#: a pool that takes more of the memory would leave too little for the rest
_SHARE_OF_MEMORY = 8
_SWAP = 64 * MIB
#: what is there of all processes together, of which none is left after a race
_OF_PROCESSES = (
    "nr_anon_transparent_hugepages",
    "nr_shmem_hugepages",
    "nr_shmem_pmdmapped",
    "nr_mlock",
    "nr_isolated_anon",
    "nr_isolated_file",
)
_GONE_SECONDS = 20.0


@dataclass(frozen=True)
class Race:
    """A race as it was drawn: ``users`` threads use ``pages`` of a kind, ``parts`` is what rivals act on.

    ``parts`` has the name of each rival, and where its part begins and ends, in 1024ths of the memory.
    """

    kind: Kind
    pages: int
    users: int
    parts: tuple[tuple[str, int, int], ...]

    def __str__(self) -> str:
        parts = ", ".join(f"{name} of {first}-{last}/{_GRAIN}" for name, first, last in self.parts)
        return f"{self.users} threads with {self.pages} pages, {self.kind.value}: {parts}"

    @property
    def may_come(self) -> Came:
        """What the threads may find because of the rivals."""
        return reduce(or_, (RIVALS[name].brings for name, *_part in self.parts), Came.DONE)


_GRAIN = 1024


def draw_race(name: str, offered: dict[Kind, list[str]]) -> Race:
    """Draw the race ``name`` of the rivals that are offered for each kind; the same name draws the same race."""
    random = Random(name)  # noqa: S311
    kind = random.choice(list(offered))
    chosen = random.sample(offered[kind], k=random.randint(1, min(_MOST_RIVALS, len(offered[kind]))))
    if any(RIVALS[one].moves for one in chosen):
        # a mapping that others have cut is not moved whole
        chosen = [one for one in chosen if not RIVALS[one].cuts]
    chosen.sort(key=lambda one: RIVALS[one].last)
    parts = []
    for one in chosen:
        first, last = sorted((random.randint(0, _GRAIN), random.randint(0, _GRAIN)))
        parts.append((one, first, last))
    return Race(kind, random.randint(1, _MOST_PAGES), random.randint(1, _MOST_USERS), tuple(parts))


def soak_case(seed: int, seconds: float = _SECONDS) -> Case:
    """Return the case of the races that ``seed`` draws: a minute of them by default, and one at least."""
    return Case(str(seed), RULE, lambda live: _Soak(live).run(seed, seconds), pages=0, nodes=1, sizes=Sizes.ONCE)


class _Soak:
    """Races on one machine: what it can do of them, and what there was before."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._pool = self._fill_pool()
        self._debugfs = self._set_up_transparent()
        self._offered = {kind: names for kind, names in self._offer() if names}
        if not self._offered:
            raise CannotRun("neither hugetlb pages that are small enough for a race nor transparent huge pages")

    def _fill_pool(self) -> int:
        """Return how many pages of the default size the pool has for races, 0 where they are too large for any."""
        live = self._live
        pages = _POOL * max(len(live.nodes), 1)
        if not live.has_pool or live.is_gigantic or pages * live.size > live.memory_total // _SHARE_OF_MEMORY:
            return 0
        if not live.nodes:
            live.reserve(pages)
        for node in live.nodes:
            live.reserve(_POOL, node)
        return pages

    def _set_up_transparent(self) -> str | None:
        """Have memory of all sizes get huge pages, and return where debugfs is, None where it cannot be mounted."""
        live = self._live
        if live.host.read(f"{DIRECTORY}/hpage_pmd_size") is None:
            return None
        keep_min_free(live)
        for name, value in (("enabled", "always"), ("defrag", "always"), ("shmem_enabled", "advise")):
            live.set_knob_if_there(f"{DIRECTORY}/{name}", value)
        for path in size_directories(live.host, DIRECTORY).values():
            for name in ("enabled", "shmem_enabled"):
                live.set_knob_if_there(f"{path}/{name}", "inherit")
        quicken(live)
        with suppress(CannotRun):
            need_swap(live, _SWAP)
        with suppress(CannotRun):
            return live.mount_interface("debugfs")
        return None

    def _offer(self) -> Iterator[tuple[Kind, list[str]]]:
        """Yield each kind of memory that there is, and the rivals that this kernel can bear."""
        version, architecture = self._live.kernel_version, self._live.host.architecture
        has_transparent = self._live.host.read(f"{DIRECTORY}/hpage_pmd_size") is not None
        has_shared = self._live.host.read(f"{DIRECTORY}/shmem_enabled") is not None
        for kind in Kind:
            if (kind in HUGETLB and not self._pool) or (kind not in HUGETLB and not has_transparent):
                continue
            if kind is Kind.SHARED and not has_shared:
                continue
            yield (
                kind,
                [
                    name
                    for name, rival in RIVALS.items()
                    if kind in rival.kinds
                    and rival.is_bearable(version, architecture)
                    and (name != "split" or self._debugfs is not None)
                ],
            )

    def run(self, seed: int, seconds: float) -> None:
        """Run races until the time is over, or one goes wrong."""
        live, taint = self._live, self._live.host.read(TAINT)
        before = read_counters(live)
        end = live.host.clock() + seconds
        number = 0
        while not live.differences and (number == 0 or live.host.clock() < end):
            number += 1
            race = draw_race(f"{seed}/{number}", self._offered)
            with live.about(f"race {number} of seed {seed}, {race}"):
                self._run(race)
                self._expect_nothing_left(before)
                live.differences += find_trouble(live, live.host, taint)
        live.notes.append(f"{number} races")

    def _run(self, race: Race) -> None:
        live = self._live
        memory, descriptor = self._map(race)
        with at_once(live, memory.actor, _RACE_SECONDS) as threads:
            for _user in range(race.users):
                threads.use(memory, race.may_come)
            for name, first, last in race.parts:
                grain = live.size if race.kind in HUGETLB else live.base_page
                start, stop = (memory.length * part // _GRAIN // grain * grain for part in (first, last))
                length = max(stop - start, grain)
                start = min(start, memory.length - length)
                arena = Arena(
                    live, threads, race.kind, memory, descriptor, memory.address + start, length, self._debugfs
                )
                RIVALS[name].act(arena)
        memory.actor.end()

    def _map(self, race: Race) -> tuple[Memory, int]:
        """Map the memory, and return it with the descriptor of its file, -1 without one."""
        live = self._live
        match race.kind:
            case Kind.PRIVATE_HUGETLB:
                return live.map(race.pages), -1
            case Kind.SHARED_HUGETLB:
                file = new_memfd(live, pages=race.pages)
                # a touch while the file becomes shorter may spoil reservations (truncation-passes-over-a-fault)
                is_truncated = any(name == "truncate" for name, *_part in race.parts)
                return file.map(race.pages, noreserve=is_truncated), file.descriptor
            case Kind.ANONYMOUS:
                return map_aligned(live, race.pages, pmd_size(live), advice=MADV_HUGEPAGE), -1
            case Kind.SHARED:
                actor = live.actor()
                descriptor = actor.call("memfd_create", "hugepage-qa", 0)
                memory = map_start(live, actor, descriptor, race.pages)
                memory.advise(MADV_HUGEPAGE)
                return memory, descriptor

    def _expect_nothing_left(self, before: dict[str, int]) -> None:
        """Expect pool and counters to be as before: no process of the race is left."""
        live = self._live
        if self._pool:
            live.set_nr(self._pool)
            live.expect_pool(nr=self._pool, free=self._pool)
        if live.host.has_others:
            return
        names = [name for name in _OF_PROCESSES if name in before]

        def are_gone() -> bool:
            now = read_counters(live)
            return all(now[name] == before[name] for name in names)

        live.host.wait_until(are_gone, _GONE_SECONDS)
        now = read_counters(live)
        for name in names:
            live.expect(name, before[name], now[name])
