"""What a group, and vmstat, count of files that are written, in folios of any size: dirty memory, and what went out."""

import mmap
import os
from collections.abc import Callable
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import read_counters
from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.group_memory import file_on_a_disk, need_exact_charges
from hugepage_qa.cases.group_statistics import ADDED_UP_SECONDS, read_statistics
from hugepage_qa.cases.large_folios import block_size
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, mount_tmpfs
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

COUNTED_WRITES = Area("cgroup/counted-writes", sizes=Sizes.ONCE)

_PAGES = 4
_DIRTY, _BEING_WRITTEN = "file_dirty", "file_writeback"
#: of vmstat, which only rise
_DIRTIED, _WRITTEN = "nr_dirtied", "nr_written"


class _WrittenFile:
    """An open file of a process, which has it mapped, and a group that the process is in."""

    def __init__(self, live: Live, group: ControlGroup, actor: Actor, descriptor: int) -> None:
        self._live = live
        self._group = group
        self.actor = actor
        self.descriptor = descriptor
        self.length = _PAGES * block_size(live)
        group.add(actor)
        self._mapped = actor.mmap(self.length, READ_WRITE, mmap.MAP_SHARED, descriptor)
        self._words = actor.mmap(self.length, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        actor.fill(self._words, self.length, WORD, 1)

    def write(self) -> None:
        """Write all of it by write(2)."""
        written = self.actor.call("pwrite64", self.descriptor, self._words, self.length, 0)
        self._live.expect("bytes written", self.length, written)

    def store(self) -> None:
        """Write all of it by stores into its mapping."""
        self.actor.fill(self._mapped, self.length, WORD, 1)

    def expect_dirty(self, length: int, write: Callable[[], None]) -> None:
        """Expect so much of it to be dirty, and less than half a huge page besides, after it was written.

        The kernel may have written it to the disk by then, as it does when it likes: it is written again.
        """

        def dirty() -> int:
            write()
            return read_statistics(self._group)[_DIRTY]

        half = block_size(self._live) // 2
        found = self._live.host.last_look(dirty, lambda now: length <= now < length + half, ADDED_UP_SECONDS)
        if found < length:
            _need_calm(self._live, length - found)
        self._live.expect(f"whether {_DIRTY}, {found} bytes, is {length}", True, length <= found < length + half)

    def expect_clean(self) -> None:
        """Expect none of it to be dirty, and none to be on its way to the disk."""

        def found() -> list[int]:
            return [read_statistics(self._group)[name] // block_size(self._live) for name in (_DIRTY, _BEING_WRITTEN)]

        now = self._live.host.last_look(found, [0, 0].__eq__, ADDED_UP_SECONDS)
        self._live.expect(f"huge pages in {_DIRTY}, {_BEING_WRITTEN}", [0, 0], now)


@COUNTED_WRITES.case(
    "file_dirty of a group is what its processes have written to a file and is on no disk yet, once however often, by"
    " write(2) and by stores, in base pages of folios of any size; nothing when it is synced, and no more for what is"
    " cut off; nr_dirtied and nr_written of vmstat rise by no less; of a tmpfs nothing is dirty",
    "Documentation/admin-guide/cgroup-v2.rst memory.stat file_dirty, file_writeback; mm/page-writeback.c"
    " folio_account_cleaned(), folio_clear_dirty_for_io(); mm/shmem.c",
    since="5.13",  # 2d146aa3aa84: before, memory.stat lacks what each CPU has not added up
)
def dirtied_and_written(live: Live) -> None:
    need_exact_charges(live)
    let_only_pmd_inherit(live)
    above, length = new_group(live, "memory", Version.TWO), _PAGES * block_size(live)
    _need_calm(live, length)
    for name, write in (("write", _WrittenFile.write), ("stores", _WrittenFile.store)):
        with live.about(name):
            on_disk = file_on_a_disk(live, length)
            file = _WrittenFile(live, above.child(name), on_disk.actor.fork(), on_disk.descriptor)
            before = read_counters(live)
            for _time in range(2):
                file.expect_dirty(length, partial(write, file))
            _expect_rise(live, _DIRTIED, before, length)
            file.actor.call("fsync", file.descriptor)
            file.expect_clean()
            _expect_rise(live, _WRITTEN, before, length)
            write(file)
            file.actor.call("ftruncate", file.descriptor, 0)
            file.expect_clean()
            file.actor.end()
            on_disk.actor.end()
    point, actor = mount_tmpfs(live, "always"), live.actor()
    descriptor = live.open(actor, point, live.host.uapi.o_tmpfile | os.O_RDWR)
    actor.call("ftruncate", descriptor, length)
    with live.about("tmpfs"):
        file = _WrittenFile(live, above.child("tmpfs"), actor, descriptor)
        file.write()
        file.store()
        file.expect_clean()


def _need_calm(live: Live, length: int) -> None:
    """Raise CannotRun where ``length`` bytes more that are dirty are so many that the kernel writes them at once.

    Whoever dirties memory has all of its group written where the whole machine has more than vm.dirty_background_ratio
    or _bytes allow (balance_dirty_pages() in mm/page-writeback.c).
    """
    counters = read_counters(live)
    dirty, most = (counters[name] * live.base_page for name in ("nr_dirty", "nr_dirty_background_threshold"))
    if dirty + length >= most:
        raise CannotRun(f"{dirty} bytes of the machine are dirty, and with {length} more it has over {most}: it writes")


def _expect_rise(live: Live, counter: str, before: dict[str, int], length: int) -> None:
    """Expect a counter to have risen by ``length`` bytes at least: what others write counts, too."""
    rise = (read_counters(live)[counter] - before[counter]) * live.base_page
    live.expect(f"whether {counter}, {rise} bytes more, has all of it", True, rise >= length)


class CgroupCountedWrites(LiveTest):
    def test_counted_writes(self) -> None:
        self.run_area(COUNTED_WRITES)
