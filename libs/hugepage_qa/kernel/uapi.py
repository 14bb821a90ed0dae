"""Numbers that system calls take (include/uapi) and Python does not name, or not on every architecture."""

from hugepage_qa.kernel.cpu import read_cpu
from hugepage_qa.kernel.tree import Tree

# include/uapi/asm-generic/hugetlb_encode.h, mman-common.h, include/uapi/linux/mman.h: the same on x86, arm64, powerpc
# and s390
MAP_FIXED = 0x10
MAP_HUGETLB = 0x40000
MAP_POPULATE = 0x8000
MAP_FIXED_NOREPLACE = 0x100000
HUGE_SHIFT = 26
HUGE_MASK = 0x3F

MREMAP_MAYMOVE = 1
MREMAP_FIXED = 2
MREMAP_DONTUNMAP = 4

MADV_DONTNEED = 4
MADV_HUGEPAGE = 14
MADV_NOHUGEPAGE = 15
MADV_PAGEOUT = 21
MADV_POPULATE_READ = 22
MADV_POPULATE_WRITE = 23
MADV_COLLAPSE = 25
MADV_WIPEONFORK = 18
MADV_COLD = 20
MADV_HWPOISON = 100
MADV_SOFT_OFFLINE = 101
MADV_GUARD_INSTALL = 102

FALLOC_FL_KEEP_SIZE = 0x01
FALLOC_FL_PUNCH_HOLE = 0x02
FALLOC_FL_COLLAPSE_RANGE = 0x08
FALLOC_FL_ZERO_RANGE = 0x10

MLOCK_ONFAULT = 1

PR_SET_THP_DISABLE = 41
PR_GET_THP_DISABLE = 42

#: openat(2): relative to the working directory
AT_FDCWD = -100

#: the user and the group without rights: fs_overflowuid, nobody
NOBODY = 65534


def map_noreserve(tree: Tree) -> int:
    """Return MAP_NORESERVE of the architecture (arch/*/include/uapi/asm/mman.h)."""
    return 0x40 if _is_powerpc(tree) else 0x4000


def map_locked(tree: Tree) -> int:
    """Return MAP_LOCKED of the architecture (arch/*/include/uapi/asm/mman.h)."""
    return 0x80 if _is_powerpc(tree) else 0x2000


def _is_powerpc(tree: Tree) -> bool:
    return read_cpu(tree).mmu is not None
