"""Memory policies of mounts of tmpfs: what mpol= is given and shown as, and where pages of new files come from."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import Mode, nodes_of, policy_of, run_on_node
from hugepage_qa.cases.pages_of_a_node import missing_node
from hugepage_qa.cases.thp_shared_memory import expect_mapped_whole, map_start
from hugepage_qa.kernel.nodes import parse_list, read_nodes
from hugepage_qa.kernel.proc_tables import find_mount
from hugepage_qa.kernel.uapi import AT_FDCWD
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.oracle.node_policies import RELATIVE, STATIC, node_in_turn_of_inode
from hugepage_qa.process.actor import Actor
from hugepage_qa.version import KernelVersion

#: in the options of a mount, where one node list may have commas, too
_MPOL = re.compile(r"(?:^|,)mpol=([a-z=]+)(?::(\d+(?:[-,]\d+)*))?")

#: MPOL_LOCAL is told as such
_LOCAL_SINCE = KernelVersion(5, 14)


@dataclass(frozen=True)
class MountPolicy:
    """mpol= of a tmpfs as it is given; what /proc/mounts shows, and is told of memory; and the nodes of pages.

    Without nodes they come from that of the processor.
    """

    option: str
    shown: tuple[str, tuple[int, ...]]
    told: tuple[int, list[int]]
    nodes: tuple[int, ...] = ()


def mount_policies(live: Live) -> Iterator[MountPolicy]:
    """Yield each mode of mpol=, alone and with flags and the first two nodes (Documentation/filesystems/tmpfs.rst)."""
    # one that prefers no node before 7858d7bca7fb
    local = Mode.LOCAL if live.kernel_version >= _LOCAL_SINCE else Mode.PREFERRED
    yield MountPolicy("local", ("local", ()), (local, []))
    for at, node in enumerate(live.nodes[:2]):
        for mode, name in ((Mode.BIND, "bind"), (Mode.PREFERRED, "prefer")):
            yield MountPolicy(f"{name}:{node}", (name, (node,)), (mode, [node]), (node,))
        for flag, name, told in ((STATIC, "bind=static", node), (RELATIVE, "bind=relative", at)):
            yield MountPolicy(f"{name}:{told}", (name, (told,)), (Mode.BIND | flag, [told]), (node,))
    two = live.nodes[:2]
    named = ":" + ",".join(map(str, two))
    # without nodes it takes all that there are, of which others may have no room
    for nodes in ("", named) if two == live.nodes and not live.nodes_of_others else (named,):
        yield MountPolicy(f"interleave{nodes}", ("interleave", two), (Mode.INTERLEAVE, list(two)), two)
    yield MountPolicy("prefer", ("local", ()), (local, []))


def wrong_mount_policies(live: Live) -> list[str]:
    """Return values of mpol= that are invalid: nodes, modes and flags that are not there, or do not go together."""
    node, other = live.nodes[:2]
    missing = missing_node(live)
    lists = f"bind:{missing}", f"interleave:{node},{missing}", f"prefer:{node},{other}", "bind:", "bind:x"
    modes = f"local:{node}", f"default:{node}", "bind", f"bind=sticky:{node}", f"sometimes:{node}", "local=static"
    return [*lists, *modes]


def file_without_name(live: Live, actor: Actor, point: str) -> Memory:
    """Map two pages of a new file, which has no name any more."""
    path = f"{point}/file"
    memory = map_start(live, actor, live.open(actor, path), 2)
    actor.call("unlinkat", AT_FDCWD, path, 0)
    return memory


def shown_policy(live: Live, point: str) -> tuple[str, tuple[int, ...]]:
    """Return the mode, with its flag, and the nodes of mpol= that /proc/mounts shows of a tmpfs, empty without any."""
    mount = find_mount(ObservedTree(live.host), point)
    found = _MPOL.search(mount.options if mount else "")
    return (found[1], parse_list(found[2] or "", "mpol=")) if found else ("", ())


def expect_mount_policy(live: Live, point: str, row: MountPolicy, near: int) -> None:
    """Expect the tmpfs at ``point`` to show ``row``, and a file that a processor of node ``near`` fills to obey it."""
    shown = shown_policy(live, point)
    actor = live.actor()
    run_on_node(actor, near, read_nodes(live.host).each[near].cpus)
    memory = file_without_name(live, actor, point)
    live.expect("mpol= in /proc/mounts, policy of a file", (row.shown, row.told), (shown, policy_of(memory)))
    memory.fill()
    expect_mapped_whole(live, memory, 2)
    order = (memory.size // live.base_page).bit_length() - 1
    words = memory.smaps().inode, order, live.kernel_version
    nodes = row.nodes or (near,)
    wanted = [node_in_turn_of_inode(nodes, page, *words) for page in range(memory.pages)]
    live.expect("nodes of its huge pages", wanted, nodes_of(actor, [memory.at(page) for page in range(memory.pages)]))
    memory.expect_filled()
    actor.end()
