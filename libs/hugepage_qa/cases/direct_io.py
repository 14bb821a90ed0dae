"""Files that are read and written past the page cache (O_DIRECT): the kernel pins the memory that is carried."""

import os
from contextlib import suppress

from hugepage_qa.cases.live import Live
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor

#: tmpfs takes O_DIRECT since Linux 6.6 (e88e0d366f9c), and btrfs since 6.15 for files with checksums (968f19c5b1b7),
#: and both copy all the same: nothing would be pinned
_PINNING = ("ext4", "xfs")


def open_for_direct_io(live: Live, actor: Actor) -> int:
    """Open a file without a name on a disk, past the page cache. Raises CannotRun without such a disk."""
    for file_system in _PINNING:
        with suppress(CannotRun):
            directory = live.host.disk(file_system)
            return live.open(actor, directory, live.host.uapi.o_tmpfile | os.O_RDWR | live.host.uapi.o_direct)
    raise CannotRun(f"no disk with {' or '.join(_PINNING)}, where O_DIRECT pins what it carries")
