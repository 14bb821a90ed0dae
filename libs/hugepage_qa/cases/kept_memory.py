"""What the kernel keeps of something that was done thousands of times, and is over: it must be next to nothing."""

from collections.abc import Callable, Mapping
from functools import partial
from operator import not_

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.memory_account import read_account
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.open_files import read_open_files, read_used_inodes
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.sizes import MIB

_INODES, _FILES, _NOBODY = "inodes", "open files", "memory that nobody has"
_KERNEL, _TABLES = "memory of the kernel", "page tables"
#: more than others open meanwhile, and less than would be left if it were one each time
_MANY = 1000
#: base pages of memory of the kernel: some hundred bytes each time
_MUCH = 256
#: base pages of page tables: more than those of a process, and less than one each time
_MANY_TABLES = 32
#: lines of /proc/meminfo
_OF_THE_KERNEL = ("Slab", "Percpu", "VmallocUsed", "KernelStack")
#: what drivers of a machine that others use take meanwhile is less
_LOST = 16 * MIB
_SETTLED_SECONDS = 5.0


def expect_nothing_kept(live: Live, act: Callable[[], None], of_the_kernel: int | None = None) -> None:
    """Have ``act`` do something often, and expect not much more of anything afterwards, what is given back late too.

    Of memory of the kernel that is so many bytes, by default what something of some hundred bytes each time comes to.
    Where there is more it is done again: what is kept for the next time does not grow again.
    """
    most = _MUCH * live.base_page if of_the_kernel is None else of_the_kernel

    def more_than_before() -> list[str]:
        live.make_room()
        before = _read(live)
        act()
        left = partial(_left, live, before, most)
        if left():
            # others have opened files, of which the kernel keeps inodes and names
            live.make_room()
        return live.host.last_look(left, not_, _SETTLED_SECONDS)

    live.expect("what there is much more of than before", [], live.host.last_attempt(more_than_before, not_))


def _read(live: Live) -> Mapping[str, int]:
    tree = ObservedTree(live.host)
    kept = {_INODES: read_used_inodes(tree), _FILES: read_open_files(tree), _NOBODY: read_account(live).unaccounted}
    if not live.host.has_others:
        meminfo = read_meminfo(tree)
        kept[_KERNEL] = sum(meminfo.get(name, 0) for name in _OF_THE_KERNEL)
        kept[_TABLES] = meminfo.get("PageTables", 0)
    return kept


def _left(live: Live, before: Mapping[str, int], of_the_kernel: int) -> list[str]:
    now, base = _read(live), live.base_page
    most = {_INODES: _MANY, _FILES: _MANY, _NOBODY: _LOST, _KERNEL: of_the_kernel, _TABLES: _MANY_TABLES * base}
    return [f"{name}: {now[name] - count} more" for name, count in before.items() if now[name] - count > most[name]]
