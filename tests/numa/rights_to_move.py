"""Who may move pages, whose pages, and where to: rights of a process, and the nodes of its cpuset."""

import errno
from collections.abc import Callable
from functools import partial

from hugepage_qa.cases.capabilities import become_nobody
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import (
    MOVE,
    MOVE_ALL,
    Mode,
    bind,
    migrate,
    move_pages,
    moving,
    nodes_of,
    policy_of,
    set_policy,
    told_policy,
)
from hugepage_qa.cases.pages_of_a_node import cpuset_of
from hugepage_qa.cases.thp_nodes import two_nodes_with_room
from hugepage_qa.cases.thp_policy import advised
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

RIGHTS = Area("numa/rights-to-move")

MAY_MOVE = (
    "an unprivileged process moves its own pages, and those of no other user nor, with MPOL_MF_MOVE_ALL, any: EPERM;"
    " what is refused leaves pages, policies and what they hold as they are; a privileged one moves those of others"
)
MAY_BE_MOVED_TO = (
    "pages of a process in a cpuset move to its nodes alone: to others move_pages(2) is EACCES, mbind(2) and"
    " set_mempolicy(2) are EINVAL, and migrate_pages(2) is EINVAL, or EPERM of an unprivileged process; also where a"
    " process outside of it asks; what is refused leaves pages and policies as they are"
)
RIGHTS_DOC = "move_pages(2) EPERM; migrate_pages(2) EPERM; mbind(2) EPERM; mm/migrate.c find_mm_struct()"
CPUSET_DOC = (
    "move_pages(2) EACCES; migrate_pages(2) EINVAL, EPERM; mbind(2) EINVAL; set_mempolicy(2) EINVAL; mm/migrate.c"
    " do_pages_move(); mm/mempolicy.c kernel_migrate_pages(), mpol_set_nodemask()"
)
#: huge pages, and base pages
_PAGES, _BASE_PAGES = 2, 24

#: judges memory, of which it has as much mapped as it needs, on the first node and the second one
Judge = Callable[[Live, int, int, Callable[[Actor], Memory]], None]


@RIGHTS.case(MAY_MOVE, RIGHTS_DOC, nodes=2, sizes=Sizes.BUDDY)
def of_hugetlb_pages(live: Live) -> None:
    _judge_hugetlb_pages(live, _expect_rights)


@RIGHTS.case(MAY_MOVE, RIGHTS_DOC, nodes=2, sizes=Sizes.ONCE)
def of_other_pages(live: Live) -> None:
    _judge_other_pages(live, _expect_rights)


@RIGHTS.case(MAY_BE_MOVED_TO, CPUSET_DOC, nodes=2, sizes=Sizes.BUDDY)
def of_hugetlb_pages_in_a_cpuset(live: Live) -> None:
    _judge_hugetlb_pages(live, _expect_kept_in_cpuset)


@RIGHTS.case(MAY_BE_MOVED_TO, CPUSET_DOC, nodes=2, sizes=Sizes.ONCE)
def of_other_pages_in_a_cpuset(live: Live) -> None:
    _judge_other_pages(live, _expect_kept_in_cpuset)


def _judge_hugetlb_pages(live: Live, judge: Judge) -> None:
    here, there = live.nodes[:2]
    for node in (here, there):
        live.reserve(2 * _PAGES, node)
    judge(live, here, there, partial(live.map, _PAGES))
    live.expect_pool(nr=4 * _PAGES, free=4 * _PAGES)


def _judge_other_pages(live: Live, judge: Judge) -> None:
    here, there = two_nodes_with_room(live, 2 * _PAGES)
    for advice in (MADV_HUGEPAGE, MADV_NOHUGEPAGE):
        with live.about("huge pages" if advice == MADV_HUGEPAGE else "base pages"):
            judge(live, here, there, partial(_mapped, live, advice))


def _mapped(live: Live, advice: int, actor: Actor) -> Memory:
    memory = advised(live, _PAGES, advice, actor=actor)
    if advice == MADV_HUGEPAGE:
        return memory
    # with a policy of their own a few base pages are a mapping of their own, each of which is moved
    return Memory(live, actor, memory.address, _BASE_PAGES, live.base_page)


def _filled(live: Live, node: int, map_for: Callable[[Actor], Memory], actor: Actor) -> Memory:
    """Return filled memory of an actor that is bound to ``node``."""
    memory = map_for(actor)
    bind(memory, [node])
    memory.fill()
    _expect_on(live, memory, node, "before")
    return memory


def _expect_rights(live: Live, here: int, there: int, map_for: Callable[[Actor], Memory]) -> None:
    owner = live.actor()
    theirs = _filled(live, here, map_for, owner)
    stranger = live.actor()
    ours = _filled(live, here, map_for, stranger)
    become_nobody(stranger)
    refused: list[tuple[str, Callable[[], object]]] = [
        ("move_pages, told of those of another user", lambda: nodes_of(stranger, [theirs.address], owner.pid)),
        ("move_pages, those of another user", lambda: _move_of_another(stranger, theirs, there, MOVE)),
        ("move_pages, those of another user, all", lambda: _move_of_another(stranger, theirs, there, MOVE_ALL)),
        ("move_pages, its own, all", lambda: move_pages(stranger, [ours.address], [there], MOVE_ALL)),
        ("mbind, its own, all", lambda: bind(ours, [there], MOVE_ALL)),
        ("migrate_pages, those of another user", lambda: migrate(stranger, here, there, owner.pid)),
    ]
    for name, call in refused:
        with live.about(name):
            live.expect_errno(errno.EPERM, call)
            for memory in (ours, theirs):
                _expect_on(live, memory, here, "afterwards")
    moves: list[tuple[str, Memory, Callable[[int], object]]] = [
        ("move_pages, its own", ours, lambda to: _move_all(ours, to)),
        ("mbind, its own", ours, lambda to: bind(ours, [to], MOVE)),
        ("move_pages, by the privileged", ours, lambda to: _move_of_another(owner, ours, to, MOVE)),
        ("move_pages, all, by the privileged", ours, lambda to: _move_of_another(owner, ours, to, MOVE_ALL)),
    ]
    at = here
    for name, memory, move in moves:
        at = there if at == here else here
        with live.about(name):
            live.expect("nodes of the pages", {at}, _nodes_after(live, memory, partial(move, at), at))
            memory.expect_filled()
    for actor in (owner, stranger):
        actor.end()


def _expect_kept_in_cpuset(live: Live, here: int, there: int, map_for: Callable[[Actor], Memory]) -> None:
    group = cpuset_of(live, here)
    other, actor, stranger = (live.actor() for _each in range(3))
    memory, ours = (_filled(live, here, map_for, each) for each in (actor, stranger))
    for each in (actor, stranger):
        group.add(each)
    become_nobody(stranger)
    refused: list[tuple[str, int, Callable[[], object]]] = [
        ("move_pages", errno.EACCES, lambda: _move_all(memory, there)),
        ("move_pages, by another process", errno.EACCES, lambda: _move_of_another(other, memory, there, MOVE_ALL)),
        ("move_pages, unprivileged", errno.EACCES, lambda: _move_all(ours, there)),
        ("mbind", errno.EINVAL, lambda: bind(memory, [there], MOVE)),
        ("mbind, unprivileged", errno.EINVAL, lambda: bind(ours, [there], MOVE)),
        ("set_mempolicy", errno.EINVAL, lambda: set_policy(actor, Mode.BIND, [there])),
        ("migrate_pages", errno.EINVAL, lambda: migrate(actor, here, there)),
        ("migrate_pages, unprivileged", errno.EPERM, lambda: migrate(stranger, here, there)),
    ]
    for name, number, call in refused:
        with live.about(name):
            live.expect_errno(number, call)
            for one in (memory, ours):
                _expect_on(live, one, here, "afterwards")
                live.expect("policy of the process", (Mode.DEFAULT, []), told_policy(one.actor))
    for each in (actor, other, stranger):
        each.end()
    group.remove()


def _move_all(memory: Memory, node: int) -> list[int]:
    addresses = [memory.at(page) for page in range(memory.pages)]
    return move_pages(memory.actor, addresses, [node] * len(addresses))


def _move_of_another(actor: Actor, memory: Memory, node: int, flags: int) -> int:
    """Have ``actor`` move memory of another process (move_pages(2)). Raises Refused."""
    _own, *words, _flags = moving(memory, node)
    return actor.call("move_pages", memory.actor.pid, *words, flags)


def _nodes(memory: Memory) -> set[int]:
    return set(memory.numa_maps().nodes)


def _nodes_after(live: Live, memory: Memory, move: Callable[[], object], node: int) -> set[int]:
    """Return the nodes of memory that ``move`` moves to ``node``.

    Somebody may have a hold of pages for a moment: they are moved again.
    """

    def moved() -> set[int]:
        move()
        return _nodes(memory)

    return live.host.last_look(moved, {node}.__eq__)


def _expect_on(live: Live, memory: Memory, node: int, when: str) -> None:
    live.expect(f"nodes of the pages {when}", {node}, _nodes(memory))
    live.expect(f"policy {when}", (Mode.BIND, [node]), policy_of(memory))
    memory.expect_filled()


class RightsToMove(LiveTest):
    def test_rights_to_move(self) -> None:
        self.run_area(RIGHTS)
