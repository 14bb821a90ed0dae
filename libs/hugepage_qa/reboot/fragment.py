"""Memory that is fragmented on purpose: pages that cannot be moved, strewn over most of it."""

import ctypes
import fcntl
import mmap
import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.meminfo import read_meminfo
from hugepage_qa.kernel.tree import Tree
from hugepage_qa.sizes import MIB

_LIBC = ctypes.CDLL(None, use_errno=True)

# linux/prctl.h
_PR_SET_THP_DISABLE = 41
_PR_GET_THP_DISABLE = 42
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
    before = _LIBC.prctl(_PR_GET_THP_DISABLE, 0, 0, 0, 0)
    _LIBC.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    try:
        yield
    finally:
        _LIBC.prctl(_PR_SET_THP_DISABLE, before, 0, 0, 0)
