"""Numbers and layouts that system calls take (include/uapi): what Python does not name, and where machines differ.

What Python does name it has from the machine that it runs on, which need not be the machine under test.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from hugepage_qa.errors import InputError

# include/uapi/asm-generic/hugetlb_encode.h, mman-common.h, include/uapi/linux/mman.h: the same on x86, arm64, powerpc
# and s390
PROT_NONE = 0
MAP_FIXED = 0x10
MAP_GROWSDOWN = 0x100
MAP_HUGETLB = 0x40000
MAP_POPULATE = 0x8000
MAP_FIXED_NOREPLACE = 0x100000
HUGE_SHIFT = 26
HUGE_MASK = 0x3F

MREMAP_MAYMOVE = 1
MREMAP_FIXED = 2
MREMAP_DONTUNMAP = 4

MADV_NORMAL = 0
MADV_SEQUENTIAL = 2
MADV_WILLNEED = 3
MADV_DONTNEED = 4
MADV_MERGEABLE = 12
MADV_UNMERGEABLE = 13
MADV_HUGEPAGE = 14
MADV_NOHUGEPAGE = 15
MADV_DONTDUMP = 16
MADV_DODUMP = 17
MADV_PAGEOUT = 21
MADV_POPULATE_READ = 22
MADV_POPULATE_WRITE = 23
MADV_DONTNEED_LOCKED = 24
MADV_COLLAPSE = 25
MADV_WIPEONFORK = 18
MADV_KEEPONFORK = 19
MADV_COLD = 20
MADV_HWPOISON = 100
MADV_SOFT_OFFLINE = 101
MADV_GUARD_INSTALL = 102
MADV_GUARD_REMOVE = 103

FALLOC_FL_KEEP_SIZE = 0x01
FALLOC_FL_PUNCH_HOLE = 0x02
FALLOC_FL_COLLAPSE_RANGE = 0x08
FALLOC_FL_ZERO_RANGE = 0x10
FALLOC_FL_INSERT_RANGE = 0x20

# include/uapi/linux/fcntl.h, since 5.1
F_SEAL_FUTURE_WRITE = 0x10
# since 6.3
F_SEAL_EXEC = 0x20
# include/uapi/linux/memfd.h
MFD_NOEXEC_SEAL, MFD_EXEC = 0x8, 0x10

MLOCK_ONFAULT = 1

RLIM_INFINITY = (1 << 64) - 1
RLIMIT_FSIZE = 1
RLIMIT_DATA = 2
RLIMIT_CORE = 4
RLIMIT_MEMLOCK = 8
RLIMIT_AS = 9

PR_SET_THP_DISABLE = 41
PR_GET_THP_DISABLE = 42
#: since Linux 6.18
PR_THP_DISABLE_EXCEPT_ADVISED = 2
PR_MCE_KILL = 33
PR_MCE_KILL_SET = 1
PR_MCE_KILL_LATE = 0
PR_MCE_KILL_EARLY = 1
PR_MCE_KILL_DEFAULT = 2
PR_MCE_KILL_GET = 34

# include/uapi/asm-generic/signal.h, include/uapi/linux/sched.h
SIG_BLOCK = 0
CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000

# include/uapi/asm-generic/mman-common.h: of msync(2)
MS_ASYNC = 1
MS_INVALIDATE = 2
MS_SYNC = 4

# include/uapi/linux/mount.h
MS_RDONLY = 1
MS_REMOUNT = 1 << 5
MS_BIND = 1 << 12
MS_REC = 1 << 14
MS_PRIVATE = 1 << 18

# include/uapi/asm-generic/fcntl.h
O_NOATIME = 0o1000000
#: openat(2): relative to the working directory
AT_FDCWD = -100
#: unlinkat(2): a directory
AT_REMOVEDIR = 0x200
#: statx(2): the file that the descriptor is of
AT_EMPTY_PATH = 0x1000

#: the user and the group without rights: fs_overflowuid, nobody
NOBODY = 65534

ByteOrder = Literal["little", "big"]

_ORDERS: Mapping[ByteOrder, str] = {"little": "<", "big": ">"}
# include/uapi/asm-generic/fcntl.h
_O_TMPFILE = 0o20000000
#: BITS_PER_LONG
_BITS = 64


@dataclass(frozen=True)
class Uapi:
    """What architectures differ in; what is not said is as in include/uapi/asm-generic."""

    byte_order: ByteOrder = "little"
    # arch/powerpc/include/uapi/asm/mman.h
    map_noreserve: int = 0x4000
    map_locked: int = 0x2000
    mcl_current: int = 1
    mcl_future: int = 2
    # arch/{arm64,powerpc}/include/uapi/asm/fcntl.h
    o_direct: int = 0o40000
    o_directory: int = 0o200000
    # _IOC_READ where it stands in a command: arch/powerpc/include/uapi/asm/ioctl.h
    ioc_read: int = 2 << 30
    # include/uapi/linux/fadvise.h, where s390 alone is another
    posix_fadv_dontneed: int = 4
    # shmid64_ds behind its shm_perm: arch/powerpc/include/uapi/asm/shmbuf.h
    shmid_longs: tuple[str, ...] = ("shm_segsz", "shm_atime", "shm_dtime", "shm_ctime")
    # struct statfs without its spare words: arch/s390/include/uapi/asm/statfs.h
    statfs_layout: str = "7Q2I3Q"
    #: DEFAULT_MAP_WINDOW: addresses beyond it are for those who ask for them; None where there is no such limit
    map_window: int | None = 1 << 47

    @property
    def o_tmpfile(self) -> int:
        """O_TMPFILE, of which O_DIRECTORY is a part."""
        return _O_TMPFILE | self.o_directory

    def ior(self, kind: int, number: int, size: int) -> int:
        """Return _IOR() of an argument of ``size`` bytes (include/uapi/asm-generic/ioctl.h)."""
        return self.ioc_read | size << 16 | kind << 8 | number

    def iow(self, kind: int, number: int, size: int) -> int:
        """Return _IOW() of an argument of ``size`` bytes: of both directions that which is not ``ioc_read``."""
        return iowr(kind, number, size) ^ self.ioc_read

    def pack(self, layout: str, *values: int) -> bytes:
        """Return ``values`` as the machine has them in memory; ``layout`` is that of ``struct``, unpadded."""
        return struct.pack(_ORDERS[self.byte_order] + layout, *values)

    def unpack(self, layout: str, data: bytes) -> tuple[int, ...]:
        """Return the values of which ``pack`` makes ``data``."""
        return struct.unpack(_ORDERS[self.byte_order] + layout, data)

    def size_of(self, layout: str) -> int:
        """Return how many bytes ``pack`` makes of values in ``layout``."""
        return struct.calcsize(_ORDERS[self.byte_order] + layout)

    def bitmap(self, numbers: Iterable[int], words: int = 0) -> bytes:
        """Return a mask of nodes or CPUs: of unsigned longs, ``words`` at least, and one bit longer than it must be."""
        bits = sum(1 << number for number in set(numbers))
        count = max(words, bits.bit_length() // _BITS + 1)
        return self.pack(f"{count}Q", *(bits >> (_BITS * word) & (1 << _BITS) - 1 for word in range(count)))


UAPIS: Mapping[str, Uapi] = {
    "x86_64": Uapi(),
    "aarch64": Uapi(o_direct=0o200000, o_directory=0o40000, map_window=1 << 48),
    "ppc64le": Uapi(
        map_noreserve=0x40,
        map_locked=0x80,
        mcl_current=0x2000,
        mcl_future=0x4000,
        o_direct=0o400000,
        o_directory=0o40000,
        ioc_read=2 << 29,
        shmid_longs=("shm_atime", "shm_dtime", "shm_ctime", "shm_segsz"),
    ),
    "s390x": Uapi(byte_order="big", posix_fadv_dontneed=6, statfs_layout="2I5Q2I3I", map_window=None),
}


def find_uapi(architecture: str) -> Uapi:
    """Return what is special to ``architecture`` (``uname -m``). Raises InputError for one that is not known."""
    if architecture not in UAPIS:
        raise InputError(f"machine {architecture!r}: expected one of {', '.join(UAPIS)}")
    return UAPIS[architecture]


def iowr(kind: int, number: int, size: int) -> int:
    """Return _IOWR() of an argument of ``size`` bytes (include/uapi/asm-generic/ioctl.h).

    powerpc has one bit more for the direction and other ones for reading and writing; both together are the same.
    """
    return 3 << 30 | size << 16 | kind << 8 | number
