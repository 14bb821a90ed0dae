"""Which processes use huge pages."""

import ctypes
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.kernel.process_capture import CHILD, HOLDER, KTHREADD, processes, text_of

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.tree import CapturedTree, DirectoryTree
from hugepage_qa.machine.huge_page_users import HugePageUser, HugetlbUse, MemoryUse, find_huge_page_users
from hugepage_qa.sizes import GIB, KIB, MIB

LIVE = DirectoryTree(Path("/"))

_PR_SET_DUMPABLE = 4


def changed(changes: Mapping[str, str | None]) -> CapturedTree:
    """Return the captured processes with other files; None takes a file away."""
    files = {**processes().files, **changes}
    return CapturedTree({path: text for path, text in files.items() if text is not None})


def found(tree: CapturedTree, *, everyone: bool = False) -> dict[int, HugePageUser]:
    return {process.pid: process for process in find_huge_page_users(tree, everyone=everyone).processes}


def test_every_kind_of_huge_page_by_process() -> None:
    users = find_huge_page_users(processes())
    assert users.base_page_size == 4 * KIB
    assert [(process.pid, process.uid) for process in users.processes] == [(HOLDER, 0), (CHILD, 0)]
    holder, child = (process.memory for process in users.processes)
    assert holder == MemoryUse(
        {2 * MIB: HugetlbUse(3, 16 * MIB, 2 * MIB, 6 * MIB), GIB: HugetlbUse(1, GIB, 0, GIB)},
        anonymous_thp=12 * MIB,
        shmem_thp=8 * MIB,
        page_tables=72 * KIB,
    )
    # it has not touched the segment, and has a copy in small pages of what it wrote to
    assert child == MemoryUse(
        {2 * MIB: HugetlbUse(3, 16 * MIB, 0, 6 * MIB), GIB: HugetlbUse(1, GIB, 0, GIB)},
        anonymous_thp=10 * MIB,
        page_tables=64 * KIB,
    )
    assert (holder.hugetlb_pages, holder.thp, holder.huge_pages) == (GIB + 8 * MIB, 20 * MIB, GIB + 28 * MIB)
    assert users.not_readable == 0


def test_hugetlb_pages_are_those_of_the_status() -> None:
    """Two files of the kernel, counted in different places, say the same."""
    for process in find_huge_page_users(processes()).processes:
        kilobytes = process.memory.hugetlb_pages // KIB
        assert f"HugetlbPages:\t{kilobytes:8} kB\n" in text_of(f"proc/{process.pid}/status")


def test_the_total_counts_a_page_in_every_process() -> None:
    total = find_huge_page_users(processes()).total
    assert total.hugetlb[GIB] == HugetlbUse(2, 2 * GIB, 0, 2 * GIB)
    assert (total.anonymous_thp, total.shmem_thp, total.page_tables) == (22 * MIB, 8 * MIB, 136 * KIB)
    assert find_huge_page_users(changed({f"proc/{pid}/smaps": None for pid in (HOLDER, CHILD)})).total == MemoryUse()


def test_file_thp_and_large_pages_that_are_not_hugetlb() -> None:
    smaps = text_of("proc/self/smaps").replace("FilePmdMapped:         0 kB", "FilePmdMapped:      4096 kB")
    dax = text_of("proc/self/smaps").replace("PageSize:        4 kB", "PageSize:     2048 kB")
    users = found(changed({f"proc/{HOLDER}/smaps": smaps, f"proc/{CHILD}/smaps": dax}))
    assert users[HOLDER].memory == MemoryUse(file_thp=4 * MIB, page_tables=72 * KIB)
    # device DAX: large pages, but from no pool
    assert users[CHILD].memory == MemoryUse(page_tables=64 * KIB)


def test_processes_without_huge_pages_and_kernel_threads() -> None:
    tree = changed({f"proc/{CHILD}/smaps": text_of("proc/self/smaps")})
    assert found(tree).keys() == {HOLDER}
    assert found(tree, everyone=True).keys() == {HOLDER, CHILD}
    assert KTHREADD not in found(tree, everyone=True)


@pytest.mark.parametrize("gone", ["smaps", "status"])
def test_a_process_that_ends_meanwhile_is_left_out(gone: str) -> None:
    files = {f"proc/{CHILD}/{name}": None for name in ("smaps", "smaps_rollup", "numa_maps", "status", "comm")}
    if gone == "status":  # after its mappings had been read
        files.pop(f"proc/{CHILD}/smaps")

    class Ending(CapturedTree):
        """A tree in which the process is listed once."""

        listed = False

        def names(self, path: str) -> list[str]:
            names = super().names(path)
            if path == "proc" and not self.listed:
                self.listed = True
                return sorted({*names, str(CHILD)})
            return [name for name in names if name != str(CHILD)]

    users = find_huge_page_users(Ending(changed(files).files), everyone=True)
    assert [process.pid for process in users.processes] == [HOLDER]
    assert users.not_readable == 0


def test_processes_that_may_not_be_read_are_counted() -> None:
    users = find_huge_page_users(changed({f"proc/{CHILD}/smaps": None}))
    assert [process.pid for process in users.processes] == [HOLDER]
    assert users.not_readable == 1


def test_hidden_processes_are_counted() -> None:
    """With hidepid=1 only the directory is there."""
    files = {f"proc/{CHILD}/{name}": None for name in ("smaps", "smaps_rollup", "numa_maps", "status")}
    assert find_huge_page_users(changed(files)).not_readable == 1


def test_kernel_threads_without_a_smaps_are_not_counted() -> None:
    assert find_huge_page_users(changed({f"proc/{KTHREADD}/smaps": None})).not_readable == 0


def test_the_first_thread_has_ended_before_the_others() -> None:
    """Then it has no memory any more, but the process has."""
    tree = changed(
        {
            f"proc/{CHILD}/smaps": "",
            f"proc/{CHILD}/task/{CHILD}/smaps": "",
            f"proc/{CHILD}/task/{CHILD + 1}/smaps": text_of(f"proc/{CHILD}/smaps"),
            f"proc/{CHILD}/task/{CHILD + 1}/status": text_of(f"proc/{CHILD}/status"),
        }
    )
    assert found(tree)[CHILD] == found(processes())[CHILD]


def test_a_kernel_without_smaps() -> None:
    with pytest.raises(InputError, match=r"^/proc/self/smaps: .*CONFIG_PROC_PAGE_MONITOR"):
        find_huge_page_users(CapturedTree({"proc/1/comm": "init\n"}))


def test_malformed_file_is_named() -> None:
    smaps = text_of(f"proc/{CHILD}/smaps").replace("Private_Hugetlb:       0 kB", "Private_Hugetlb:       ? kB")
    with pytest.raises(InputError, match=rf"^/proc/{CHILD}/smaps, line \d+: "):
        find_huge_page_users(changed({f"proc/{CHILD}/smaps": smaps}))


# for real


@contextmanager
def running(program: str) -> Iterator[int]:
    """Run a Python program that prints a line and then waits; yields its process id."""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def test_threads_count_once() -> None:
    program = "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); print(1, flush=True)"
    with running(program) as pid:
        users = find_huge_page_users(LIVE, everyone=True)
        assert [process.pid for process in users.processes].count(pid) == 1
        assert len(os.listdir(f"/proc/{pid}/task")) == 2  # noqa: PTH208


def test_a_real_first_thread_that_has_ended() -> None:
    program = """
import ctypes, os, threading, time
def report():
    while "Z (zombie)" not in open("/proc/self/status").read(): time.sleep(0.01)
    os.write(1, b"ended\\n")
    time.sleep(600)
threading.Thread(target=report).start()
ctypes.CDLL(None).pthread_exit(None)
"""
    with running(program) as pid:
        (process,) = (one for one in find_huge_page_users(LIVE, everyone=True).processes if one.pid == pid)
        assert process.memory.page_tables > 0


def test_a_real_process_that_has_ended_and_is_not_waited_for() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        users = find_huge_page_users(LIVE, everyone=True)
        assert pid not in [process.pid for process in users.processes]
    finally:
        os.waitpid(pid, 0)


def test_real_transparent_huge_pages() -> None:
    if "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="ascii"):
        pytest.skip("transparent huge pages are switched off")
    size = int(Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").read_text(encoding="ascii"))
    with mmap.mmap(-1, 4 * size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for offset in range(0, len(memory), mmap.PAGESIZE):
            memory[offset] = 1
        users = find_huge_page_users(LIVE)
        ours = [process.memory for process in users.processes if process.pid == os.getpid()]
        if not ours:
            pytest.skip("the machine had no free huge page")
        assert ours[0].anonymous_thp % size == 0
        assert ours[0].anonymous_thp > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_without_root_only_ones_own_processes_are_readable() -> None:
    ours = find_huge_page_users(LIVE, everyone=True)
    assert os.getpid() in [process.pid for process in ours.processes]
    nobody, seen, not_readable = survey_of_nobody()
    assert nobody in seen
    assert os.getpid() not in seen
    assert not_readable > ours.not_readable


def survey_of_nobody() -> tuple[int, list[int], int]:
    """Return the process id of a process of nobody, the processes that it can read, and how many it cannot."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setresuid(65534, 65534, 65534)
        # whoever has changed its user is not readable for that user either, until it says so
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
        users = find_huge_page_users(LIVE, everyone=True)
        os.write(writer, json.dumps([[process.pid for process in users.processes], users.not_readable]).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="ascii") as answer:  # noqa: PTH123 - a descriptor
        seen, not_readable = json.loads(answer.read())
    os.waitpid(pid, 0)
    return pid, seen, not_readable
