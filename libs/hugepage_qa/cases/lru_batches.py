"""The batches in which each CPU keeps pages before it puts them on the LRU lists, where reclaim looks for them."""

import errno

from hugepage_qa.cases.live import Live
from hugepage_qa.process.actor import Actor


def drain_lru_batches(live: Live, actor: Actor | None = None) -> None:
    """Have each CPU put what it has in batches on the LRU lists (lru_add_drain_all()), by ``actor`` or another process.

    An idle CPU may keep them for long, and advice is for those of its own CPU alone (lru_add_drain()). move_pages(2)
    drains them before it looks at its list (do_pages_move()), which is empty here. To compact memory drains them, too,
    but leaves in those of its own CPU what it has moved, and what it could not move: that is for kernels without
    CONFIG_NUMA.
    """
    asked = actor or live.actor()
    if asked.result("move_pages", 0, 0, 0, bytes(4), bytes(4), 0) == -errno.ENOSYS:
        live.compact()
    if actor is None:
        asked.end()
