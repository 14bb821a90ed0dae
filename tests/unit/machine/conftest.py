"""A machine made of files, with a kernel that does to them what Linux does to its own."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hugepage_qa.machine import libc, protection, restore
from hugepage_qa.machine.knobs import Knob

BOOT_ID = "11111111-2222-3333-4444-555555555555"
NEXT_BOOT_ID = "66666666-7777-8888-9999-aaaaaaaaaaaa"

POOLS = "sys/kernel/mm/hugepages"
NODES = "sys/devices/system/node"
THP = "sys/kernel/mm/transparent_hugepage"
KSM = "sys/kernel/mm/ksm"
VM = "proc/sys/vm"

SHM_TITLE = "       key      shmid perms                  size  cpid  lpid nattch\n"

FILES = {
    f"{POOLS}/hugepages-2048kB/nr_hugepages": "12",
    f"{POOLS}/hugepages-2048kB/nr_overcommit_hugepages": "2",
    f"{POOLS}/hugepages-2048kB/free_hugepages": "9",
    f"{POOLS}/hugepages-1048576kB/nr_hugepages": "1",
    f"{POOLS}/hugepages-1048576kB/nr_overcommit_hugepages": "0",
    f"{POOLS}/hugepages-1048576kB/demote_size": "2048kB",
    f"{NODES}/node0/hugepages/hugepages-2048kB/nr_hugepages": "8",
    f"{NODES}/node0/hugepages/hugepages-2048kB/surplus_hugepages": "1",
    f"{NODES}/node0/hugepages/hugepages-1048576kB/nr_hugepages": "1",
    f"{NODES}/node1/hugepages/hugepages-2048kB/nr_hugepages": "4",
    f"{NODES}/node1/hugepages/hugepages-1048576kB/nr_hugepages": "0",
    f"{NODES}/node2/cpulist": "4-7",
    f"{THP}/enabled": "always [madvise] never",
    f"{THP}/shmem_enabled": "always within_size advise [never] deny force",
    f"{THP}/use_zero_page": "1",
    f"{THP}/hugepages-64kB/enabled": "always inherit madvise [never]",
    f"{THP}/hugepages-64kB/shmem_enabled": "always [inherit] within_size advise never",
    f"{THP}/hugepages-64kB/stats/nr_anon": "7",
    f"{THP}/khugepaged/defrag": "1",
    f"{VM}/overcommit_kbytes": "0",
    f"{VM}/overcommit_ratio": "50",
    f"{VM}/min_free_kbytes": "1000",
    f"{VM}/nr_hugepages": "12",
    "proc/sys/kernel/shmmax": "18446744073692774399",
    "proc/sys/kernel/random/boot_id": BOOT_ID,
    "proc/self/mounts": "none /dev/hugepages hugetlbfs rw,pagesize=2M 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n",
    "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/vda1 quiet\n",
    "proc/sysvipc/shm": SHM_TITLE,
    "run/motd": "",
}
CGROUPS = "#subsys_name\thierarchy\tnum_cgroups\tenabled\nhugetlb\t{hugetlb}\t2\t1\nmisc\t0\t1\t1\n"
READ_ONLY = {
    f"{THP}/hpage_pmd_size": "2097152",
    f"{THP}/khugepaged/full_scans": "4",
    f"{THP}/khugepaged/pages_collapsed": "5",
}
WRITE_ONLY = (f"{POOLS}/hugepages-1048576kB/demote", f"{VM}/drop_caches", f"{VM}/compact_memory")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a machine with two nodes and one without memory; nothing below it reaches the real kernel."""
    root = tmp_path / "machine"
    for name, text in (FILES | READ_ONLY).items():
        write(root / name, text)
    for name in READ_ONLY:
        (root / name).chmod(0o444)
    for name in WRITE_ONLY:
        write(root / name, "")
        (root / name).chmod(0o200)
    monkeypatch.delenv("HUGEPAGE_QA_STATE", raising=False)
    monkeypatch.setattr(protection, "require_root", lambda _: None)
    monkeypatch.setattr(restore, "_PAUSE_SECONDS", 0)
    for name in ("mount", "unmount", "remove_segment", "swap_on", "swap_off"):
        monkeypatch.setattr(libc, name, lambda *what: pytest.fail(f"{what} is of the real machine"))
    return root


def value(root: Path, path: str) -> str:
    return (root / path).read_text(encoding="utf-8").strip()


class Kernel:
    """Takes the place of ``Knob.write``: keeps the order of writes, and answers as rules say."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.written: list[str] = []
        self.rules: list[Callable[[str, str], None]] = [self._mark_selection]

    def write(self, knob: Knob, root: Path, text: str) -> None:
        assert root == self.root
        self.written.append(knob.path)
        write(root / knob.path, text)
        for rule in self.rules:
            rule(knob.path, text)

    def set(self, path: str, text: str) -> None:
        write(self.root / path, text)

    def refuse(self, path: str, before: str) -> None:
        write(self.root / path, before)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def _mark_selection(self, path: str, text: str) -> None:
        allowed = FILES.get(path, "").replace("[", "").replace("]", "").split()
        if len(allowed) > 1:
            self.set(path, " ".join(f"[{word}]" if word == text else word for word in allowed))


@pytest.fixture
def kernel(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """The kernel of ``machine``."""
    kernel = Kernel(machine)
    monkeypatch.setattr(Knob, "write", lambda *arguments: kernel.write(*arguments))  # noqa: PLW0108 - a method
    return kernel
