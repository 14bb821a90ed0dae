"""sysctl.vm.nr_hugepages=: the pool of the default size is set as a running kernel does it, right before init starts.

Only what is taken out of areas of hugetlb_cma= is predicted: there is room in them for sure. Sources:
Documentation/admin-guide/kernel-parameters.txt sysctl.*; do_sysctl_args(), alloc_gigantic_folio().
"""

from hugepage_qa.oracle.boot.cstring import kstrtoul, string_get_size
from hugepage_qa.oracle.prediction import AtLeast, Draft, Exactly, SumOf, pool_subject
from hugepage_qa.oracle.rules import CMA_USED, LOG_POOL, NODE_SPREAD, SET_BEFORE_INIT

NAME = "sysctl.vm.nr_hugepages"


def is_set_before_init(draft: Draft) -> bool:
    """Tell whether the kernel sets a pool after it has reserved what hugepages= asks for."""
    return bool(draft.values(NAME)) and SET_BEFORE_INIT.holds_for(draft.machine.version)


def expect_set_before_init(draft: Draft, default: int, *, is_certain: bool) -> None:
    """Add what follows from the last sysctl.vm.nr_hugepages= for the pool of the ``default`` size.

    ``is_certain`` tells that the pool is empty before, and that all areas come about.
    """
    subject = pool_subject(default, "nr_hugepages")
    value = draft.values(NAME)[-1]
    pages = kstrtoul(value) if value else None
    shares = _shares(draft, pages or 0)
    room = {number: draft.cma.nodes.get(number, 0) // default for number in shares}
    has_room = all(share <= room[number] for number, share in shares.items())
    if pages is None or not (has_room and is_certain and draft.machine.mmu.is_gigantic(default)):
        draft.leave_open(subject, f"{NAME}= is predicted for what areas of hugetlb_cma= have room for, and no other")
        return
    draft.expect(subject, Exactly(pages), SET_BEFORE_INIT)
    if draft.has_nodes:
        for number, share in shares.items():
            draft.expect(pool_subject(default, "nr_hugepages", number), Exactly(share), NODE_SPREAD)
    draft.expect_messages([f"registered {string_get_size(default)} page size, pre-allocated 0 pages"], LOG_POOL)
    used = SumOf((("meminfo/CmaFree", 1), (subject, default)))
    draft.expect("meminfo/CmaTotal", AtLeast(used), CMA_USED)


def _shares(draft: Draft, pages: int) -> dict[int, int]:
    """Return how many of ``pages`` each node gets: they are taken in turn, of the first node with memory at first."""
    numbers = [node.number for node in draft.machine.memory_nodes]
    share, rest = divmod(pages, len(numbers))
    return {number: share + (turn < rest) for turn, number in enumerate(numbers)}
