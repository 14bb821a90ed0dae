"""A file on a disk that is in no memory yet: who reads it is charged for its folios, and for nothing else."""

import mmap
import os

from hugepage_qa.cases.hugetlb_files import HugeFile
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD


def file_on_a_disk(live: Live, length: int) -> HugeFile:
    """Return a file of words, 1 and 8 more from word to word, whose blocks nobody's group had to look up.

    What a file system keeps of its disk in memory outlives the file, and would hold the group that it is charged to.
    """
    actor = live.actor()
    file = HugeFile(live, actor, live.open(actor, live.host.disk("ext4"), live.host.uapi.o_tmpfile | os.O_RDWR))
    words = actor.mmap(length, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    actor.fill(words, length, WORD, 1)
    live.expect("bytes written", length, actor.call("pwrite64", file.descriptor, words, length, 0))
    actor.call("munmap", words, length)
    actor.call("fsync", file.descriptor)
    actor.call("fadvise64", file.descriptor, 0, length, live.host.uapi.posix_fadv_dontneed)
    return file
