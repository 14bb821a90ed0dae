"""The pool of its own that a guest on huge pages may have inside, and that the machine's pool sees nothing of."""

from collections.abc import Callable

from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.counters import parse_meminfo
from hugepage_qa.qemu.guest.guest_description import Cell, whole_pages
from hugepage_qa.sizes import MIB

#: in the guest
POOL_FILE = "/proc/sys/vm/nr_hugepages"

#: runs a command in the guest's shell and returns what it printed
Run = Callable[[str], str]

# of the guest's memory: its own pool, and what lies in it
_POOL = 4
_FILE = 3
_MEMORY = 256 * MIB


def room_for_a_pool(page: int) -> Cell:
    """Return memory in pages of ``page`` bytes in which a guest has room for a pool of its own."""
    return Cell(whole_pages(_MEMORY, page) * page, page)


def expect_pool_of_its_own(live: Live, guest: Guest, run: Run) -> None:
    """Expect a booted guest, which has all pages of the machine's pool, to reserve, use and give back its own."""

    def expect_inside(total: int, free: int) -> None:
        meminfo = parse_meminfo(run("cat /proc/meminfo"), "/proc/meminfo of the guest")
        live.expect("HugePages_Total in the guest", total, meminfo.get("HugePages_Total"))
        live.expect("HugePages_Free in the guest", free, meminfo.get("HugePages_Free"))
        live.expect_pool(nr=guest.pages, free=0)

    size = parse_meminfo(run("cat /proc/meminfo"), "/proc/meminfo of the guest")["Hugepagesize"]
    expect_inside(0, 0)
    run(f"echo {_POOL} >{POOL_FILE}")
    expect_inside(_POOL, _POOL)
    run("mkdir /huge; mount -t hugetlbfs none /huge")
    run(f"fallocate -l {_FILE * size} /huge/file")
    expect_inside(_POOL, _POOL - _FILE)
    run("rm /huge/file")
    expect_inside(_POOL, _POOL)
    run(f"echo 0 >{POOL_FILE}")
    expect_inside(0, 0)
    guest.expect_mapped()
