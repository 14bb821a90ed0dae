"""Cases on files in large folios, each on every file system that has such."""

import errno
import signal
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.file_contents import TMPFS, Brought, KnownFile, written_file
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.thp_memory import allow_on_advice, pmd_size
from hugepage_qa.kernel.proc_tables import find_mount
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Fault, Refused
from hugepage_qa.sizes import MIB
from hugepage_qa.version import KernelVersion

DISKS = ("ext4", "xfs", "btrfs")
#: an ext4 of which each base page has several blocks
SMALL_BLOCKS = "ext4-small-blocks"
EVERY = (*DISKS, TMPFS)
#: base pages of 64 KiB have huge pages of half a GiB
_LARGEST_BLOCK = 16 * MIB
#: READ_ONLY_THP_FOR_FS is gone, and file systems decide
_DECIDE_SINCE = KernelVersion(7, 2)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

FileAct = Callable[[Live, KnownFile], None]


def file_case(
    area: Area,
    statement: str,
    source: str,
    *,
    on: tuple[str, ...] = EVERY,
    by: tuple[Brought, ...] = tuple(Brought),
    since: str | None = None,
    nodes: int = 1,
) -> Callable[[FileAct], None]:
    """Make the decorated function a case of ``area`` on each of these file systems.

    It acts on a file of a huge page and a quarter that was brought into memory in each way, or ``by`` some of them.
    """

    def register(act: FileAct) -> None:
        for file_system in on:

            @wraps(act)
            def on_this(live: Live, file_system: str = file_system) -> None:
                _allow(live)
                try:
                    # what is in a tmpfs is not read from anywhere
                    for brought in (Brought.WRITTEN,) if file_system == TMPFS else by:
                        # where there is one way alone it tells nothing apart
                        with live.about(brought.value) if len(by) > 1 else nullcontext():
                            act(live, written_file(live, file_system, block_size(live) * 5 // 4, brought))
                except Refused as refusal:
                    if refusal.errno in _NO_ROOM:
                        raise CannotRun(f"the file system is full: {refusal.strerror}") from refusal
                    raise
                except Fault as fault:
                    # whoever stores into a mapping is told so that there is no room for it
                    if fault.signal == signal.SIGBUS and file_system != TMPFS and _is_full(live, file_system):
                        raise CannotRun(f"the file system is full: {fault}") from fault
                    raise

            on_this.__name__ = f"{act.__name__}_on_{file_system}"
            area.case(f"{statement}, on {file_system}", source, since=since, nodes=nodes)(on_this)

    return register


def block_size(live: Live) -> int:
    """Return the bytes of a huge page, or of a folio that is as large as one on other machines."""
    return min(pmd_size(live), _LARGEST_BLOCK)


def has_huge_folios(live: Live, path: str) -> bool:
    """Tell whether the file system of ``path`` has PMD-sized folios, which is all that file_thp_enabled() asks for.

    XFS has them for all files. ext4 has none with some of its features (ext4_set_max_mapping_order()), of which a disk
    that was made for the run has none. Before 7.2 other things decide.
    """
    mount = find_mount(live.host, path)
    types = ("xfs", "ext4") if live.host.is_thrown_away() else ("xfs",)
    return live.kernel_version >= _DECIDE_SINCE and mount is not None and mount.type in types


def parts_of_folios(live: Live) -> tuple[tuple[int, int], ...]:
    """Return start and length of ranges: within a base page, some base pages, and over the end of a huge page."""
    base, size = live.base_page, block_size(live)
    return (base + 64, base // 2), (5 * base, 3 * base), (size // 2 + 8, size // 2 + base)


def _is_full(live: Live, file_system: str) -> bool:
    return live.host.file_system(live.host.disk(file_system)).free_bytes < 2 * block_size(live)


def _allow(live: Live) -> None:
    allow_on_advice(live)
    if live.host.read(f"{DIRECTORY}/shmem_enabled") is None:
        raise CannotRun("this kernel has no shared memory in huge pages")
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "never")  # and not "deny", which goes before huge=
