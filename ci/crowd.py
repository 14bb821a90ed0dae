"""Many small processes, some of them with huge pages: ``python crowd.py PROCESSES HUGE PAGE_SIZE THP_SIZE``.

Starts PROCESSES, of which HUGE have a hugetlb page of PAGE_SIZE bytes of their own, HUGE share one, and HUGE have a
transparent huge page of THP_SIZE; the others are sleeps. Prints their ids as a JSON list, and ends them all when its
standard input ends. It imports little, so that the processes are small.
"""

import json
import mmap
import os
import signal
import sys
import time
from collections.abc import Iterator

from hugepage_qa.kernel.uapi import MAP_HUGETLB

_MAP_HUGE_SHIFT = 26
# all end by themselves should we be killed
_LIFE_SECONDS = 600


def main() -> None:
    """Be the crowd."""
    count, huge, page_size, thp_size = map(int, sys.argv[1:])
    processes: list[int] = []
    try:
        processes.extend(_start_huge(huge, page_size, thp_size))
        for _ in range(count - len(processes)):
            processes.append(os.posix_spawnp("sleep", ["sleep", str(_LIFE_SECONDS)], os.environ))
        print(json.dumps(processes), flush=True)
        sys.stdin.read()
    finally:
        for pid in processes:
            os.kill(pid, signal.SIGKILL)
        for pid in processes:
            os.waitpid(pid, 0)


def _start_huge(huge: int, page_size: int, thp_size: int) -> Iterator[int]:
    """Start the processes with huge pages; yields their ids."""
    hugetlb = MAP_HUGETLB | (page_size.bit_length() - 1) << _MAP_HUGE_SHIFT
    with _touched(page_size, mmap.MAP_SHARED | hugetlb):
        for _ in range(huge):
            yield _fork()
    for _ in range(huge):
        with _touched(page_size, mmap.MAP_PRIVATE | hugetlb):
            yield _fork()
    for _ in range(huge):
        # twice the size: there is a whole huge page in it, wherever it starts
        with _touched(2 * thp_size, mmap.MAP_PRIVATE):
            yield _fork()


def _touched(length: int, flags: int) -> mmap.mmap:
    """Return new memory for huge pages, touched in the middle."""
    memory = mmap.mmap(-1, length, flags | mmap.MAP_ANONYMOUS)
    if not flags & MAP_HUGETLB:
        memory.madvise(mmap.MADV_HUGEPAGE)
    memory[length // 2] = 1
    return memory


def _fork() -> int:
    """Return the id of a new process that keeps what is mapped now."""
    pid = os.fork()
    if pid == 0:
        try:
            time.sleep(_LIFE_SECONDS)
        finally:
            os._exit(0)
    return pid


if __name__ == "__main__":
    main()
