"""Which policies there are: each mode with each flag and kind of nodes, what is told of it, and what is refused.

And the order in which memory of other nodes is taken, of which there is one.
"""

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import F_MEMS_ALLOWED, Mode, bind, give_policy, policy_of, set_policy, told_policy
from hugepage_qa.cases.pages_of_a_node import missing_node
from hugepage_qa.cases.thp_memory import map_aligned
from hugepage_qa.oracle.node_policies import RELATIVE, STATIC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused
from hugepage_qa.version import KernelVersion

ARGUMENTS = Area("numa/policy-arguments", sizes=Sizes.DEFAULT)

DOCUMENT = "Documentation/admin-guide/mm/numa_memory_policy.rst"
# include/uapi/linux/mempolicy.h MPOL_F_NUMA_BALANCING, and a mode that there is not
_BALANCING, _NO_MODE = 1 << 13, 99
_WEIGHTED_SINCE, _BALANCING_OF_MANY_SINCE = KernelVersion(6, 9), KernelVersion(6, 10)
#: numa_maps names MPOL_F_NUMA_BALANCING
_BALANCING_TOLD_SINCE = KernelVersion(6, 12)
_ORDER = "proc/sys/vm/numa_zonelist_order"
#: the first letter decides
_TAKEN, _REFUSED = ("Node", "node", "n", "Default", "default", "d"), ("Zone", "zone", "z", "0", "-Node")
#: policy_modes[] in mm/mempolicy.c
_WORDS = {
    Mode.DEFAULT: "default",
    Mode.PREFERRED: "prefer",
    Mode.BIND: "bind",
    Mode.INTERLEAVE: "interleave",
    Mode.LOCAL: "local",
    Mode.PREFERRED_MANY: "prefer (many)",
    Mode.WEIGHTED_INTERLEAVE: "weighted interleave",
}
_FLAG_WORDS = {STATIC: "static", RELATIVE: "relative", _BALANCING: "balancing"}


@dataclass(frozen=True)
class Asked:
    """A policy that is asked for where the nodes ``allowed`` may be used, by a kernel of ``version``."""

    mode: int
    flags: int
    nodes: frozenset[int]
    allowed: frozenset[int]
    version: KernelVersion

    def __str__(self) -> str:
        return f"mode {self.mode}, flags {self.flags:#x}, nodes {sorted(self.nodes)}"

    @property
    def is_refused(self) -> bool:
        """Whether it is EINVAL: sanitize_mpol_flags(), mpol_new() and mpol_set_nodemask() in mm/mempolicy.c."""
        balanced = {Mode.BIND} | ({Mode.PREFERRED_MANY} if self.version >= _BALANCING_OF_MANY_SINCE else set())
        has_user_nodes = bool(self.flags & (STATIC | RELATIVE))
        if self.mode == _NO_MODE or (self.mode == Mode.WEIGHTED_INTERLEAVE and self.version < _WEIGHTED_SINCE):
            return True
        if self.flags & STATIC and self.flags & RELATIVE:
            return True
        if self.flags & _BALANCING and self.mode not in balanced:
            return True
        if self.mode == Mode.DEFAULT:
            return bool(self.nodes)
        if self.mode == Mode.LOCAL:
            return bool(self.nodes) or has_user_nodes
        if self.mode == Mode.PREFERRED and not self.nodes:
            return has_user_nodes
        return not self.used

    @property
    def kept(self) -> Mode:
        """The mode that it has: who prefers no node is local."""
        if self.mode == Mode.PREFERRED and not self.nodes:
            return Mode.LOCAL
        return Mode(self.mode)

    @property
    def used(self) -> frozenset[int]:
        """The nodes that memory comes from: those that are there, relative ones counted from the first one again."""
        there = sorted(self.allowed)
        if self.flags & RELATIVE:
            return self._one(frozenset(there[node % len(there)] for node in self.nodes))
        return self._one(self.nodes & self.allowed)

    @property
    def told(self) -> tuple[int, list[int]]:
        """What get_mempolicy(2) tells: with a flag for nodes of the user those that were asked for."""
        if self.kept == Mode.DEFAULT:
            return 0, []
        nodes = self.nodes if self.flags & (STATIC | RELATIVE) else self.used
        return self.kept | self.flags, sorted(nodes)

    @property
    def words(self) -> str:
        """What numa_maps tells, with the nodes one by one: mpol_to_str() in mm/mempolicy.c."""
        if self.kept == Mode.DEFAULT:
            return _WORDS[Mode.DEFAULT]
        flags = "|".join(word for flag, word in _FLAG_WORDS.items() if self.flags & flag)
        nodes = ",".join(map(str, sorted(self.used)))
        return f"{_WORDS[self.kept]}{f'={flags}' if flags else ''}{f':{nodes}' if nodes else ''}"

    def _one(self, nodes: frozenset[int]) -> frozenset[int]:
        return frozenset([min(nodes)]) if nodes and self.mode == Mode.PREFERRED else nodes


@ARGUMENTS.case(
    "each mode of a policy, of memory or of a process, is taken with each flag and with nodes that are there, that are"
    " missing, and with none, where that has a meaning: it is told as it was asked for, in numa_maps with the nodes"
    " that are there; any other is EINVAL, and leaves the policy as it was",
    f"{DOCUMENT}; set_mempolicy(2) EINVAL; mbind(2) EINVAL; mm/mempolicy.c sanitize_mpol_flags(), mpol_new(),"
    " mpol_to_str()",
    pages=1,
    since="5.15",  # MPOL_PREFERRED_MANY, and MPOL_LOCAL as it is told
)
def modes_and_flags(live: Live) -> None:
    live.need_nodes()
    memory = live.map(1)
    actor = memory.actor
    # in a cpuset not all that have memory
    nodes = told_policy(actor, 0, F_MEMS_ALLOWED)[1]
    first = nodes[0]
    before = Mode.BIND, [first]
    for asked in _policies(live, nodes):
        with live.about(str(asked)):
            bind(memory, [first])
            set_policy(actor, Mode.BIND, [first])
            for who in ("memory", "process"):
                found = _errno_of(memory, asked, who)
                live.expect(f"errno for the policy of the {who}", errno.EINVAL if asked.is_refused else 0, found)
            told = before if asked.is_refused else asked.told
            live.expect("policy of the process", told, told_policy(actor))
            live.expect("policy of memory", told, policy_of(memory))
            if not asked.is_refused and not (asked.flags & _BALANCING and live.kernel_version < _BALANCING_TOLD_SINCE):
                live.expect("policy in numa_maps", asked.words, _one_by_one(memory.numa_maps().policy))


def _errno_of(memory: Memory, asked: Asked, who: str) -> int:
    """Ask for a policy of memory, or of its process; return the error, 0 where there is none."""
    try:
        if who == "memory":
            give_policy(memory, asked.mode | asked.flags, asked.nodes)
        else:
            set_policy(memory.actor, asked.mode | asked.flags, asked.nodes)
    except Refused as refusal:
        return refusal.errno or 0
    return 0


def _policies(live: Live, nodes: Sequence[int]) -> Iterator[Asked]:
    missing = missing_node(live)
    sets = [(), nodes[:1], nodes[:2], (missing,), (nodes[-1], missing)]
    flags = (0, STATIC, RELATIVE, STATIC | RELATIVE, _BALANCING, _BALANCING | STATIC, _BALANCING | RELATIVE)
    for mode, flag, chosen in product((*Mode, _NO_MODE), flags, sorted({*map(frozenset[int], sets)}, key=sorted)):
        # which nodes are told of it has changed: those that are there, or those that were asked for
        if flag == _BALANCING and missing in chosen:
            continue
        yield Asked(mode, flag, chosen, frozenset(nodes), live.kernel_version)


def _one_by_one(policy: str) -> str:
    """Return a policy of numa_maps with the nodes of each range one by one."""
    words, colon, ranges = policy.partition(":")
    ends = [list(map(int, part.split("-"))) for part in ranges.split(",")] if ranges else []
    return f"{words}{colon}{','.join(str(node) for end in ends for node in range(end[0], end[-1] + 1))}"


@ARGUMENTS.case(
    "mbind(2) of no bytes is done and changes nothing, wherever that is, mapped or not; from an address on that is no"
    " multiple of a base page it is EINVAL, and over what is not mapped EFAULT",
    "mbind(2) EINVAL, EFAULT; mm/mempolicy.c do_mbind(), queue_pages_test_walk()",
    pages=2,
)
def ranges(live: Live) -> None:
    live.need_nodes()
    for make in (live.map, partial(map_aligned, live, size=live.base_page)):
        memory = make(2)
        behind = memory.address + memory.length
        memory.unmap(1, 1)
        # what is told of the memory in front of the hole goes by its own range
        asked = {
            (memory.address, 0): 0,
            (memory.address + memory.size, 0): 0,
            (behind, 0): 0,
            (memory.address + 1, 0): errno.EINVAL,
            (memory.address + 1, memory.size): errno.EINVAL,
            (memory.address + memory.size, memory.size): errno.EFAULT,
        }
        for (start, length), wanted in asked.items():
            with live.about(f"{length} bytes from {start - memory.address} on, in pages of {memory.size} bytes"):
                place = Memory(live, memory.actor, start, 1, length)
                live.expect_errno(wanted, bind, place, live.nodes[:1]) if wanted else bind(place, live.nodes[:1])
                live.expect("the policy of what is mapped", (Mode.DEFAULT, []), policy_of(memory))
        memory.actor.end()


@ARGUMENTS.case(
    "vm.numa_zonelist_order takes node order, and the default, which is the same, by name and by first letter; any"
    " other order is EINVAL, and it reads as node order whatever was written",
    "Documentation/admin-guide/sysctl/vm.rst numa_zonelist_order; mm/page_alloc.c __parse_numa_zonelist_order()"
    " (c9bff3eebc09)",
    since="4.14",
    sizes=Sizes.ONCE,
)
def order_of_zones(live: Live) -> None:
    live.set_knob(_ORDER, "Node")
    for word in (*_TAKEN, *_REFUSED):
        with live.about(word):
            if word in _TAKEN:
                live.expect_success(live.host.write, _ORDER, word)
            else:
                live.expect_errno(errno.EINVAL, live.host.write, _ORDER, word)
            live.expect("what it reads as", "Node", (live.host.read(_ORDER) or "").strip())


class NumaPolicyArguments(LiveTest):
    def test_policy_arguments(self) -> None:
        self.run_area(ARGUMENTS)
