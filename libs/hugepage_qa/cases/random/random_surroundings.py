"""Where random programs run: the machine as the model knows it at their start, and what they may take of it."""

from collections.abc import Sequence
from contextlib import ExitStack

from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.memory_policy import Mode, run_on, set_policy
from hugepage_qa.cases.pool_view import PoolView, read_pool_view
from hugepage_qa.cases.random.random_drawing import FIRST_PROCESS, Scale
from hugepage_qa.cases.random.random_step import PoolRun
from hugepage_qa.cases.random.random_target import RealPools
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.nodes import read_nodes
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.pool.known_pool_issues import pool_issues_of
from hugepage_qa.oracle.pool.pool_counters import PageSize
from hugepage_qa.oracle.pool.pool_kernel import PoolKernel
from hugepage_qa.oracle.pool.pool_machine import PoolMachine
from hugepage_qa.oracle.pool.pool_operation import Operation
from hugepage_qa.oracle.pool.pool_setup import Demote, MakeGroup, SetCount
from hugepage_qa.oracle.pool.pool_use import settings_of
from hugepage_qa.oracle.rules import HUGETLB_DOC, Rule
from hugepage_qa.process.actor import Actor
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


class PoolsChanged(Exception):
    """The pools are not what they were before the first program: a program has left something, or others use them."""


class CannotReplay(InputError):
    """A saved program is no program for this machine, or uses what it has not made."""


class PoolSurroundings:
    """What random programs with the pages of ``live`` run in, up to the end of ``stack``.

    Where there are several nodes with memory all is bound to one of them: which node a page comes from, and so which
    counters change, would be open otherwise. Nobody can have a page of the others, and no page is surplus: a program
    does the same on every machine.
    """

    def __init__(self, live: Live, stack: ExitStack) -> None:
        """Find out what there is. Raises CannotRun where memory is short, Failed where it is not and yet not had."""
        self._host = live.host
        for size in live.sizes:
            _scope(live, size, stack).absorb_surplus()
        # counts from what is there now
        self._live = _scope(live, live.size, stack)
        self._home = _home(self._live)
        self._node = self._home if live.has_several_nodes else None
        self._mmu = live.mmu
        self._parent = _group(self._live, stack)
        for size in live.sizes:
            self._reserve_other_nodes(_scope(live, size, stack))
        pages = _pages(self._live, self._node)
        self.scale = Scale(live.size, *pages, groups=_GROUPS if self._parent else 0)
        self._before = read_pool_view(live.host)

    def _reserve_other_nodes(self, live: Live) -> None:
        """Reserve what is free on other nodes, which would count for a reservation and not serve a bound process.

        Raises CannotRun where others have reserved it.
        """
        view = read_pool_view(self._host)
        free = sum(pools[live.size].free for node, pools in view.nodes.items() if node != self._home)
        if free > view.pools[live.size].available:
            raise CannotRun(f"others reserve pages, {free} are free beside node {self._home}: which are theirs is open")
        if free:
            live.map(free, shared=True)

    def start(self) -> PoolRun:
        """Begin a program. Raises PoolsChanged."""
        view = read_pool_view(self._host)
        now, before = ((one.pools, one.nodes, one.overcommit) for one in (view, self._before))
        if now != before:
            raise PoolsChanged(f"{view.pools[self._live.size]}; before: {self._before.pools[self._live.size]}")
        machine = self._model(view)
        counters = {size: pool.counters() for size, pool in machine.pools.items()}
        settings = settings_of(counters, self._node)
        target = RealPools(self._host, self._anchor(), FIRST_PROCESS, self._parent, settings)
        # a node of CPUs alone has no pools
        nodes = tuple(node for node, pools in view.nodes.items() if pools)
        return PoolRun([machine], target, nodes, self._node, counters)

    def require_room_for(self, operations: Sequence[Operation]) -> None:
        """Raise CannotReplay for a program that this machine has not the pages, page sizes or groups for."""
        sizes = {size for one in operations if (size := getattr(one, "page_size", 0))}
        if missing := sizes - set(self._live.sizes):
            raise CannotReplay(f"the program uses pages of {format_size(missing.pop())}: this machine has none")
        most = max((one.count for one in operations if isinstance(one, SetCount)), default=0)
        if most > self.scale.pool:
            raise CannotReplay(f"the program reserves {most} pages, memory is there for {self.scale.pool}")
        machine = self._model(read_pool_view(self._host))
        if any(isinstance(one, Demote) and not machine.can_demote(one.page_size) for one in operations):
            raise CannotReplay("the program demotes pages: this machine cannot, or has free ones on other nodes")
        if self._parent is None and any(isinstance(one, MakeGroup) for one in operations):
            raise CannotReplay("the program makes control groups: this machine has no hierarchy with hugetlb")

    def _model(self, view: PoolView) -> PoolMachine:
        """Return the machine as it is: what others use and reserve stays so."""
        version = self._live.kernel_version
        kernel = PoolKernel(version, (issue.quirk for issue in pool_issues_of(version)))
        sizes = [self._page(size) for size in view.pools]
        machine = PoolMachine(kernel, sizes, self._home, _elsewhere(view, self._home))
        for size, found in view.pools.items():
            pool, here = machine.pools[size], found if self._home is None else view.nodes[self._home][size]
            pool.nr, pool.free, pool.surplus = here.nr, here.free, here.surplus
            pool.resv = found.resv - (found.free - here.free)
            pool.overcommit = view.overcommit[size]
        machine.start_process(FIRST_PROCESS)
        return machine

    def _page(self, size: int) -> PageSize:
        mmu = self._mmu
        has_smaller = size > min(self._live.sizes)
        has_demote = has_smaller and self._host.read(self._live.pool_file("demote_size", size=size)) is not None
        return PageSize(size, mmu.is_gigantic(size), mmu.may_seem_shared(size), mmu.table(size), has_demote)

    def _anchor(self) -> Actor:
        actor = self._host.start_actor()
        if self._node is not None:
            set_policy(actor, Mode.BIND, [self._node])
            # before Linux 6.6 surplus pages for a reservation come from the node of the processor, bound or not
            run_on(actor, read_nodes(self._host).each[self._node].cpus)
        return actor


def _scope(live: Live, size: int, stack: ExitStack) -> Live:
    """Return the pool of ``size`` as it is now; what differs there counts as of ``live``."""
    scope = Live(live.host, size, AS_MODELLED, stack)
    scope.differences, scope.problems = live.differences, live.problems
    return scope


def _home(live: Live) -> int | None:
    """Return the node that programs run on: with memory and CPUs where others have memory, too.

    Raises CannotRun where none has both.
    """
    first, *others = live.nodes or (None,)
    if not others:
        return first
    each = read_nodes(live.host).each
    with_both = [node for node in live.nodes if each[node].cpus]
    if not with_both:
        raise CannotRun("no node has both memory and CPUs: where pages come from is open")
    return with_both[0]


def _elsewhere(view: PoolView, home: int | None) -> dict[int, dict[int, dict[str, int]]]:
    """Return size -> node -> what the nodes other than ``home`` show, with what is free there as reserved by us."""
    return {
        size: {
            node: {
                "nr_hugepages": pools[size].nr,
                "free_hugepages": pools[size].free,
                "surplus_hugepages": pools[size].surplus,
                "resv_hugepages": pools[size].free,
            }
            for node, pools in view.nodes.items()
            if node != home and size in pools
        }
        for size in view.pools
    }


def _group(live: Live, stack: ExitStack) -> ControlGroup | None:
    """Return a group to make groups in, in the hierarchy that has the controller; None where none can have it."""
    for version in (Version.TWO, Version.ONE):
        try:
            with ExitStack() as attempt:
                group = new_group(_scope(live, live.size, attempt), "hugetlb", version)
                stack.push(attempt.pop_all().__exit__)
                return group
        except CannotRun:
            continue
    return None


def _pages(live: Live, node: int | None) -> tuple[int, int]:
    """Return how many pages a pool and a file may have, for which there is memory, surplus pages for a file included.

    Raises CannotRun where it is short or fragmented, Failed where it is not and yet not had.
    """
    pages = max(_FEWEST_PAGES, min(_MOST_PAGES, _MEMORY // live.size))
    while True:
        of_a_file = max(_FEWEST_PAGES, pages // 2)
        try:
            # gigantic pages may be fewer than asked for, which the comparison knows
            live.reserve(pages if live.is_gigantic else pages + of_a_file, node)
            break
        except CannotRun:
            if pages == _FEWEST_PAGES:
                raise
            pages -= 1
    live.set_nr(0, node)
    return pages, of_a_file
