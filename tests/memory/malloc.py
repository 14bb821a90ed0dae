"""What malloc(3) of glibc gets of huge pages: its tunable glibc.malloc.hugetlb, and an actor that allocates."""

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import set_policy
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.sizes import KIB

MALLOC = Area("memory/malloc")
TUNABLE = "glibc manual, Memory Allocation Tunables: glibc.malloc.hugetlb"

_SINCE = 2.35
#: of what is allocated, what the library has for itself, and less than it
_HEADER = 64
_BLOCKS, _SMALL = 64, 40_000
#: M_MMAP_THRESHOLD, mallopt(3)
_LEAST_MAPPED = 128 * KIB
#: what the library reads of /proc/meminfo at once
_READ = 511


@MALLOC.case("malloc() takes pages of the size that the tunable names, and free() gives them back", TUNABLE, pages=3)
def pages_of_a_size(live: Live) -> None:
    actor = _start(live, live.size)
    live.expect_pool(nr=3, free=2)
    memory = _allocate(live, actor)
    # the library has stored in the first one how long it is
    live.expect_pool(nr=3, free=1, resv=1)
    live.expect("KernelPageSize", live.size, memory.smaps().kernel_page_size)
    _fill(memory)
    live.expect_pool(nr=3, free=0)
    _expect_filled(live, memory)
    actor.free(memory.address)
    live.expect_pool(nr=3, free=2)


@MALLOC.case("malloc() takes ordinary memory when the pool has no page left, and both can be used", TUNABLE, pages=3)
def more_than_the_pool_has(live: Live) -> None:
    actor = _start(live, live.size)
    blocks = [_allocate(live, actor) for _block in range(2)]
    for block in blocks:
        _fill(block)
    huge, ordinary = (block.smaps().kernel_page_size for block in blocks)
    live.expect("KernelPageSize of the first and the second block", (live.size, live.base_page), (huge, ordinary))
    live.expect_pool(nr=3, free=0)
    for block in blocks:
        _expect_filled(live, block)
    for block in blocks:
        actor.free(block.address)
    live.expect_pool(nr=3, free=2)


@MALLOC.case(
    "small blocks lie in huge pages together, and hold what was stored in each", TUNABLE, sizes=Sizes.DEFAULT, pages=4
)
def many_small_blocks(live: Live) -> None:
    if not _finds_default_size(live.host.read("proc/meminfo") or ""):
        raise CannotRun(f"glibc, which reads {_READ} bytes of /proc/meminfo at once, cuts its line Hugepagesize")
    # 2: of the default size
    actor = _start(live, 2)
    blocks = [Memory(live, actor, actor.malloc(_SMALL), 1, _SMALL) for _block in range(_BLOCKS)]
    for number, block in enumerate(blocks):
        block.fill(number)
    for number, block in enumerate(blocks):
        block.expect_filled(number)
    sizes = {block.smaps().kernel_page_size for block in (blocks[0], blocks[-1])}
    live.expect("KernelPageSize of the first and the last block", {live.size}, sizes)
    pages = -(-_BLOCKS * _SMALL // live.size)
    used = 4 - live.pool().free
    live.expect(f"{used} pages of the pool used, at least {pages}, for {_BLOCKS * _SMALL} bytes", True, used >= pages)
    for block in blocks[::2]:
        actor.free(block.address)
    for number, block in list(enumerate(blocks))[1::2]:
        block.expect_filled(number)


@MALLOC.case("with 1 malloc() advises what it maps (MADV_HUGEPAGE), with 0 it does not", TUNABLE, sizes=Sizes.ONCE)
def advised_memory(live: Live) -> None:
    set_policy(live, "madvise")
    size = pmd_size(live)
    for value in (0, 1):
        actor = _start(live, value)
        memory = Memory(live, actor, actor.malloc(4 * size), 4, size)
        flags = memory.smaps(1).flags
        live.expect(f"flag hg of smaps with {value}", bool(value), "hg" in flags)
        live.expect(f"flag ht of smaps with {value}", False, "ht" in flags)
        if not value:
            _fill(memory)
            live.expect("AnonHugePages with 0", 0, memory.smaps(1).anon_huge_pages)


def _finds_default_size(meminfo: str) -> bool:
    """Tell whether the library finds which page size is the default one: it takes a line that it has cut for whole.

    It reads on from the start of the last line (malloc_default_hugepage_size() in glibc's malloc-hugepages.c).
    """
    while (part := meminfo[:_READ]) and "Hugepagesize:" not in part:
        meminfo = meminfo[part.rindex("\n") + 1 :]
    return " kB" in part.partition("Hugepagesize:")[2]


def _start(live: Live, value: int) -> Actor:
    """Start an actor with this value of the tunable, which has allocated something small: a page, of huge ones.

    Raises CannotRun without a glibc that knows it, and where two pages are so little that they come out of the heap,
    which takes more of them at once, and which free() keeps.
    """
    if 2 * live.size <= _LEAST_MAPPED:
        raise CannotRun("two pages are below what malloc() has a mapping of its own for")
    actor = live.actor()
    if actor.libc() < _SINCE:
        raise CannotRun(f"glibc {_SINCE} or later is needed: actors are linked with another C library, or an older one")
    actor.exec(f"GLIBC_TUNABLES=glibc.malloc.hugetlb={value}")
    actor.malloc(_HEADER)
    return actor


def _allocate(live: Live, actor: Actor) -> Memory:
    """Allocate what just fits into two pages, with what the library has for itself: for less it takes no new ones."""
    return Memory(live, actor, actor.malloc(2 * live.size - _HEADER), 2, live.size)


def _fill(memory: Memory) -> None:
    memory.actor.fill(memory.address, memory.length - _HEADER, memory.step, 5)


def _expect_filled(live: Live, memory: Memory) -> None:
    wrong = memory.actor.check(memory.address, memory.length - _HEADER, memory.step, 5)
    live.expect("words of allocated memory that changed", 0, wrong)


class Malloc(LiveTest):
    def test_malloc(self) -> None:
        self.run_area(MALLOC)
