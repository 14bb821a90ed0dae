"""Who writes nr_hugepages: the nodes of its memory policy and of its cpuset are those whose pools grow and shrink."""

from collections.abc import Iterator, Sequence
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.memory_policy import Mode, modes_of_several_nodes, run_on_node, set_policy
from hugepage_qa.cases.pages_of_a_node import cpuset_of, expect_free_pages_on, require_room, reserve_on_all
from hugepage_qa.cases.pool_writer import POLICY, nr_with_policy, persistent_pages, write_number
from hugepage_qa.kernel.nodes import read_nodes
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

WRITERS = Area("numa/limited-writers")

_SYSCTL, _SYSCTL_WITH_POLICY = "proc/sys/vm/nr_hugepages", "proc/sys/vm/nr_hugepages_mempolicy"


@WRITERS.case(
    "nr_hugepages_mempolicy adds and takes away pages on the nodes of a bind policy alone",
    f"{POLICY}; mm/hugetlb_sysfs.c __nr_hugepages_store_common(), init_nodemask_of_mempolicy()",
    nodes=2,
)
def a_bound_writer_changes_its_node_alone(live: Live) -> None:
    policy = nr_with_policy(live)
    _require_room(live, 2)
    base = persistent_pages(live)
    for node in live.nodes:
        _expect_changed_alone(live, policy, base, node)


def _require_room(live: Live, pages: int) -> None:
    """Make sure that each node has room for ``pages`` pages, and gives it again. Raises as ``require_room`` does."""
    if live.is_gigantic and live.host.has_others:
        raise CannotRun("others may take the range of memory that a gigantic page has just given back")
    require_room(live, pages)


def _expect_changed_alone(live: Live, path: str, base: int, node: int) -> Actor:
    """Expect a process bound to ``node`` that writes ``path`` to change the pages there alone, and return it."""
    actor = live.actor()
    set_policy(actor, Mode.BIND, [node])
    for pages in (2, 1, 0):
        write_number(actor, path, base + pages)
        expect_free_pages_on(live, node, pages)
    return actor


@WRITERS.case(
    "vm.nr_hugepages_mempolicy changes the nodes of the writer's policy alone, and vm.nr_hugepages knows no policy",
    f"{POLICY}; mm/hugetlb_sysctl.c hugetlb_mempolicy_sysctl_handler()",
    sizes=Sizes.DEFAULT,
    nodes=2,
)
def a_bound_writer_of_the_sysctl(live: Live) -> None:
    _require_room(live, 2)
    base, nodes = persistent_pages(live), live.nodes
    for node in nodes:
        actor = _expect_changed_alone(live, _SYSCTL_WITH_POLICY, base, node)
        _expect_no_policy(live, actor, _SYSCTL, base)


def _expect_no_policy(live: Live, actor: Actor, path: str, base: int) -> None:
    """Expect ``actor``, which is bound to a node, to add pages to all of them, and to take them away, by ``path``."""
    for each in (1, 0):
        write_number(actor, path, base + each * len(live.nodes))
        for node in live.nodes:
            live.expect_pool(node=node, nr=each, free=each)


@WRITERS.case(
    "nr_hugepages_mempolicy spreads pages over the nodes of an interleave policy, nr_hugepages knows no policy",
    f"{POLICY}; mm/hugetlb_sysfs.c __nr_hugepages_store_common()",
    nodes=2,
)
def an_interleaving_writer_spreads_pages(live: Live) -> None:
    policy = nr_with_policy(live)
    _require_room(live, 2)
    base, nodes = persistent_pages(live), live.nodes
    actor = live.actor()
    set_policy(actor, Mode.INTERLEAVE, nodes)
    write_number(actor, policy, base + 2 * len(nodes))
    for node in nodes:
        live.expect_pool(node=node, nr=2, free=2)
    live.set_nr(0)
    set_policy(actor, Mode.BIND, nodes[:1])
    _expect_no_policy(live, actor, live.pool_file("nr_hugepages"), base)


@WRITERS.case(
    "nr_hugepages_mempolicy adds pages on the node of a writer whose policy is local",
    f"{POLICY} 1.; mm/mempolicy.c init_nodemask_of_mempolicy()",
    nodes=2,
)
def a_local_writer_changes_its_own_node(live: Live) -> None:
    policy = nr_with_policy(live)
    _require_room(live, 2)
    base, nodes = persistent_pages(live), read_nodes(live.host)
    for node in live.nodes:
        if not nodes.each[node].cpus:
            continue
        actor = live.actor()
        run_on_node(actor, node, nodes.each[node].cpus)
        set_policy(actor, Mode.LOCAL, [])
        for pages in (2, 0):
            write_number(actor, policy, base + pages)
            expect_free_pages_on(live, node, pages)


@WRITERS.case(
    "whatever the mode of the writer's policy, nr_hugepages_mempolicy, and vm.nr_hugepages_mempolicy, adds as many"
    " pages to each of its nodes, one or several, and takes them from there, and leaves what all other nodes have; a"
    " preferred node is the lowest one that is named, or that of the writer, and with the default policy all nodes are"
    " meant",
    f"{POLICY} 1., 2., 3.; set_mempolicy(2); mm/mempolicy.c init_nodemask_of_mempolicy(); mm/hugetlb_sysctl.c"
    " hugetlb_mempolicy_sysctl_handler()",
    nodes=2,
    sizes=Sizes.BUDDY,  # each page that is added again may find memory too fragmented for a gigantic one
)
def policies_of_every_mode(live: Live) -> None:
    # the sysctl is that of the default pool
    paths = [nr_with_policy(live), *([_SYSCTL_WITH_POLICY] if live.is_default else [])]
    require_room(live, 3)
    base, nodes = persistent_pages(live), live.nodes
    for path, (mode, given, near, wanted) in product(paths, list(_policies(live))):
        reserve_on_all(live, 1)
        actor = live.actor()
        if near is not None:
            run_on_node(actor, near, read_nodes(live.host).each[near].cpus)
        set_policy(actor, mode, given)
        place = "all nodes" if near is None else f"node {near}"
        with live.about(f"{path}, {mode.name} of {given}, on processors of {place}"):
            # from one page on each node: two pages more for one node are no mere chance, nodes take turns
            for each in (3, 1, 0):
                count = len(nodes) + (each - 1) * len(wanted)
                write_number(actor, path, base + count)
                live.expect_pool(nr=count, free=count)
                for node in nodes:
                    pages = each if node in wanted else 1
                    live.expect_pool(node=node, nr=pages, free=pages)
        actor.end()


def _policies(live: Live) -> Iterator[tuple[Mode, Sequence[int], int | None, Sequence[int]]]:
    """Yield modes, the nodes that each is given, the one that who writes runs on, None for any, and those it means."""
    nodes, each = live.nodes, read_nodes(live.host).each
    for given in dict.fromkeys((*((node,) for node in nodes), nodes[1:], nodes)):
        for mode in modes_of_several_nodes(live.kernel_version):
            yield mode, given, None, given
        yield Mode.PREFERRED, given, None, given[:1]
    for node, mode in product(nodes, (Mode.LOCAL, Mode.PREFERRED)):
        if each[node].cpus:
            yield mode, (), node, (node,)
    yield Mode.DEFAULT, (), None, nodes


@WRITERS.case(
    "a writer in a cpuset adds pages to its nodes alone with nr_hugepages_mempolicy, whatever policy it asks for",
    f"{POLICY} 4.",
    nodes=2,
)
def a_cpuset_limits_the_policy_of_a_writer(live: Live) -> None:
    policy = nr_with_policy(live)
    _require_room(live, 2)
    here = live.nodes[-1]
    actor = live.actor()
    set_policy(actor, Mode.INTERLEAVE, live.nodes)
    cpuset_of(live, here).add(actor)
    write_number(actor, policy, persistent_pages(live) + 2)
    expect_free_pages_on(live, here, 2)


@WRITERS.case(
    "a writer in a cpuset, whose policy says nothing, adds pages to its nodes alone, whichever file it writes: all that"
    " are missing by nr_hugepages and nr_hugepages_mempolicy, and none by nr_hugepages of another node; who is in no"
    " cpuset adds them to every node as before",
    "Documentation/admin-guide/cgroup-v2.rst cpuset.mems; mm/page_alloc.c prepare_alloc_pages(),"
    " get_page_from_freelist()",
    sizes=Sizes.BUDDY,  # gigantic pages are taken from ranges of memory, past the cpuset (alloc_contig_pages())
    nodes=2,
)
def a_cpuset_limits_a_writer_without_a_policy(live: Live) -> None:
    policy = nr_with_policy(live)
    pages = len(live.nodes)
    require_room(live, pages)
    of_all = live.pool_file("nr_hugepages")
    for here in live.nodes:
        actor = live.actor()
        group = cpuset_of(live, here)
        group.add(actor)
        for path in (of_all, policy):
            with live.about(f"{path}, in a cpuset of node {here}"):
                write_number(actor, path, persistent_pages(live) + pages)
                expect_free_pages_on(live, here, pages)
                # that of all nodes takes free pages of others, too, which were there before
                live.set_nr(0, here)
        for node in live.nodes:
            path = live.pool_file("nr_hugepages", node=node)
            with live.about(f"{path}, in a cpuset of node {here}"):
                write_number(actor, path, (read_integer(live.host, path) or 0) + pages)
                expect_free_pages_on(live, here, pages if node == here else 0)
                live.set_nr(0, here)
        actor.end()
        group.remove()
        live.set_nr(pages)
        for node in live.nodes:
            live.expect_pool(node=node, nr=1, free=1)
        live.set_nr(0)


class LimitedWriters(LiveTest):
    def test_limited_writers(self) -> None:
        self.run_area(WRITERS)
