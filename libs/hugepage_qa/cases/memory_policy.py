"""NUMA memory policies of actors and their memory, and moving pages between nodes (set_mempolicy(2), mbind(2))."""

import enum
import errno
from collections.abc import Iterable, Sequence

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.kernel.nodes import read_nodes
from hugepage_qa.kernel.process_status import read_process_status
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor, Refused
from hugepage_qa.version import KernelVersion

_BITS = 64
# include/uapi/linux/mempolicy.h; MAX_NUMNODES is no more on any architecture
F_NODE, F_ADDR, F_MEMS_ALLOWED, _MOST_NODES = 1, 2, 4, 1024
#: no node and no errno: what the kernel has not told of a page
_UNTOLD = -(1 << 20)


class Mode(enum.IntEnum):
    """How a policy chooses nodes: MPOL_* of include/uapi/linux/mempolicy.h."""

    DEFAULT = 0
    PREFERRED = 1
    BIND = 2
    INTERLEAVE = 3
    LOCAL = 4
    PREFERRED_MANY = 5
    WEIGHTED_INTERLEAVE = 6


#: those that choose among several nodes, and the first kernel that has each (set_mempolicy(2), fa3bea4e1f82)
_OF_SEVERAL = {
    Mode.BIND: KernelVersion(2, 6),
    Mode.INTERLEAVE: KernelVersion(2, 6),
    Mode.PREFERRED_MANY: KernelVersion(5, 15),
    Mode.WEIGHTED_INTERLEAVE: KernelVersion(6, 9),
}
#: with a mode: NUMA balancing moves pages among its nodes (set_mempolicy(2), since Linux 5.12)
F_NUMA_BALANCING = 1 << 13
#: pages that do not follow the policy are an error
STRICT = 1
#: they are moved; those that cannot be are an error
MOVE_STRICTLY = 1 | 2
MOVE = 2
#: those that others have, too
MOVE_ALL = 4


def modes_of_several_nodes(version: KernelVersion) -> tuple[Mode, ...]:
    """Return the modes that choose among several nodes, and that a kernel of ``version`` has."""
    return tuple(mode for mode, since in _OF_SEVERAL.items() if version >= since)


def set_policy(actor: Actor, mode: int, nodes: Iterable[int]) -> None:
    """Have ``actor`` take memory as the policy says (set_mempolicy(2)). Raises OSError."""
    actor.call("set_mempolicy", mode, *_mask(actor, nodes))


def give_policy(memory: Memory, mode: int, nodes: Iterable[int], flags: int = 0) -> None:
    """Have ``memory`` come from nodes as a ``Mode``, with or without a mode flag, says (mbind(2)). Raises OSError."""
    actor = memory.actor
    actor.call("mbind", memory.address, memory.length, mode, *_mask(actor, nodes), flags)


def bind(memory: Memory, nodes: Iterable[int], flags: int = 0) -> None:
    """Have ``memory`` come from ``nodes`` alone (mbind(2)). Raises OSError."""
    give_policy(memory, Mode.BIND, nodes, flags)


def prefer(memory: Memory, *nodes: int) -> None:
    """Have ``memory`` come from one of ``nodes`` as long as these have any (mbind(2)). Raises OSError."""
    give_policy(memory, Mode.PREFERRED if len(nodes) == 1 else Mode.PREFERRED_MANY, nodes)


def interleave(memory: Memory, nodes: Iterable[int]) -> None:
    """Have the pages of ``memory`` come from ``nodes`` in turn (mbind(2)). Raises OSError."""
    give_policy(memory, Mode.INTERLEAVE, nodes)


def set_home_node(memory: Memory, node: int) -> None:
    """Have bound ``memory``, or such that prefers nodes, come from ``node`` first. Raises OSError."""
    memory.actor.call("set_mempolicy_home_node", memory.address, memory.length, node, 0)


def move_page(memory: Memory, page: int, node: int, flags: int = MOVE) -> int:
    """Move a page to ``node`` and return where it is then, or a negative errno (move_pages(2)). Raises OSError.

    With ``MOVE_ALL`` it moves also where other processes have it.
    """
    return move_pages(memory.actor, [memory.at(page)], [node], flags)[0]


def move_pages(actor: Actor, addresses: Sequence[int], nodes: Sequence[int], flags: int = MOVE) -> list[int]:
    """Move the page at each address to its node, and return where each is then, or a negative errno. Raises OSError."""
    return _move(actor, addresses, nodes, flags, 0)[1]


def pages_told(actor: Actor, addresses: Sequence[int], nodes: Sequence[int]) -> tuple[int, list[int | None]]:
    """Move the page at each address to its node; return how many the kernel left, and what it told of each.

    That is where it is then, a negative errno, or nothing (move_pages(2)). Raises OSError.
    """
    left, status = _move(actor, addresses, nodes, MOVE, _UNTOLD)
    return left, [None if word == _UNTOLD else word for word in status]


def _move(
    actor: Actor, addresses: Sequence[int], nodes: Sequence[int], flags: int, untold: int
) -> tuple[int, list[int]]:
    """Return what move_pages(2) returns, and the status of each page: ``untold`` where the kernel stores none."""
    uapi, count = actor.uapi, len(addresses)
    pages, targets = uapi.pack(f"{count}Q", *addresses), uapi.pack(f"{count}i", *nodes)
    words = 0, count, pages, targets, uapi.pack(f"{count}i", *[untold] * count), flags
    left, (_pages, _targets, status) = actor.call_with_buffers("move_pages", *words)
    return left, list(uapi.unpack(f"{count}i", status))


def moving(memory: Memory, node: int, *, by_another: bool = False) -> tuple[int | bytes, ...]:
    """Return the arguments of move_pages(2) that move all pages to ``node``: each named by its start and its middle.

    They are for the actor that has the memory, or for another one.
    """
    uapi, count = memory.actor.uapi, 2 * memory.pages
    pages = uapi.pack(f"{count}Q", *(memory.address + number * memory.size // 2 for number in range(count)))
    process, flags = (memory.actor.pid, MOVE_ALL) if by_another else (0, MOVE)
    return process, count, pages, uapi.pack(f"{count}i", *[node] * count), bytes(4 * count), flags


def node_of(memory: Memory, page: int = 0) -> int:
    """Return the node that a page is on, or a negative errno (move_pages(2), nodes NULL). Raises OSError."""
    return nodes_of(memory.actor, [memory.at(page)])[0]


def nodes_of(actor: Actor, addresses: Sequence[int], process: int = 0) -> list[int]:
    """Return the node that the page at each address is on, or a negative errno; in another ``process`` if it is given.

    Raises OSError.
    """
    uapi, count = actor.uapi, len(addresses)
    words = process, count, uapi.pack(f"{count}Q", *addresses), 0, bytes(4 * count), 0
    _value, (_pages, status) = actor.call_with_buffers("move_pages", *words)
    return list(uapi.unpack(f"{count}i", status))


def policy_of(memory: Memory) -> tuple[int, list[int]]:
    """Return the policy of the first page, mostly a ``Mode``, and its nodes (get_mempolicy(2)). Raises OSError."""
    return told_policy(memory.actor, memory.address, F_ADDR)


def told_policy(actor: Actor, address: int = 0, flags: int = 0) -> tuple[int, list[int]]:
    """Return what get_mempolicy(2) tells with ``flags``: a mode, or a node, and nodes. Raises OSError."""
    uapi, empty = actor.uapi, bytes(_MOST_NODES // 8)
    words = uapi.pack("i", 0), empty, _MOST_NODES + 1, address, flags
    _value, (mode, mask) = actor.call_with_buffers("get_mempolicy", *words)
    words_of_mask = enumerate(uapi.unpack(f"{_MOST_NODES // _BITS}Q", mask))
    # most of them have no bit
    nodes = [_BITS * at + bit for at, word in words_of_mask if word for bit in range(_BITS) if word >> bit & 1]
    return uapi.unpack("i", mode)[0], nodes


def node_by_policy(memory: Memory) -> int:
    """Return the node that the first page is on (get_mempolicy(2) MPOL_F_NODE, MPOL_F_ADDR). Raises OSError."""
    uapi = memory.actor.uapi
    words = uapi.pack("i", -1), 0, 0, memory.address, F_NODE | F_ADDR
    _value, (node,) = memory.actor.call_with_buffers("get_mempolicy", *words)
    return uapi.unpack("i", node)[0]


def run_on(actor: Actor, cpus: Iterable[int]) -> None:
    """Have ``actor`` run on ``cpus`` alone (sched_setaffinity(2)). Raises OSError."""
    mask = actor.uapi.bitmap(cpus)
    actor.call("sched_setaffinity", 0, len(mask), mask)


def processors_near(live: Live, nodes: Iterable[int]) -> dict[int, Iterable[int]]:
    """Return those of ``nodes`` that have processors, and these. Raises CannotRun where none has any."""
    of_machine = read_nodes(live.host).each
    if found := {node: of_machine[node].cpus for node in nodes if of_machine[node].cpus}:
        return dict(found)
    raise CannotRun("none of the nodes with memory that are taken has processors")


def run_on_node(actor: Actor, node: int, cpus: Iterable[int]) -> None:
    """Have ``actor`` run on ``cpus``, those of ``node``, alone. Raises CannotRun where it may use none of them."""
    try:
        run_on(actor, cpus)
    except Refused as refusal:
        if refusal.errno == errno.EINVAL:
            raise CannotRun(f"the suite runs in a cpuset without CPUs of node {node}") from refusal
        raise


def keep_to_one_cpu(live: Live, actor: Actor) -> None:
    """Have ``actor`` run on the first of the CPUs that it may run on. Raises OSError."""
    status = read_process_status(live.host, actor.pid)
    run_on(actor, status.cpus[:1] if status else ())


def migrate(actor: Actor, source: int, target: int, process: int = 0) -> int:
    """Move all pages of ``actor`` on one node to another, and return how many could not be moved (migrate_pages(2)).

    They are those of another ``process`` if it is given. Raises OSError.
    """
    # one length for both masks
    words = max(source, target) // _BITS + 1
    old, maximum = _mask(actor, [source], words)
    new, _maximum = _mask(actor, [target], words)
    return actor.call("migrate_pages", process, maximum, old, new)


def base_pages_of(live: Live, memory: Memory) -> range:
    """Return the addresses of the base pages of ``memory``."""
    return range(memory.address, memory.address + memory.length, live.base_page)


def _by_move_pages(live: Live, memory: Memory, _source: int, target: int) -> None:
    places = base_pages_of(live, memory)
    move_pages(memory.actor, places, [target] * len(places))


def _by_mbind(_live: Live, memory: Memory, _source: int, target: int) -> None:
    bind(memory, [target], MOVE)


def _by_migrate_pages(_live: Live, memory: Memory, source: int, target: int) -> None:
    migrate(memory.actor, source, target)


#: by name, what moves memory from one node to another: what somebody has a hold of it leaves
MOVES = {"move_pages": _by_move_pages, "mbind": _by_mbind, "migrate_pages": _by_migrate_pages}


def move_all(live: Live, memory: Memory, by: str, source: int, target: int) -> None:
    """Move all that is there of ``memory``, again where somebody had a hold of a part of it in that moment.

    Raises Failed where some of it never moves.
    """

    def elsewhere() -> set[int]:
        # what was not written the kernel may have taken: it is nowhere
        return {node for node in nodes_of(memory.actor, base_pages_of(live, memory)) if node >= 0} - {target}

    def left() -> set[int]:
        MOVES[by](live, memory, source, target)
        return elsewhere()

    found = live.host.last_look(left, lambda nodes: not nodes)
    if found:
        # each of the others would be waited for as long
        live.fail("other nodes that it is on", set(), found)


def _mask(actor: Actor, nodes: Iterable[int], words: int = 0) -> tuple[bytes, int]:
    """Return the node mask and its length in bits, of which the kernel takes one less (get_nodes())."""
    mask = actor.uapi.bitmap(nodes, words)
    return mask, 8 * len(mask) + 1
