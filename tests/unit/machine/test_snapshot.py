"""What of the host must not change."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.machine.snapshot import Snapshot, differences, take_snapshot

FILES = {
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "0\n",
    "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages": "0\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/kernel/mm/transparent_hugepage/use_zero_page": "1\n",
    "sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled": "always inherit madvise [never]\n",
    "sys/kernel/mm/transparent_hugepage/hugepages-64kB/shmem_enabled": "always inherit [never]\n",
    "sys/kernel/mm/transparent_hugepage/hugepages-64kB/stats/nr_anon": "1\n",
    "sys/kernel/mm/transparent_hugepage/khugepaged/defrag": "1\n",
    "sys/kernel/mm/transparent_hugepage/khugepaged/full_scans": "4\n",
    "proc/sys/vm/min_free_kbytes": "67584\n",
    "proc/self/mounts": "tmpfs /dev/shm tmpfs rw,size=1k 0 0\nproc /proc proc rw 0 0\n",
    "proc/7/comm": "qemu-system-s39\n",
    "proc/7/stat": "7 (qemu-system-s39) S 1 " + " ".join(str(field) for field in range(5, 53)) + "\n",
    "var/lib/dpkg/status": "Package: x\n",
    "etc/hosts": "",
    "tmp/hugepage-qa-own/deeper": "",
    "tmp/of-another-program": "",
}


COUNTER = "sys/kernel/mm/transparent_hugepage/khugepaged/full_scans"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        write(tmp_path / name, text)
    (tmp_path / COUNTER).chmod(0o444)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def changes(root: Path, change: Callable[[Path], object], *ignore: Path) -> list[str]:
    before = take_snapshot(ignore, root=root)
    change(root)
    return differences(before, take_snapshot(ignore, root=root))


def test_what_is_kept(root: Path) -> None:
    values = dict(take_snapshot(root=root).values)
    assert values.pop("/var/lib/dpkg/status").startswith("11 bytes of ")
    assert values == {
        "hugepages-2048kB/nr_hugepages": "0",
        "node0/hugepages-2048kB/nr_hugepages": "0",
        "transparent_hugepage/enabled": "madvise",
        "transparent_hugepage/use_zero_page": "1",
        "transparent_hugepage/hugepages-64kB/enabled": "never",
        "transparent_hugepage/hugepages-64kB/shmem_enabled": "never",
        "transparent_hugepage/khugepaged/defrag": "1",
        "vm/min_free_kbytes": "67584",
        "mount /dev/shm": "tmpfs rw,size=1k",
        "number of mounts": "2",
        "process 7 qemu-system-s39": "running since tick 22",
        "/etc": "directory",
        "/etc/hosts": "file",
        "/proc": "directory",
        "/sys": "directory",
        "/tmp": "directory",
        "/tmp/hugepage-qa-own": "directory",
        "/var": "directory",
    }


def test_unchanged_host(root: Path) -> None:
    assert changes(root, lambda _: None) == []


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
            "8\n",
            "hugepages-2048kB/nr_hugepages: 0 before, 8 after",
        ),
        (
            "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages",
            "8\n",
            "node0/hugepages-2048kB/nr_hugepages: 0 before, 8 after",
        ),
        (
            "sys/kernel/mm/transparent_hugepage/enabled",
            "[always] madvise never\n",
            "transparent_hugepage/enabled: madvise before, always after",
        ),
        ("proc/sys/vm/min_free_kbytes", "1\n", "vm/min_free_kbytes: 67584 before, 1 after"),
        (
            "proc/7/stat",
            "7 (a) b) S 1 " + " ".join(str(field) for field in range(105, 153)),
            "process 7 qemu-system-s39: running since tick 22 before, running since tick 122 after",
        ),
        ("tmp/avocado_x", "", "/tmp/avocado_x: absent before, file after"),
        ("dev/shm/qemu_x", "", "/dev/shm/qemu_x: absent before, file after"),
    ],
)
def test_each_change_is_one_line(root: Path, name: str, text: str, expected: str) -> None:
    (root / "dev/shm").mkdir(parents=True)
    assert changes(root, lambda root: write(root / name, text)) == [expected]


def test_counters_may_rise(root: Path) -> None:
    def count(root: Path) -> None:
        (root / COUNTER).unlink()
        write(root / COUNTER, "5\n")
        (root / COUNTER).chmod(0o444)

    assert changes(root, count) == []
    stats = "sys/kernel/mm/transparent_hugepage/hugepages-64kB/stats/nr_anon"
    assert changes(root, lambda root: write(root / stats, "5\n")) == []


def test_new_mount(root: Path) -> None:
    mounts = FILES["proc/self/mounts"] + "none /mnt/a\\040b hugetlbfs rw,pagesize=2M 0 0\n"
    assert changes(root, lambda root: write(root / "proc/self/mounts", mounts)) == [
        "mount /mnt/a b: absent before, hugetlbfs rw,pagesize=2M after",
        "number of mounts: 2 before, 3 after",
    ]
    write(root / "proc/self/mounts", FILES["proc/self/mounts"])
    assert changes(root, lambda root: write(root / "proc/self/mounts", mounts), Path("/mnt")) == []


def test_malformed_mounts(root: Path) -> None:
    write(root / "proc/self/mounts", "tmpfs\n")
    with pytest.raises(InputError, match=r"^/proc/self/mounts, line 1: 'tmpfs': expected 6 fields"):
        take_snapshot(root=root)


def test_packages(root: Path) -> None:
    (line,) = changes(root, lambda root: write(root / "var/lib/dpkg/status", "Package: xy\n"))
    assert line.startswith("/var/lib/dpkg/status: 11 bytes of ")
    assert "before, 12 bytes of " in line


def test_ignored_paths_may_come_and_go(root: Path) -> None:
    assert changes(root, lambda root: write(root / "tmp/tmt/1/serial.log", ""), Path("/tmp/tmt/1")) == []
    (root / "tmp/tmt/1/serial.log").unlink()
    assert changes(root, lambda root: (root / "tmp/tmtx").mkdir(), Path("/tmp/tmt")) == [
        "/tmp/tmtx: absent before, directory after"
    ]


def test_entries_of_others_are_not_looked_at(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    assert changes(root, lambda root: write(root / "tmp/tmt-left", "")) == []


def test_what_other_programs_do_in_shared_directories_is_theirs(root: Path) -> None:
    assert changes(root, lambda root: write(root / "tmp/left", "")) == []


def test_emulators_of_others_do_not_count(root: Path) -> None:
    cache = Path("/home/me/.cache/hugepage-qa")
    assert changes(root, lambda root: write(root / "proc/7/cmdline", "qemu\0-hda\0/x"), cache) == []
    (line,) = changes(root, lambda root: write(root / "proc/7/cmdline", f"qemu\0-kernel\0{cache}/vmlinuz"), cache)
    assert line == "process 7 qemu-system-s39: absent before, running since tick 22 after"


def test_kind_of_an_entry(root: Path) -> None:
    def replace(root: Path) -> None:
        (root / "etc/hosts").unlink()
        (root / "etc/hosts").symlink_to("nowhere")

    assert changes(root, replace) == ["/etc/hosts: file before, link after"]


def test_differences_are_sorted() -> None:
    assert differences(Snapshot({"b": "1", "c": "2"}), Snapshot({"a": "1", "c": "3"})) == [
        "a: absent before, 1 after",
        "b: 1 before, absent after",
        "c: 2 before, 3 after",
    ]


def test_this_machine() -> None:
    snapshot = take_snapshot()
    assert "/etc/passwd" in snapshot.values or os.getuid() != 0
    assert snapshot.values["number of mounts"] != "0"
