"""Files that shrink, and advice on files: pages and reservations go where they must, and stay where they must."""

import errno
import fcntl
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import HugeFile, file_of_each_kind, new_memfd, open_file
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.race import at_once
from hugepage_qa.kernel.uapi import AT_FDCWD
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.actor_threads import Came
from hugepage_qa.sizes import GIB

TRUNCATE = Area("reservation/truncate", uncleared=True)
_ROUNDS = 30
SHRINK = "ftruncate(2); mmap(2) SIGBUS; fs/hugetlbfs/inode.c hugetlb_vmtruncate(), remove_inode_hugepages()"
ADVICE = "mm/readahead.c force_page_cache_ra(): hugetlbfs has no readahead; mm/hugetlb.c hugetlb_reserve_pages()"


@TRUNCATE.case(
    "what is beyond the new end gives its pages back and gets SIGBUS, even where pages are free", SHRINK, pages=2
)
def access_beyond_the_end(live: Live) -> None:
    for file in file_of_each_kind(live):
        memory = file.map(2)
        memory.touch(0, 1)
        memory.touch(1, 2)
        live.expect_pool(nr=2, free=0)
        file.truncate(1)
        live.expect_pool(nr=2, free=1)
        live.expect_signal(signal.SIGBUS, memory.read, 1)
        live.expect_signal(signal.SIGBUS, memory.touch, 1)
        live.expect_pool(nr=2, free=1)
        live.expect("the page before the end", 1, memory.read(0))
        file.truncate(0)
        live.expect_pool(nr=2, free=2)
        live.expect_signal(signal.SIGBUS, memory.touch, 0)
        live.expect_pool(nr=2, free=2)


@TRUNCATE.case(
    "a hole, and a new end, takes its pages alone from mappings that begin anywhere in the file: the shared pages and"
    " the private copies beside it hold what they held",
    f"{SHRINK} hugetlbfs_punch_hole(), vma_offset_start(), vma_offset_end()",
    sizes=Sizes.BUDDY,
    pages=8,
)
def pages_beside(live: Live) -> None:
    file = new_memfd(live)
    shared = file.map(3)
    private = [file.map(3 - first, shared=False, first=first) for first in range(2)]
    for about, cut, gone in (
        ("a hole in the middle", partial(file.punch, 1, 1), {1}),
        ("a hole at the end", partial(file.punch, 1, 2), {2}),
        ("a hole at the start", partial(file.punch, 1), {0}),
        ("one page cut off", partial(file.truncate, 2), {2}),
        ("two pages cut off", partial(file.truncate, 1), {1, 2}),
    ):
        file.truncate(3)
        shared.fill(1)
        for first, memory in enumerate(private):
            memory.fill(2 + first)
        cut()
        with live.about(about):
            for value, first, memory in ((1, 0, shared), (2, 0, private[0]), (3, 1, private[1])):
                left = [page for page in range(memory.pages) if page + first not in gone]
                wrong = [memory.wrong(page * live.size, live.size, value) for page in left]
                live.expect("words of what is left that changed", [0 for _page in left], wrong)
    for memory in (shared, *private):
        memory.unmap()
    file.truncate(0)
    live.expect_pool(nr=8, free=8)


@TRUNCATE.case(
    "a file that is emptied while a page of it is touched has no page and no reservation left, whoever came first",
    f"{SHRINK}; mm/hugetlb.c hugetlb_fault(), hugetlb_no_page()",
    sizes=Sizes.BUDDY,
    pages=1,
)
def emptied_while_it_is_touched(live: Live) -> None:
    quirk = Quirk.TRUNCATION_PASSES_OVER_A_FAULT
    if live.has_bug(quirk):
        # now and then the count stays below 0 when the file is gone
        if not live.host.is_thrown_away():
            raise CannotRun(
                f"{quirk.value}, a known bug of this kernel, spoils the pool until the machine is rebooted: a throwaway"
                " machine can judge it"
            )
        live.host.is_spoiled = True
    file = new_memfd(live)
    for _round in range(_ROUNDS):
        file.truncate(1)
        memory = file.map(1)
        with at_once(live, file.actor, 0) as threads:
            threads.use(memory, Came.DONE | Came.SIGBUS)
            file.truncate(0)
        live.expect_pool(nr=1, free=1, known={quirk: {"free": 0, "resv": -1}})
        live.expect_signal(signal.SIGBUS, memory.read)
        memory.unmap()
        live.expect_pool(nr=1, free=1)


@TRUNCATE.case(
    "each call that empties a file, by its name or by a descriptor, gives back all its pages and reservations, and"
    " leaves no length, no blocks and no page to who has it mapped; one that opens it otherwise changes nothing",
    f"{SHRINK}, hugetlbfs_setattr(); truncate(2); open(2) O_TRUNC, O_PATH; fs/namei.c handle_truncate()",
    pages=3,
)
def emptied_in_each_way(live: Live) -> None:
    point, other = live.mount(size=3 * live.size), live.actor()
    named, unnamed = open_file(live, f"{point}/file"), new_memfd(live)
    paths = (named, f"{point}/file"), (unnamed, f"/proc/{unnamed.actor.pid}/fd/{unnamed.descriptor}")
    # gigantic pages take seconds each
    for file, path in paths[: 1 if live.is_gigantic else 2]:
        for name, empty in _ways_to_empty(file, other, path):
            memory = file.map(3)
            memory.touch(1, 5)
            with live.about(f"{name}, {path}"):
                for flags in (os.O_RDONLY, os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_CREAT, os.O_PATH | os.O_TRUNC):
                    _open_and_close(other, path, flags)
                new = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_TRUNC
                live.expect_errno(errno.EEXIST, other.call, "openat", AT_FDCWD, path, new, 0)
                live.expect("size, blocks", (3 * live.size, live.size), (file.size, file.blocks))
                live.expect("what the page holds", 5, memory.read(1))
                live.expect_pool(nr=3, free=2, resv=2)
                live.expect_success(empty)
                live.expect("size, blocks", (0, 0), (file.size, file.blocks))
                live.expect("blocks of the mount that are left", 3, live.host.file_system(point).free_blocks)
                live.expect_pool(nr=3, free=3)
                for page in range(3):
                    live.expect_signal(signal.SIGBUS, memory.read, page)
                live.expect_pool(nr=3, free=3)
            memory.unmap()


@TRUNCATE.case(
    "a file that F_SEAL_SHRINK seals is emptied by no call, EPERM, and keeps its length, pages and reservations",
    "fcntl(2) F_SEAL_SHRINK; fs/hugetlbfs/inode.c hugetlbfs_setattr(); fs/namei.c handle_truncate()",
    pages=2,
)
def sealed_file_is_not_emptied(live: Live) -> None:
    file, other = new_memfd(live, flags=os.MFD_ALLOW_SEALING), live.actor()
    memory = file.map(2)
    memory.touch(1, 5)
    file.seal(fcntl.F_SEAL_SHRINK)
    for name, empty in _ways_to_empty(file, other, f"/proc/{file.actor.pid}/fd/{file.descriptor}"):
        with live.about(name):
            live.expect_errno(errno.EPERM, empty)
            live.expect("size, blocks", (2 * live.size, live.size), (file.size, file.blocks))
            live.expect("what the page holds", 5, memory.read(1))
            live.expect_pool(nr=2, free=1, resv=1)


def _ways_to_empty(file: HugeFile, other: Actor, path: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield calls that make ``file`` empty, of who has it open or of another process."""
    yield "ftruncate(2)", partial(file.truncate, 0)
    yield "truncate(2)", partial(other.call, "truncate", path, 0)
    for flags in (os.O_RDWR, os.O_WRONLY, os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_RDWR | os.O_APPEND):
        yield f"O_TRUNC with flags {flags:#o}", partial(other.call, "openat", AT_FDCWD, path, flags | os.O_TRUNC, 0)


def _open_and_close(actor: Actor, path: str, flags: int) -> None:
    actor.call("close", actor.call("openat", AT_FDCWD, path, flags, 0))


@TRUNCATE.case("reservations beyond the new end go, those before it stay", SHRINK, pages=3)
def reservations_beyond_the_end(live: Live) -> None:
    for file in file_of_each_kind(live):
        memory = file.map(3)
        memory.touch(1)
        live.expect_pool(nr=3, free=2, resv=2)
        file.truncate(2)
        live.expect_pool(nr=3, free=2, resv=1)
        file.truncate(1)
        live.expect_pool(nr=3, free=3, resv=1)
        memory.touch(0)
        live.expect_pool(nr=3, free=2)
        file.truncate(0)
        live.expect_pool(nr=3, free=3)


@TRUNCATE.case("a file that grows again shows zeroes where it was cut off", SHRINK, pages=2)
def shrink_and_grow(live: Live) -> None:
    for file in file_of_each_kind(live):
        memory = file.map(2)
        memory.touch(0, 1)
        memory.touch(1, 2)
        file.truncate(1)
        file.truncate(2)
        live.expect_pool(nr=2, free=1)
        memory.expect_zero(1)
        live.expect_pool(nr=2, free=0)
        live.expect("the page that stayed", 1, memory.read(0))
        file.truncate(0)


@TRUNCATE.case(
    "every process that has the file mapped loses what is cut off",
    SHRINK,
    pages=2,
)
def truncated_for_all(live: Live) -> None:
    file = new_memfd(live)
    memory = file.map(2)
    memory.touch(1)
    child = memory.fork()
    live.expect("what the child sees", 1, child.read(1))
    file.truncate(1)
    live.expect_pool(nr=2, free=2, resv=1)
    for mapping in (memory, child):
        live.expect_signal(signal.SIGBUS, mapping.read, 1)


@TRUNCATE.case("the private copies of a file beyond its new end get SIGBUS, too", SHRINK, pages=2)
def private_copies_beyond_the_end(live: Live) -> None:
    file = new_memfd(live)
    shared = file.map(1)
    shared.touch()
    private = file.map(1, shared=False)
    private.touch(value=2)
    live.expect_pool(nr=2, free=0)
    file.truncate(0)
    live.expect_signal(signal.SIGBUS, private.read)
    live.expect_signal(signal.SIGBUS, private.touch)
    private.unmap()
    live.expect_pool(nr=2, free=2)


@TRUNCATE.case(
    "a file of huge pages is a whole number of them long", "fs/hugetlbfs/inode.c hugetlbfs_setattr()", pages=1
)
def whole_pages(live: Live) -> None:
    for file in file_of_each_kind(live):
        file.map(1).touch()
        for length in (1, live.base_page, live.size - live.base_page, live.size + live.base_page):
            live.expect_errno(errno.EINVAL, file.actor.call, "ftruncate", file.descriptor, length)
            live.expect("the size of the file", live.size, file.size)
            live.expect_pool(nr=1, free=0)
        file.truncate(0)


@TRUNCATE.case("a longer file takes and reserves no page", SHRINK, pages=1)
def grown_file(live: Live) -> None:
    for file in file_of_each_kind(live):
        file.truncate(1000)
        live.expect("the size of the file", 1000 * live.size, file.size)
        live.expect_pool(nr=1, free=1)


@TRUNCATE.case(
    "pages far behind the start of a file are truncated, and no others, nor private copies of others", SHRINK
)
def sparse_file(live: Live) -> None:
    # at 4 GiB offsets were cut off once, and those of base and of huge pages confused (856fc2950555)
    cut = max(1, 4 * GIB // live.size)
    confused = min(4 * GIB // (live.size // live.base_page) // live.size, cut - 1)
    near, copied = {0, confused, cut - 1}, {0, confused}
    used = len(near) + len(copied)
    live.reserve(used + 1)
    for file in file_of_each_kind(live):
        file.truncate(cut + 1)
        kept = [file.map(1, first=page) for page in sorted(near)]
        # whose page of the file is unmapped by mistake finds it again, but not a copy
        kept += [file.map(1, first=page, shared=False) for page in sorted(copied)]
        distant = file.map(1, first=cut)
        for memory in (*kept, distant):
            memory.fill(2)
        live.expect_pool(nr=used + 1, free=0)
        file.truncate(cut)
        live.expect_pool(nr=used + 1, free=1)
        live.expect_signal(signal.SIGBUS, distant.read)
        live.expect_signal(signal.SIGBUS, distant.touch)
        for memory in kept:
            memory.expect_filled(2)
            memory.unmap()
        file.truncate(0)
        live.expect_pool(nr=used + 1, free=used + 1)


@TRUNCATE.case("what is beyond the new end gets SIGBUS, also where others have every page", SHRINK, pages=1)
def access_beyond_the_end_without_pages(live: Live) -> None:
    for file in file_of_each_kind(live):
        memory = file.map(1)
        memory.touch()
        file.truncate(0)
        owner = live.map(1)
        owner.fill(7)
        live.expect_pool(nr=1, free=0)
        live.expect_signal(signal.SIGBUS, memory.read)
        live.expect_signal(signal.SIGBUS, memory.touch)
        live.expect_pool(nr=1, free=0)
        owner.expect_filled(7)
        owner.unmap()
        live.expect_pool(nr=1, free=1)


# --- advice ----------------------------------------------------------------------------------------------------------


@TRUNCATE.case("advice on a file of huge pages takes no page and no reservation", ADVICE, pages=2)
def advice_on_a_file(live: Live) -> None:
    for file in file_of_each_kind(live):
        memory = file.map(2)
        memory.touch(0, 7)
        for advice in (os.POSIX_FADV_WILLNEED, live.host.uapi.posix_fadv_dontneed, os.POSIX_FADV_SEQUENTIAL):
            file.actor.call("fadvise64", file.descriptor, 0, 2 * live.size, advice)
            live.expect_pool(nr=2, free=1, resv=1)
        file.actor.call("readahead", file.descriptor, 0, 2 * live.size)
        live.expect_pool(nr=2, free=1, resv=1)
        memory.advise(mmap.MADV_WILLNEED)
        live.expect_pool(nr=2, free=1, resv=1)
        live.expect("the page", 7, memory.read(0))
        memory.touch(1)
        live.expect_pool(nr=2, free=0)
        memory.unmap()
        file.truncate(0)
        live.expect_pool(nr=2, free=2)


@TRUNCATE.case("advice on a file that nobody has mapped takes nothing", ADVICE, pages=1)
def advice_on_an_unmapped_file(live: Live) -> None:
    for file in file_of_each_kind(live):
        file.truncate(1)
        file.actor.call("fadvise64", file.descriptor, 0, live.size, os.POSIX_FADV_WILLNEED)
        file.actor.call("readahead", file.descriptor, 0, live.size)
        live.expect_pool(nr=1, free=1)


@TRUNCATE.case("advice on private huge pages takes no page and no reservation", ADVICE, pages=2)
def advice_on_private_pages(live: Live) -> None:
    memory = live.map(2)
    memory.touch(0)
    memory.advise(mmap.MADV_WILLNEED)
    live.expect_pool(nr=2, free=1, resv=1)
    memory.unmap()
    live.expect_pool(nr=2, free=2)


class Truncate(LiveTest):
    def test_truncate(self) -> None:
        self.run_area(TRUNCATE)
