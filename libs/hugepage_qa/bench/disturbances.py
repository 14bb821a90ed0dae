"""What a block runs in: caches dropped, memory compacted, THP as the configuration says, pages in the pool.

All changes are of knobs that the machine's protection puts back; pools and THP are also set anew for each block.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hugepage_qa.bench.backing import Backing, Kind, ProgramText
from hugepage_qa.bench.workload import Unavailable
from hugepage_qa.kernel import pools, thp
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.pools import Pool, read_pools
from hugepage_qa.kernel.tree import DirectoryTree, size_directories, size_name
from hugepage_qa.sizes import GIB, format_size

#: pages from this size on are kept from block to block: memory fragments, and they would not be had again
_KEPT = GIB

#: part of the available memory that a pool may take
_SHARE_OF_MEMORY = 0.7

_KHUGEPAGED = f"{thp.DIRECTORY}/khugepaged"
#: rests of 10 ms instead of 10 s
_QUICK = {"scan_sleep_millisecs": 10, "alloc_sleep_millisecs": 10, "pages_to_scan": 65536}
#: bytes of text behind its last whole huge page, from which on the kernel fills up the page
_PADDED_FROM = 4096

_DROP_CACHES = "proc/sys/vm/drop_caches"
_COMPACT = "proc/sys/vm/compact_memory"
_PAGES_AND_SLAB = "3"


class Surroundings:
    """The huge pages of the machine below ``root``; to be used inside of its protection."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._tree = DirectoryTree(root)
        found = thp.read_thp(self._tree)
        self._defrag = found.defrag if found else None
        self._khugepaged = {name: value for name, value in found.khugepaged.items() if name in _QUICK} if found else {}

    @contextmanager
    def of(self, backing: Backing, huge_bytes: int) -> Iterator[None]:
        """Have the machine ready for a block on ``backing`` that needs ``huge_bytes``. Raises Unavailable."""
        by_kind = {one.kind: one for one in backing.in_use}
        self._set_thp(by_kind.get(Kind.TRANSPARENT))
        self._set_hugetext(backing.text)
        self._quieten()
        static = by_kind.get(Kind.STATIC)
        if static is None:
            yield
            return
        pages = -(-huge_bytes // static.page_size)
        with self._pages(static.page_size, pages // 2 if static.is_halved else pages, exact=static.is_halved):
            yield

    def _quieten(self) -> None:
        os.sync()
        self._tree.write(_DROP_CACHES, _PAGES_AND_SLAB)
        # a kernel without CONFIG_COMPACTION has no such file
        if (self._root / _COMPACT).exists():
            self._tree.write(_COMPACT, "1")

    def _set_thp(self, transparent: Backing | None) -> None:
        """Set THP for anonymous and shared memory to always or never, or as is asked for, and other sizes to never."""
        mode = "never" if transparent is None else "always"
        for size, path in size_directories(self._tree, thp.DIRECTORY).items():
            of_size = "inherit" if transparent is not None and size == transparent.page_size else "never"
            for name in ("enabled", "shmem_enabled"):
                self._choose(f"{path}/{name}", of_size)
        self._choose(f"{thp.DIRECTORY}/enabled", mode)
        self._choose(f"{thp.DIRECTORY}/shmem_enabled", (transparent and transparent.shmem) or mode)
        chosen = self._defrag if transparent is None else transparent.defrag or self._defrag
        if chosen is not None:
            self._choose(f"{thp.DIRECTORY}/defrag", chosen)

    def _set_hugetext(self, text: ProgramText | None) -> None:
        """Set the mode of hugetext, and have khugepaged look often where it is the one who collapses."""
        mode = 0 if text is None else text.mode
        padding = _PADDED_FROM if text is not None and text.is_padded else 0
        for name, value in (("hugetext_enabled", mode), ("hugetext_pad_threshold", padding)):
            if value and not (self._root / thp.DIRECTORY / name).exists():
                raise Unavailable(f"this kernel has no hugetext (/{thp.DIRECTORY}/{name})")
            self._choose(f"{thp.DIRECTORY}/{name}", str(value))
        for name, usual in self._khugepaged.items():
            self._choose(f"{_KHUGEPAGED}/{name}", str(_QUICK[name] if mode else usual))

    def _choose(self, path: str, value: str) -> None:
        """Write ``value`` where the kernel has the file."""
        if (self._root / path).exists():
            self._tree.write(path, value)

    @contextmanager
    def _pages(self, size: int, pages: int, *, exact: bool) -> Iterator[None]:
        """Have ``pages`` pages of ``size`` bytes that nobody uses, or more, beside those that are in use."""
        before = self._pool(size)
        missing = pages - _unused(before)
        try:
            if missing > 0:
                self._grow(before, missing)
            elif exact:
                self._resize(size, _persistent(before) + missing)
            yield
        finally:
            if size < _KEPT:
                self._resize(size, _persistent(before))

    def _grow(self, pool: Pool, missing: int) -> None:
        available = read_meminfo(self._tree).get("MemAvailable", 0)
        if missing * pool.size > _SHARE_OF_MEMORY * available:
            raise Unavailable(
                f"{missing} pages of {format_size(pool.size)} are too much where {format_size(available)} are available"
            )
        self._resize(pool.size, _persistent(pool) + missing)
        got = _unused(self._pool(pool.size)) - _unused(pool)
        if got < missing:
            raise Unavailable(
                f"the kernel gave {got} of {missing} pages of {format_size(pool.size)}: memory is fragmented"
            )

    def _resize(self, size: int, pages: int) -> None:
        self._tree.write(f"{pools.DIRECTORY}/{size_name(size)}/nr_hugepages", str(pages))

    def _pool(self, size: int) -> Pool:
        return next(pool for pool in read_pools(self._tree) if pool.size == size)


def _unused(pool: Pool) -> int:
    return pool.count("free_hugepages") - pool.count("resv_hugepages")


def _persistent(pool: Pool) -> int:
    return pool.count("nr_hugepages") - pool.count("surplus_hugepages")
