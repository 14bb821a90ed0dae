"""Files of a tmpfs that may be in huge pages, as its mount option huge= says."""

import mmap
import os

from hugepage_qa.actor.process import Actor
from hugepage_qa.live.live import READ_WRITE, Live
from hugepage_qa.live.memory import Memory
from hugepage_qa.live.mman import MAP_FIXED
from hugepage_qa.live.transparent import pmd_size


def mount_tmpfs(live: Live, huge: str) -> str:
    """Mount a tmpfs with option huge= until the case ends, and return where. Raises Refused."""
    point = live.host.mount(f"huge={huge},mode=0700", "tmpfs")
    live.when_actors_have_ended(live.host.unmount, point)
    return point


def map_start_of_file(live: Live, path: str, pages: int = 1, length: int | None = None) -> Memory:
    """Map the first PMD-sized pages of a new file where huge pages fit; it has ``length`` bytes, or what is mapped."""
    size = pmd_size(live)
    actor = live.actor()
    descriptor = live.open(actor, path, os.O_RDWR | os.O_CREAT)
    actor.call("ftruncate", descriptor, length or pages * size)
    address = _room(actor, pages, size)
    actor.mmap(pages * size, READ_WRITE, mmap.MAP_SHARED | MAP_FIXED, descriptor, address=address)
    return Memory(live, actor, address, pages, size)


def _room(actor: Actor, pages: int, size: int) -> int:
    start = actor.mmap((pages + 1) * size, 0, mmap.MAP_ANONYMOUS | mmap.MAP_PRIVATE)
    return -(-start // size) * size
