"""A run that changes as much of the machine as it can, in random order, for ci/kill_test.py to kill it."""

import ctypes
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from hugepage_qa.kernel.proc_tables import read_mounts
from hugepage_qa.kernel.thp import parse_selection
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine.knobs import Kind, Knob, read_knobs
from hugepage_qa.machine.protection import Protection, protected_machine
from hugepage_qa.process.marks import KEY_PREFIX, PREFIX
from hugepage_qa.sizes import GIB, MIB

_SYSCTL_FILE = Path("/etc/sysctl.d/99-hugepage-qa.conf")

_ROOT = Path("/")
_PAGES = {2 * MIB: 24, GIB: 1}
_HOLDERS = 3
_REPORT_SECONDS = 0.2
_SPARED = (
    # other programs on the machine would notice
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "vm/oom_kill_allocating_task",
    # a pool that grows with it adds to MemTotal for good: the boot memory that it frees does not come back
    # (free_vmemmap_page() in mm/hugetlb_vmemmap.c)
    "vm/hugetlb_optimize_vmemmap",
)

# maps and fills four huge pages, also in a child of its own that nobody waits for, and stays
_HOLD = """
import mmap, os, time
pages = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)
if os.fork() == 0:
    os.setsid()
for offset in range(0, 8 << 20, 2 << 20):
    pages[offset] = 1
time.sleep(1000)
"""

# linux/shm.h
_IPC_CREAT, _SHM_HUGETLB = 0o1000, 0o4000


def main() -> None:
    """Change the machine for as many seconds as the first argument says."""
    end = time.monotonic() + float(sys.argv[1])
    with protected_machine("the run that is killed") as protection:
        changes: list[Callable[[], None]] = [partial(change, knob, value) for knob, value in read_knobs().items()]
        changes += [partial(other, protection) for other in (mount, make_cgroup, make_segment, write_sysctl_file)]
        changes += [hold_pages] * _HOLDERS
        random.shuffle(changes)
        results = protection.journal.make_scratch(Path(tempfile.gettempdir()))
        for one in changes:
            one()
            (results / "log").touch()
        time.sleep(max(0, end - _REPORT_SECONDS - time.monotonic()))
        protection.put_back()
        time.sleep(_REPORT_SECONDS)


def change(knob: Knob, value: str) -> None:
    """Give a knob another value; what the kernel refuses stays."""
    if knob.kind is Kind.POOL:
        knob.write(_ROOT, str(_PAGES.get(knob.size, 0)))
    elif knob.name not in _SPARED:
        with suppress(OSError):
            knob.write(_ROOT, another_value(knob, value))


def another_value(knob: Knob, value: str) -> str:
    """Return a value that the kernel may take instead of ``value``."""
    text = DirectoryTree(_ROOT).read(knob.path) or ""
    if "[" in text:
        others = [word for word in parse_selection(text, knob.path).allowed if word != value]
        return random.choice(others)  # noqa: S311 - no secret
    return str(int(value) ^ 1) if value.isdecimal() else value


def mount(protection: Protection) -> None:
    """Mount a hugetlbfs below the scratch directory, with a file in it."""
    point = protection.scratch / "mount"
    point.mkdir(exist_ok=True)
    subprocess.run([shutil.which("mount") or "mount", "-t", "hugetlbfs", "none", str(point)], check=True)
    (point / "file").touch()


def make_cgroup(protection: Protection) -> None:
    """Make a cgroup with a process in it where there is a hierarchy for huge pages."""
    for found in read_mounts(DirectoryTree(_ROOT)):
        if found.type == "cgroup2" or (found.type == "cgroup" and "hugetlb" in found.options.split(",")):
            cgroup = Path(found.point, f"{PREFIX}{protection.run_id}")
            cgroup.mkdir(exist_ok=True)
            child = start(["sleep", "1000"])
            (cgroup / "cgroup.procs").write_text(str(child.pid), encoding="ascii")
            with suppress(OSError):
                Path(found.point, "cgroup.subtree_control").write_text("+hugetlb", encoding="ascii")


def make_segment(_: Protection) -> None:
    """Make a System V segment of huge pages; without free pages there is none."""
    ctypes.CDLL(None).shmget(KEY_PREFIX << 16 | os.getpid() & 0xFFFF, 2 * MIB, _IPC_CREAT | _SHM_HUGETLB | 0o600)


def write_sysctl_file(protection: Protection) -> None:
    """Leave a setting for the next boot."""
    protection.journal.keep_file(_SYSCTL_FILE)
    _SYSCTL_FILE.write_text("vm.nr_hugepages = 1\n", encoding="ascii")


def hold_pages() -> None:
    """Start processes that hold huge pages, if there are any at this moment."""
    start([sys.executable, "-S", "-c", _HOLD])


def start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a process that nobody ends."""
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
