"""What a running guest shows: the huge pages in its QEMU, where they lie, and the files in hugetlbfs."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from hugepage_qa.kernel.numa_maps import read_numa_maps
from hugepage_qa.kernel.proc_tables import read_mounts
from hugepage_qa.kernel.smaps import MemoryMapping, parse_huge_mappings, parse_smaps, smaps_path
from hugepage_qa.kernel.tree import Tree
from hugepage_qa.qemu.guest.driver import GuestError
from hugepage_qa.sizes import KIB

_PAGE_SIZE = re.compile(r"^KernelPageSize: +(\d+) kB$", re.MULTILINE)


def mapped_pages(tree: Tree, pid: int) -> Mapping[int, int]:
    """Return page size -> huge pages that the process maps and has touched.

    Raises GuestError for a process that has ended, InputError for a malformed file.
    """
    pages: Counter[int] = Counter()
    for mapping in _huge_mappings(tree, pid):
        if mapping.is_hugetlb:
            size = mapping.kernel_page_size
            pages[size] += mapping.hugetlb // size
    return +pages


def hugetlb_mappings(tree: Tree, pid: int) -> list[tuple[bool, int, int]]:
    """Return what the process maps of pools, by address: whether it is shared, its bytes, and those that are there.

    Raises as ``mapped_pages`` does.
    """
    return [
        (mapping.is_shared, mapping.size, mapping.hugetlb)
        for mapping in _huge_mappings(tree, pid)
        if mapping.is_hugetlb
    ]


def mappings_of_size(tree: Tree, pid: int, size: int) -> list[MemoryMapping]:
    """Return what the process maps in one piece of ``size`` bytes. Raises as ``mapped_pages`` does."""
    return [mapping for mapping in _mappings(tree, pid) if mapping.size == size]


def hugetlb_policies(tree: Tree, pid: int) -> list[str]:
    """Return the memory policy of each mapping of a pool, by address; none for a kernel without numa_maps."""
    return [mapping.policy for mapping in read_numa_maps(tree, pid) or () if mapping.huge]


def transparent_bytes(tree: Tree, pid: int) -> int:
    """Return the bytes of the process in transparent huge pages. Raises as ``mapped_pages`` does."""
    return sum(mapping.anon_huge_pages + mapping.shmem_pmd_mapped for mapping in _huge_mappings(tree, pid))


def swapped_bytes(tree: Tree, pid: int) -> int:
    """Return the bytes of the process that are in swap. Raises as ``mapped_pages`` does."""
    return sum(mapping.fields.get("Swap", 0) for mapping in _mappings(tree, pid))


def pages_on_nodes(tree: Tree, pid: int, size: int) -> Mapping[int, int] | None:
    """Return node -> huge pages of ``size`` bytes; None for a kernel without numa_maps. Raises InputError."""
    mappings = read_numa_maps(tree, pid)
    if mappings is None:
        return None
    pages: Counter[int] = Counter()
    for mapping in mappings:
        if mapping.huge and mapping.page_size == size:
            pages.update(mapping.nodes)
    return pages


def hugetlbfs_mounts(tree: Tree) -> tuple[str, ...]:
    """Return where the machine has a hugetlbfs, in one order, so that a record can be replayed."""
    return tuple(sorted({mount.point for mount in read_mounts(tree) if mount.type == "hugetlbfs"}))


def hugetlbfs_files(tree: Tree, mounts: Iterable[str]) -> frozenset[str]:
    """Return the files, and the directories without any, in these ``mounts``."""
    return frozenset(path for point in mounts for path in _leaves(tree, point.lstrip("/")))


def _mappings(tree: Tree, pid: int) -> tuple[MemoryMapping, ...]:
    """Return what the process maps. Raises as ``mapped_pages`` does."""
    return parse_smaps(_smaps(tree, pid), smaps_path(pid))


def _huge_mappings(tree: Tree, pid: int) -> tuple[MemoryMapping, ...]:
    """Return those of its mappings that have huge pages, out of hundreds. Raises as ``mapped_pages`` does."""
    text = _smaps(tree, pid)
    # no process is without base pages
    base_page_size = min(map(int, _PAGE_SIZE.findall(text)), default=0) * KIB
    return parse_huge_mappings(text, smaps_path(pid), base_page_size)


def _smaps(tree: Tree, pid: int) -> str:
    """Return what its mappings are read from: a QEMU that has died must not pass for one that gave all pages back."""
    text = tree.read(smaps_path(pid))
    if not text:
        raise GuestError(f"QEMU, process {pid}, has ended by itself: it maps nothing")
    return text


def _leaves(tree: Tree, directory: str) -> Iterator[str]:
    names = tree.names(directory)
    if not names:
        yield directory
    for name in names:
        yield from _leaves(tree, f"{directory}/{name}")
