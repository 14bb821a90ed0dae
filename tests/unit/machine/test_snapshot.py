"""What of the host must not change."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.machine.run_lock import hold_run_lock
from hugepage_qa.machine.snapshot import Snapshot, changes_of_others, differences, take_snapshot
from hugepage_qa.process.marks import GROUP

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


def seen(root: Path, change: Callable[[Path], object], *ignore: Path) -> tuple[list[str], list[str]]:
    """Return what a run changed, and what others did."""
    before = take_snapshot(ignore, root=root)
    change(root)
    after = take_snapshot(ignore, root=root)
    return differences(before, after), changes_of_others(before, after)


def changes(root: Path, change: Callable[[Path], object], *ignore: Path) -> list[str]:
    ours, of_others = seen(root, change, *ignore)
    assert of_others == []
    return ours


_APT = 42


@pytest.fixture
def in_our_group(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what gives a file our group, which only root could, and another owner where one is named."""
    ours: dict[int, int | None] = {}
    lstat = Path.lstat

    def give(path: Path, owner: int | None = None) -> None:
        ours[lstat(path).st_ino] = owner

    def pretend(path: Path) -> os.stat_result:
        status = lstat(path)
        if status.st_ino not in ours:
            return status
        owner = ours[status.st_ino]
        return os.stat_result([*status[:4], status.st_uid if owner is None else owner, GROUP, *status[6:]])

    monkeypatch.setattr(Path, "lstat", pretend)
    return give


def test_what_is_kept(root: Path) -> None:
    snapshot = take_snapshot(root=root)
    assert snapshot.values == {
        "hugepages-2048kB/nr_hugepages": "0",
        "node0/hugepages-2048kB/nr_hugepages": "0",
        "transparent_hugepage/enabled": "madvise",
        "transparent_hugepage/use_zero_page": "1",
        "transparent_hugepage/hugepages-64kB/enabled": "never",
        "transparent_hugepage/hugepages-64kB/shmem_enabled": "never",
        "transparent_hugepage/khugepaged/defrag": "1",
        "vm/min_free_kbytes": "67584",
        "mount /dev/shm": "tmpfs rw",
        "mount /proc": "proc",
        "process 7 qemu-system-s39": "running since tick 22",
    }
    assert snapshot.made == {"/tmp/hugepage-qa-own": "directory"}
    of_others = dict(snapshot.of_others)
    assert of_others.pop("/var/lib/dpkg/status").startswith("11 bytes of ")
    assert of_others == {
        "/etc": "directory",
        "/etc/hosts": "file",
        "/proc": "directory",
        "/sys": "directory",
        "/tmp": "directory",
        "/tmp/of-another-program": "file",
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
        ("tmp/hugepage-qa-x", "", "/tmp/hugepage-qa-x: absent before, file after"),
        ("var/tmp/hugepage-qa-x/file", "", "/var/tmp/hugepage-qa-x: absent before, directory after"),
        ("run/hugepage-qa-x/file", "", "/run/hugepage-qa-x: absent before, directory after"),
    ],
)
def test_each_change_is_one_line(root: Path, name: str, text: str, expected: str) -> None:
    for directory in ("run", "var/tmp"):
        (root / directory).mkdir(parents=True)
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
    ]
    write(root / "proc/self/mounts", FILES["proc/self/mounts"])
    assert changes(root, lambda root: write(root / "proc/self/mounts", mounts), Path("/mnt")) == []


def test_malformed_mounts(root: Path) -> None:
    write(root / "proc/self/mounts", "tmpfs\n")
    with pytest.raises(InputError, match=r"^/proc/self/mounts, line 1: 'tmpfs': expected 6 fields"):
        take_snapshot(root=root)


def test_a_mount_over_another_is_seen(root: Path) -> None:
    mounts = FILES["proc/self/mounts"] + "proc /proc proc rw 0 0\n"
    assert changes(root, lambda root: write(root / "proc/self/mounts", mounts)) == [
        "mount /proc: proc before, proc, proc after"
    ]


@pytest.mark.parametrize(("before", "after", "changed"), [(4, 4, False), (4, 5, True)])
def test_limits_of_a_tmpfs_are_those_that_it_has(
    root: Path, monkeypatch: pytest.MonkeyPatch, before: int, after: int, changed: bool
) -> None:
    """What /proc/mounts shows of them depends on MemTotal, which a pool changes."""
    files = [before]
    monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result((4096, 4096, 10, 9, 9, files[-1], 1, 1, 0, 255)))

    def remount(root: Path) -> None:
        files.append(after)
        write(root / "proc/self/mounts", FILES["proc/self/mounts"].replace("size=1k", f"size=1k,nr_inodes={after}"))

    found = "mount /dev/shm: tmpfs rw, 40960 bytes, 4 files before, tmpfs rw, 40960 bytes, 5 files after"
    assert changes(root, remount) == ([found] if changed else [])


@pytest.mark.parametrize(("held_before", "held_after"), [(True, False), (False, True), (True, True)])
def test_what_another_run_has_changed(root: Path, held_before: bool, held_after: bool) -> None:
    (root / "run").mkdir()

    def look(is_held: bool) -> Snapshot:
        with hold_run_lock(root) if is_held else nullcontext():
            return take_snapshot(may_be_held=True, root=root)

    before = look(held_before)
    write(root / "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "8\n")
    write(root / "proc/77/comm", "qemu-system-x86\n")
    write(root / "proc/77/stat", FILES["proc/7/stat"].replace("7", "77", 1))
    after = look(held_after)
    # an emulator is that of whoever has its files
    assert differences(before, after) == ["process 77 qemu-system-x86: absent before, running since tick 22 after"]
    assert "hugepages-2048kB/nr_hugepages" in changes_of_others(before, after)


@pytest.mark.parametrize("is_held", [True, False])
def test_what_another_run_swaps_to(root: Path, is_held: bool) -> None:
    (root / "run").mkdir()
    name = "/var/tmp/hugepage-qa-swap-x"
    (root / "var/tmp").mkdir(parents=True, exist_ok=True)
    before = take_snapshot(may_be_held=True, root=root)
    write(root / name[1:], "")
    write(root / "proc/swaps", f"Filename Type Size Used Priority\n{name} file 65532 0 -2\n")
    with hold_run_lock(root) if is_held else nullcontext():
        after = take_snapshot(may_be_held=True, root=root)
    found = [line for line in differences(before, after) if name in line and "file after" in line]
    assert found == ([] if is_held else [f"{name}: absent before, file after"])
    assert (name in changes_of_others(before, after)) == is_held


def test_a_run_of_ours_that_still_has_the_machine_answers_for_it(root: Path) -> None:
    (root / "run").mkdir()
    before = take_snapshot(root=root)
    with hold_run_lock(root):
        write(root / "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "8\n")
        after = take_snapshot(root=root)
    assert "hugepages-2048kB/nr_hugepages: 0 before, 8 after" in differences(before, after)


def test_who_logs_in_mounts(root: Path) -> None:
    mounts = FILES["proc/self/mounts"] + "tmpfs /run/user/1000 tmpfs rw 0 0\n"
    assert seen(root, lambda root: write(root / "proc/self/mounts", mounts)) == ([], ["mount /run/user/1000"])


def test_our_control_groups_and_segments(root: Path) -> None:
    def leave(root: Path) -> None:
        (root / "cgroup" / "hugepage-qa-x").mkdir(parents=True)
        write(root / "proc/sysvipc/shm", "key shmid\n1213267969 3\n5 4\n")

    write(root / "proc/self/mounts", "cgroup2 /cgroup cgroup2 rw 0 0\n")
    (root / "cgroup").mkdir()
    assert changes(root, leave) == [
        "cgroup /cgroup/hugepage-qa-x: absent before, a directory after",
        "shared memory 0x48510001: absent before, segment 3 after",
    ]


def test_packages_that_others_install(root: Path) -> None:
    def install(root: Path) -> None:
        write(root / "var/lib/dpkg/status", "Package: xy\n")
        write(root / "var/lib/apt/extended_states", "")

    assert seen(root, install) == ([], ["/var/lib/apt/extended_states", "/var/lib/dpkg/status"])


def test_packages_that_we_install(root: Path, in_our_group: Callable[[Path], None]) -> None:
    def install(root: Path) -> None:
        write(root / "var/lib/apt/extended_states", "Package: xy\n")
        in_our_group(root / "var/lib/apt/extended_states")

    (line,) = changes(root, install)
    assert line.startswith("/var/lib/apt/extended_states: absent before, 12 bytes of ")


def test_ignored_paths_may_come_and_go(root: Path) -> None:
    assert changes(root, lambda root: write(root / "tmp/tmt/1/serial.log", ""), Path("/tmp/tmt/1")) == []
    (root / "tmp/tmt/1/serial.log").unlink()
    ours = Path("/tmp/hugepage-qa-1")
    assert changes(root, lambda root: (root / "tmp/hugepage-qa-12").mkdir(), ours) == [
        "/tmp/hugepage-qa-12: absent before, directory after"
    ]


@pytest.mark.parametrize("directory", ["etc", "run", "tmp", "var/tmp", "dev/shm", "."])
def test_what_others_do_is_theirs(root: Path, directory: str) -> None:
    (root / directory).mkdir(parents=True, exist_ok=True)
    path = str(Path("/", directory, "new"))
    assert seen(root, lambda root: write(root / directory / "new", "")) == ([], [path])
    assert seen(root, lambda root: (root / directory / "new").unlink()) == ([], [path])


@pytest.mark.parametrize("directory", ["etc", "run", "tmp", "var/tmp", "dev/shm", "."])
def test_a_file_of_any_name_is_known_by_its_group(
    root: Path, directory: str, in_our_group: Callable[[Path], None]
) -> None:
    def make(root: Path) -> None:
        write(root / directory / "new", "")
        in_our_group(root / directory / "new")

    (root / directory).mkdir(parents=True, exist_ok=True)
    assert changes(root, make) == [f"{Path('/', directory, 'new')}: absent before, file after"]


def test_a_file_of_another_user_of_our_group_is_his(root: Path, in_our_group: Callable[..., None]) -> None:
    def fetch_packages(root: Path) -> None:
        (root / "tmp/apt-key-gpghome.x").mkdir()
        in_our_group(root / "tmp/apt-key-gpghome.x", _APT)

    ours, of_others = seen(root, fetch_packages)
    assert (ours, len(of_others)) == ([], 1)


def test_a_file_that_we_put_in_the_place_of_another(root: Path, in_our_group: Callable[[Path], None]) -> None:
    def replace(root: Path) -> None:
        (root / "etc/hosts").unlink()
        (root / "etc/hosts").symlink_to("nowhere")
        in_our_group(root / "etc/hosts")

    assert changes(root, replace) == ["/etc/hosts: file before, link after"]


@pytest.mark.parametrize("name", ["avocado_x", "tmt", "qemu.sock"])
def test_what_the_tools_of_a_user_make_is_known_by_name(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is not root cannot choose a group."""
    lstat = Path.lstat
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    monkeypatch.setattr(Path, "lstat", lambda path: os.stat_result([*lstat(path)[:4], 4711, *lstat(path)[5:]]))
    assert changes(root, lambda root: write(root / "tmp" / name, "")) == [f"/tmp/{name}: absent before, file after"]
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert seen(root, lambda root: write(root / "tmp/tmt-2", "")) == ([], ["/tmp/tmt-2"])


def test_the_directory_of_a_run_that_goes_on_is_of_others(root: Path) -> None:
    def start(root: Path) -> None:
        (root / "tmp/hugepage-qa-x").mkdir()
        write(root / "proc/8/environ", "TMPDIR=/tmp/hugepage-qa-x\0HOME=/\0")
        write(root / "proc/8/cmdline", "sleep\0")
        (root / "proc/8/cwd").symlink_to("/")

    assert seen(root, start) == ([], ["/tmp/hugepage-qa-x"])
    assert seen(root, lambda root: (root / "tmp/hugepage-qa-x").rmdir()) == ([], ["/tmp/hugepage-qa-x"])


def test_what_a_run_before_ours_has_left_is_not_ours(root: Path) -> None:
    assert seen(root, lambda root: (root / "tmp/hugepage-qa-own/deeper").unlink()) == ([], [])
    assert seen(root, lambda root: (root / "tmp/hugepage-qa-own").rmdir()) == ([], ["/tmp/hugepage-qa-own"])


def test_the_lock_of_the_machine_is_no_litter(root: Path, in_our_group: Callable[[Path], None]) -> None:
    def lock(root: Path) -> None:
        write(root / "run/hugepage-qa.lock", "")
        in_our_group(root / "run/hugepage-qa.lock")

    (root / "run").mkdir()
    assert seen(root, lock) == ([], ["/run/hugepage-qa.lock"])


def test_emulators_of_others_do_not_count(root: Path) -> None:
    cache = Path("/home/me/.cache/hugepage-qa")
    assert changes(root, lambda root: write(root / "proc/7/cmdline", "qemu\0-hda\0/x"), cache) == []
    (line,) = changes(root, lambda root: write(root / "proc/7/cmdline", f"qemu\0-kernel\0{cache}/vmlinuz"), cache)
    assert line == "process 7 qemu-system-s39: absent before, running since tick 22 after"


def test_differences_are_sorted() -> None:
    assert differences(Snapshot({"b": "1", "c": "2"}), Snapshot({"a": "1", "c": "3"})) == [
        "a: absent before, 1 after",
        "b: 1 before, absent after",
        "c: 2 before, 3 after",
    ]


def test_this_machine() -> None:
    snapshot = take_snapshot()
    assert snapshot.of_others["/etc/passwd"] == "file"
    assert "mount /" in snapshot.values
