"""Memory of each kind that the kernel may move: anonymous memory and files of a tmpfs, in huge pages and base pages."""

from collections.abc import Callable, Iterator

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import Mode, set_policy
from hugepage_qa.cases.thp_policy import advised
from hugepage_qa.cases.thp_policy import set_policy as set_thp_policy
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, map_start, nameless_file
from hugepage_qa.kernel.uapi import MADV_NOHUGEPAGE
from hugepage_qa.process.actor import Actor

#: PMD-sized pages of what is in huge pages; of what is in base pages there is the memory of one
_PAGES = 4


def movable_memory(
    live: Live, node: int, before: Callable[[Actor], object] = lambda _actor: None
) -> Iterator[tuple[str, Memory]]:
    """Yield the name and the memory of each kind, filled, bound to ``node`` and of an actor of its own.

    Each actor does first what ``before`` says.

    Raises Failed where it is not in pages of its kind, CannotRun on a kernel without shared memory in huge pages.
    """
    let_only_pmd_inherit(live)
    set_thp_policy(live, "madvise")
    for make in _KINDS:
        actor = live.actor()
        before(actor)
        set_policy(actor, Mode.BIND, [node])
        memory = make(live, actor)
        set_policy(actor, Mode.DEFAULT, [])
        yield make.__name__.strip("_").replace("_", " "), memory


def _anonymous_huge_pages(live: Live, actor: Actor) -> Memory:
    memory = advised(live, _PAGES, actor=actor)
    memory.fill()
    memory.expect_huge()
    return memory


def _anonymous_base_pages(live: Live, actor: Actor) -> Memory:
    memory = advised(live, 1, MADV_NOHUGEPAGE, actor=actor)
    memory.fill()
    return memory


def _huge_pages_of_a_file(live: Live, actor: Actor) -> Memory:
    memory = map_start(live, actor, nameless_file(live, actor, "always"), _PAGES)
    memory.fill()
    live.expect("ShmemPmdMapped", memory.length, memory.smaps().shmem_pmd_mapped)
    return memory


def _base_pages_of_a_file(live: Live, actor: Actor) -> Memory:
    memory = map_start(live, actor, nameless_file(live, actor, "never"), 1)
    memory.fill()
    return memory


_KINDS: tuple[Callable[[Live, Actor], Memory], ...] = (
    _anonymous_huge_pages,
    _anonymous_base_pages,
    _huge_pages_of_a_file,
    _base_pages_of_a_file,
)
