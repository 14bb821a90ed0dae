"""Where random programs run: the machine as the model knows it at their start, and what they may take of it."""

import struct
from collections.abc import Sequence
from contextlib import ExitStack

from hugepage_qa.actor.process import Actor
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.nodes import read_nodes
from hugepage_qa.live.control_group import ControlGroup, Version, new_group
from hugepage_qa.live.live import Live
from hugepage_qa.live.memory_policy import Mode, set_policy
from hugepage_qa.live.outcomes import CannotRun
from hugepage_qa.live.pool_view import PoolView, read_pool_view
from hugepage_qa.live.random_pool.scale import FIRST_PROCESS, Scale
from hugepage_qa.live.random_pool.step import PoolRun
from hugepage_qa.live.random_pool.target import RealPools
from hugepage_qa.model.hugetlb_pool.end import settings_of
from hugepage_qa.model.hugetlb_pool.kernel import PoolKernel
from hugepage_qa.model.hugetlb_pool.known import pool_issues_of
from hugepage_qa.model.hugetlb_pool.machine import PoolMachine
from hugepage_qa.model.hugetlb_pool.operation import Operation
from hugepage_qa.model.hugetlb_pool.pool import PageSize
from hugepage_qa.model.hugetlb_pool.setup import MakeGroup, SetCount
from hugepage_qa.model.rules import HUGETLB_DOC, Rule
from hugepage_qa.sizes import GIB, format_size

AS_MODELLED = Rule(
    "pools-as-modelled",
    "pools, mounts, control groups, processes and pages are after every operation what the model says",
    f"{HUGETLB_DOC}; mm/hugetlb.c, fs/hugetlbfs/inode.c, mm/hugetlb_cgroup.c",
)
#: what a program takes of the memory, as far as that is enough for two pages
_MEMORY = 4 * GIB
_MOST_PAGES = 10
_FEWEST_PAGES = 2
_GROUPS = 2
_BITS = 64


class PoolsChanged(Exception):
    """The pools are not what they were before the first program: a program has left something, or others use them."""


class PoolSurroundings:
    """What random programs with the pages of ``live`` run in, up to the end of ``stack``.

    Where there are several nodes with memory all is bound to the first of them: which node a page comes from, and so
    which counters change, would be open otherwise.
    """

    def __init__(self, live: Live, stack: ExitStack) -> None:
        """Find out what there is. Raises CannotRun where memory is short, Failed where it is not and yet not had."""
        self._live = live
        self._host = live.host
        nodes = live.nodes
        self._node = nodes[0] if len(nodes) > 1 else None
        self._mmu = live.mmu
        self._parent = _group(live, stack)
        self.scale = Scale(live.size, *_pages(live, self._node), groups=_GROUPS if self._parent else 0)
        self._before = read_pool_view(live.host)

    def start(self) -> PoolRun:
        """Begin a program. Raises CannotRun where it would be open which pages it gets, and PoolsChanged."""
        view = read_pool_view(self._host)
        if (view.pools, view.overcommit) != (self._before.pools, self._before.overcommit):
            raise PoolsChanged(f"{view.pools[self._live.size]}; before: {self._before.pools[self._live.size]}")
        self._require_one_node(view)
        machine = self._model(view)
        before = {size: pool.counters() for size, pool in machine.pools.items()}
        settings = settings_of(before, self._node)
        target = RealPools(self._host, self._anchor(), FIRST_PROCESS, self._parent, settings)
        return PoolRun([machine], target, tuple(view.nodes), self._node, before)

    def require_room_for(self, operations: Sequence[Operation]) -> None:
        """Raise InputError for a program that this machine has not the pages, page sizes or groups for."""
        sizes = {size for one in operations if (size := getattr(one, "page_size", 0))}
        if missing := sizes - set(self._live.sizes):
            raise InputError(f"the program uses pages of {format_size(missing.pop())}: this machine has none")
        most = max((one.count for one in operations if isinstance(one, SetCount)), default=0)
        if most > self.scale.pool:
            raise InputError(f"the program reserves {most} pages, memory is there for {self.scale.pool}")
        if self._parent is None and any(isinstance(one, MakeGroup) for one in operations):
            raise InputError("the program makes control groups: this machine has no hierarchy with hugetlb")

    def _model(self, view: PoolView) -> PoolMachine:
        """Return the machine as it is: what others use and reserve stays so."""
        version = self._live.kernel_version
        kernel = PoolKernel(version, (issue.quirk for issue in pool_issues_of(version)))
        sizes = [self._page(size) for size in view.pools]
        machine = PoolMachine(kernel, sizes, home=next(iter(view.nodes), None) if self._node is None else self._node)
        for size, found in view.pools.items():
            pool = machine.pools[size]
            pool.nr, pool.free, pool.resv, pool.surplus = found.nr, found.free, found.resv, found.surplus
            pool.overcommit = view.overcommit[size]
        machine.start_process(FIRST_PROCESS)
        return machine

    def _page(self, size: int) -> PageSize:
        mmu = self._mmu
        return PageSize(size, mmu.is_gigantic(size), mmu.has_pmd_entries(size), mmu.table(size))

    def _require_one_node(self, view: PoolView) -> None:
        others = [node for node in view.nodes if self._node not in (None, node)]
        if any(pool.nr for node in others for pool in view.nodes[node].values()):
            raise CannotRun(f"a node other than {self._node} has huge pages: where pages come from is open")

    def _anchor(self) -> Actor:
        actor = self._host.start_actor()
        if self._node is not None:
            set_policy(actor, Mode.BIND, [self._node])
            # before Linux 6.6 surplus pages for a reservation come from the node of the processor
            cpus = read_nodes(self._host).each[self._node].cpus
            mask = sum(1 << cpu for cpu in cpus)
            words = mask.bit_length() // _BITS + 1
            parts = (mask >> (_BITS * word) & (1 << _BITS) - 1 for word in range(words))
            actor.call("sched_setaffinity", 0, words * _BITS // 8, struct.pack(f"@{words}Q", *parts))
        return actor


def _group(live: Live, stack: ExitStack) -> ControlGroup | None:
    """Return a group to make groups in, in the hierarchy that has the controller; None where none can have it."""
    for version in (Version.TWO, Version.ONE):
        try:
            with ExitStack() as attempt:
                scope = Live(live.host, live.size, AS_MODELLED, attempt)
                scope.differences = live.differences
                group = new_group(scope, "hugetlb", version)
                stack.push(attempt.pop_all().__exit__)
                return group
        except CannotRun:
            continue
    return None


def _pages(live: Live, node: int | None) -> tuple[int, int]:
    """Return how many pages a pool and a file may have, for which there is memory.

    Raises CannotRun where it is short or fragmented, Failed where it is not and yet not had.
    """
    pages = max(_FEWEST_PAGES, min(_MOST_PAGES, _MEMORY // live.size))
    while True:
        try:
            live.reserve(pages, node)
            break
        except CannotRun:
            if pages == _FEWEST_PAGES:
                raise
            pages -= 1
    live.set_nr(0, node)
    return pages, max(_FEWEST_PAGES, pages // 2)
