"""vm.nr_hugepages in sysctl.d: what systemd-sysctl writes at boot, and what a machine must show then.

The same reservation at run time, on memory that is fragmented on purpose by pages strewn over most of it that cannot be
moved, is evidence for what a reservation at boot is worth.
"""

import ctypes
import fcntl
import mmap
import os
import re
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.pools import DIRECTORY
from hugepage_qa.kernel.tree import DirectoryTree, Tree, read_integer, size_name
from hugepage_qa.kernel.uapi import PR_GET_THP_DISABLE, PR_SET_THP_DISABLE
from hugepage_qa.oracle.compare import Difference
from hugepage_qa.oracle.prediction import Between, Exactly, Expectation, Message, Prediction, SumOf, pool_subject
from hugepage_qa.oracle.rules import HUGETLB_DOC, Rule
from hugepage_qa.sizes import MIB

#: our own file; few names come after it
OWN_FILE = Path("/etc/sysctl.d/99-hugepage-qa.conf")

SYSCTL_WINS = Rule(
    "sysctl-wins-later",
    "vm.nr_hugepages in sysctl.d sets the pool of the default size after the boot, whatever hugepages= reserved",
    "sysctl.d(5); Documentation/admin-guide/mm/hugetlbpage.rst nr_hugepages",
)

# the first directory that has a file of some name masks the others (sysctl.d(5))
_DIRECTORIES = ("etc/sysctl.d", "run/sysctl.d", "usr/local/lib/sysctl.d", "usr/lib/sysctl.d", "lib/sysctl.d")
_ASSIGNMENT = re.compile(r"\s*-?vm[./]nr_hugepages\s*=\s*(?P<pages>[0-9]{1,18})\s*")


@dataclass(frozen=True)
class Persisted:
    """The value that is written last, in pages, and the file that it stands in."""

    pages: int
    path: Path


def read_persisted(root: Path = Path("/")) -> Persisted | None:
    """Return what systemd-sysctl makes of vm.nr_hugepages, None where no file sets it. Raises InputError."""
    last = None
    for path in _files(root):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}): expected to be root") from error
        for line in text.splitlines():
            if match := _ASSIGNMENT.fullmatch(line):
                last = Persisted(int(match["pages"]), path)
    return last


def own_text(pages: int) -> str:
    """Return the text of our own file that sets vm.nr_hugepages to ``pages``."""
    return f"# written by hugepage-qa reboot-cases, which removes it\nvm.nr_hugepages = {pages}\n"


def after_sysctl(prediction: Prediction, pages: int, memory: int) -> Prediction:
    """Return ``prediction`` for the moment after vm.nr_hugepages was set to ``pages``.

    They all come where half of the machine's ``memory`` (bytes) holds them, else any number of them; from which nodes
    is left to the kernel. The log still tells what was reserved at boot.
    """
    size = next(
        (
            one.expected.value
            for one in prediction.expectations
            if one.subject == "meminfo/Hugepagesize" and isinstance(one.expected, Exactly)
        ),
        None,
    )
    if not isinstance(size, int):
        return prediction
    pool = pool_subject(size, "nr_hugepages")
    # the machine's and those of the nodes
    counts = {one.subject for one in prediction.expectations if one.subject.endswith(pool)} | {"vm/nr_hugepages"}
    at_boot = [
        one for one in prediction.expectations if one.subject in counts and isinstance(one.expected, Exactly | Between)
    ]
    kept = tuple(one for one in prediction.expectations if one not in at_boot)
    reserved = next((one.expected for one in at_boot if one.subject == pool), None)
    lines = [one for one in prediction.pre_allocated if one.subject == pool]
    told = [
        Message(f"registered {one.size} page size, pre-allocated {reserved} pages", one.rule)
        for one in lines
        if isinstance(reserved, Exactly)
    ]
    return replace(
        prediction,
        expectations=(
            *kept,
            Expectation(pool, Exactly(pages) if pages * size <= memory // 2 else Between(0, pages), SYSCTL_WINS),
            Expectation("vm/nr_hugepages", SumOf(((pool, 1),)), SYSCTL_WINS),
        ),
        pre_allocated=tuple(one for one in prediction.pre_allocated if one not in lines),
        messages=(*prediction.messages, *told),
        shortages=tuple(one for one in prediction.shortages if one.subject not in counts),
    )


def _files(root: Path) -> Iterator[Path]:
    """Yield the files in the order in which they are applied: by name, whatever directory they are in."""
    found: dict[str, Path] = {}
    for directory in _DIRECTORIES:
        for path in sorted((root / directory).glob("*.conf")):
            found.setdefault(path.name, path)
    for _, path in sorted(found.items()):
        # a link to /dev/null switches a file off
        if path.resolve() != Path("/dev/null"):
            yield path


_LIBC = ctypes.CDLL(None, use_errno=True)

# linux/splice.h
_SPLICE_F_NONBLOCK = 2
# fs.pipe-max-size as it is by default; a pipe can hold as many pages as fit into it
_PIPE_BYTES = 1 * MIB
_CHUNK = 64 * MIB
# of what is available; the rest is for the machine
_PART, _WHOLE = 7, 10
_POPULATED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@contextmanager
def fragmented_memory(page: int, tree: Tree) -> Iterator[int]:
    """Hold unmovable pages, two in every ``page`` bytes of most memory, during the body; yield how many there are.

    Memory is filled with base pages, some of them are spliced into pipes, and all others are given back. The
    reference of a pipe keeps a page where it is: migration knows nothing of it (folio_migrate_mapping() in
    mm/migrate.c). Raises InputError where the kernel refuses.
    """
    chunks = read_meminfo(tree).get("MemAvailable", 0) * _PART // _WHOLE // _CHUNK
    with ExitStack() as stack:
        pins = _Pins(stack)
        with _base_pages_only():
            # all of it is there before the first page is pinned: what is given back must not be handed out again
            filled = [stack.enter_context(mmap.mmap(-1, _CHUNK, flags=_POPULATED)) for _ in range(chunks)]
        for chunk in filled:
            for offset in range(0, _CHUNK, max(mmap.PAGESIZE, page // 2)):
                pins.add(chunk, offset)
            chunk.close()
        yield pins.count


class _Pins:
    """Pages in pipes; they are let go with ``stack``."""

    def __init__(self, stack: ExitStack) -> None:
        self.count = 0
        self._stack = stack
        self._room = 0
        self._pipe = -1
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def add(self, memory: mmap.mmap, offset: int) -> None:
        """Hold the page at ``offset`` of ``memory``."""
        if self._room == 0:
            self._pipe = self._new_pipe()
            self._room = fcntl.fcntl(self._pipe, fcntl.F_GETPIPE_SZ) // mmap.PAGESIZE
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory, offset))
        vector = _Vector(address, mmap.PAGESIZE)
        if _LIBC.vmsplice(self._pipe, ctypes.byref(vector), 1, _SPLICE_F_NONBLOCK) != mmap.PAGESIZE:
            raise InputError(f"vmsplice: expected to pin a page, {os.strerror(ctypes.get_errno())}")
        self._room -= 1
        self.count += 1

    def _new_pipe(self) -> int:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        self._stack.callback(os.close, reader)
        self._stack.callback(os.close, writer)
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        return writer


@contextmanager
def _base_pages_only() -> Iterator[None]:
    """Have this process get no transparent huge pages."""
    before = _LIBC.prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0)
    _LIBC.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    try:
        yield
    finally:
        _LIBC.prctl(PR_SET_THP_DISABLE, before, 0, 0, 0)


NEVER_MORE = Rule(
    "never-more-than-asked",
    "a write to nr_hugepages never makes the pool larger than the number that was written",
    f"{HUGETLB_DOC} nr_hugepages; mm/hugetlb.c set_max_huge_pages()",
)

_DROP_CACHES = "proc/sys/vm/drop_caches"
_CLEAN_CACHE = "1"


@dataclass(frozen=True)
class RunTimeReservation:
    """How many pages of those ``asked`` the pool got; ``log`` shows the free blocks before, in between and after."""

    asked: int
    got: int
    pinned: int
    log: str

    @property
    def summary(self) -> str:
        """The figures in one line."""
        return f"at run time {self.got} of {self.asked} pages came, with {self.pinned} unmovable pages in memory"

    def differences(self) -> list[Difference]:
        """Return what is wrong: fewer pages are not, that is what fragmentation does."""
        if self.got <= self.asked:
            return []
        return [Difference("nr_hugepages at run time", NEVER_MORE, f"at most {self.asked}", str(self.got))]


def reserve_at_run_time(pages: int, size: int, root: Path = Path("/")) -> RunTimeReservation:
    """Ask for ``pages`` of ``size`` bytes on fragmented memory, and put the pool back. Raises InputError."""
    tree = DirectoryTree(root)
    path = f"{DIRECTORY}/{size_name(size)}/nr_hugepages"
    before = read_integer(tree, path)
    if before is None:
        raise InputError(f"/{path}: no such file, expected a pool of the default size")
    shown = [_free_blocks("before", tree)]
    _write(root / _DROP_CACHES, _CLEAN_CACHE)
    try:
        with fragmented_memory(size, tree) as pinned:
            shown.append(_free_blocks("fragmented", tree))
            _write(root / path, str(pages))
            got = read_integer(tree, path) or 0
            shown.append(_free_blocks(f"{got} of {pages} pages reserved", tree))
    finally:
        _write(root / path, str(before))
    return RunTimeReservation(pages, got, pinned, "\n".join(shown))


def _free_blocks(moment: str, tree: DirectoryTree) -> str:
    return f"--- /proc/buddyinfo, {moment}\n{tree.read('proc/buddyinfo') or 'cannot be read'}"


def _write(path: Path, value: str) -> None:
    try:
        path.write_text(f"{value}\n", encoding="ascii")
    except OSError as error:
        raise InputError(f"{path}: {value} cannot be written ({error.strerror}): expected to be root") from error
