"""What stat(2) tells of a file, and statfs(2) of the file system that it is on."""

from dataclasses import dataclass

from hugepage_qa.kernel.uapi import Uapi

# struct statx of include/uapi/linux/stat.h, the same on all architectures
STATX_SIZE = 256
STATX_BASIC_STATS = 0x7FF
_STATX = "2IQ3I2H4Q" + 4 * "qIi" + "4IQ2I"
_STATX_END = 0xA0
_PERMISSIONS = 0o7777
_BLOCK = 512

#: as long as the longest struct statfs
STATFS_SIZE = 120

Moment = tuple[int, int]


@dataclass(frozen=True)
class FileStatus:
    """What statx(2) tells of a file: moments in seconds and nanoseconds, sizes in bytes.

    ``device`` is that of its file system, as /proc/PID/maps shows it, ``block_size`` that in which it is best read and
    written, ``direct_alignment`` what O_DIRECT carries multiples of, 0 where that is not told.
    """

    device: str
    inode: int
    type: int
    mode: int
    owner: int
    group: int
    links: int
    size: int
    occupied: int
    block_size: int
    direct_alignment: int
    accessed_at: Moment
    modified_at: Moment
    changed_at: Moment


def file_status(uapi: Uapi, statx: bytes) -> FileStatus:
    """Return what a struct statx tells."""
    words = uapi.unpack(_STATX, statx[:_STATX_END])
    _mask, block_size, _attributes, links, owner, group, mode, _spare, inode, size, blocks, _known = words[:12]
    accessed, _born, changed, modified = ((words[at], words[at + 1]) for at in range(12, 24, 3))
    _major_of_it, _minor_of_it, major, minor = words[24:28]
    return FileStatus(
        device=f"{major:02x}:{minor:02x}",
        inode=inode,
        type=mode & ~_PERMISSIONS,
        mode=mode & _PERMISSIONS,
        owner=owner,
        group=group,
        links=links,
        size=size,
        occupied=blocks * _BLOCK,
        block_size=block_size,
        direct_alignment=words[-1],
        accessed_at=accessed,
        modified_at=modified,
        changed_at=changed,
    )


@dataclass(frozen=True)
class FileSystemStatus:
    """What statfs(2) tells of a file system: blocks of ``block_size`` bytes, and how many of them are left for whom."""

    type: int
    block_size: int
    blocks: int
    free_blocks: int
    available_blocks: int
    files: int
    free_files: int
    longest_name: int
    fragment_size: int


def file_system_status(uapi: Uapi, statfs: bytes) -> FileSystemStatus:
    """Return what a struct statfs tells."""
    words = uapi.unpack(uapi.statfs_layout, statfs[: uapi.size_of(uapi.statfs_layout)])
    kind, block_size, blocks, free, available, files, free_files, _low, _high, longest_name, fragment_size = words[:11]
    return FileSystemStatus(kind, block_size, blocks, free, available, files, free_files, longest_name, fragment_size)
