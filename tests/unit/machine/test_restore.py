"""A machine is put back as a whole: what was done, what could not be, and when the journal goes."""

from dataclasses import replace
from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.machine.boot_loader.loader import ArgumentsLost, BootLoader
from hugepage_qa.machine.journal import Journal, find_journal
from hugepage_qa.machine.kept_file import NOTHING, Repair
from hugepage_qa.machine.protection import new_record
from hugepage_qa.machine.restore import Restoration, restore
from hugepage_qa.machine.run_lock import this_process
from hugepage_qa.machine.saved_state import Record
from hugepage_qa.process import process_table

from .conftest import NEXT_BOOT_ID, THP, VM, Kernel, value, write
from .test_kernel_arguments import Loader


@pytest.fixture
def journal(kernel: Kernel) -> Journal:
    return find_journal(kernel.root)


@pytest.fixture
def record(kernel: Kernel, journal: Journal) -> Record:
    record = new_record("a test", this_process(), kernel.root)
    journal.begin(record)
    return record


def no_boot_loader(_: Path) -> BootLoader:
    raise InputError("no boot loader that is known")


def put_back(kernel: Kernel, journal: Journal, loader: Loader | None = None) -> Restoration:
    record = journal.read()
    assert record is not None
    return restore(journal, record, loader.found if loader else no_boot_loader, kernel.root)


def reboot(root: Path) -> None:
    write(root / "proc/sys/kernel/random/boot_id", NEXT_BOOT_ID)


def test_nothing_to_do(kernel: Kernel, journal: Journal, record: Record) -> None:
    assert record.boot_id
    assert put_back(kernel, journal) == Restoration((), ())
    assert journal.read() is None


@pytest.mark.usefixtures("record")
def test_all_of_it(kernel: Kernel, journal: Journal, tmp_path: Path) -> None:
    root = kernel.root
    file = tmp_path / "99-hugepage-qa.conf"
    loader = Loader("quiet")
    journal.keep_file(file)
    journal.keep_arguments(loader.name, loader.arguments())
    journal.add_scratch(Path("/tmp/hugepage-qa-scratch"))
    file.touch()
    loader.add(["hugepages=1"])
    write(root / "tmp/hugepage-qa-scratch/file", "")
    kernel.set(f"{VM}/min_free_kbytes", "2000")
    restoration = put_back(kernel, journal, loader)
    assert [repair.subject for repair in restoration.repairs] == [
        "vm/min_free_kbytes",
        "kernel arguments (grubby)",
        f"file {file}",
        "directory /tmp/hugepage-qa-scratch",
    ]
    assert restoration.unrestored == ()
    assert journal.read() is None
    assert not file.exists()
    assert loader.words == ["quiet"]
    assert value(root, f"{VM}/min_free_kbytes") == "1000"


@pytest.mark.usefixtures("record")
def test_what_cannot_be_put_back_stays_in_the_journal(kernel: Kernel, journal: Journal) -> None:
    kernel.set(f"{THP}/use_zero_page", "0")
    kernel.set(f"{VM}/min_free_kbytes", "2000")
    refuse = kernel.rules.append
    refuse(lambda path, _: kernel.refuse(path, "0") if path == f"{THP}/use_zero_page" else None)
    restoration = put_back(kernel, journal)
    assert restoration.unrestored == (Repair("transparent_hugepage/use_zero_page", "1", "0", "0"),)
    assert journal.read() is not None
    kernel.rules.pop()
    assert put_back(kernel, journal).unrestored == ()
    assert journal.read() is None


@pytest.mark.usefixtures("record")
def test_a_step_that_breaks_keeps_no_other_from_being_done(
    kernel: Kernel, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Loader):
        def remove(self, _: object) -> None:
            raise ArgumentsLost("grubby", "lost", ["quiet"], ["ro"])

    monkeypatch.setattr(process_table, "_ancestors", lambda _: 1 / 0)
    kernel.set("proc/sysvipc/shm", "title\nnonsense\n")
    kernel.set(f"{VM}/min_free_kbytes", "2000")
    journal.keep_arguments("grubby", ["quiet"])
    restoration = put_back(kernel, journal, Broken("quiet", "hugepages=1"))
    assert [repair.subject for repair in restoration.unrestored] == ["processes", "shared memory", "kernel arguments"]
    assert "ZeroDivisionError" in restoration.unrestored[0].after
    assert "/proc/sysvipc/shm, line 2: 'nonsense'" in restoration.unrestored[1].after
    assert "grubby lost quiet" in restoration.unrestored[2].after
    assert value(kernel.root, f"{VM}/min_free_kbytes") == "1000"
    assert journal.read() is not None


@pytest.mark.usefixtures("record")
def test_an_unknown_boot_loader(kernel: Kernel, journal: Journal) -> None:
    journal.keep_arguments("grubby", ["quiet"])
    (repair,) = put_back(kernel, journal).unrestored
    assert "no boot loader that is known" in repair.after


@pytest.mark.usefixtures("record")
def test_after_a_reboot_only_what_it_has_not_reset(kernel: Kernel, journal: Journal, tmp_path: Path) -> None:
    file = tmp_path / "file"
    journal.keep_file(file)
    journal.keep_arguments("grubby", ["quiet"])
    file.touch()
    kernel.set(f"{VM}/min_free_kbytes", "2000")
    kernel.set("proc/cmdline", "quiet hugepages=3\n")
    reboot(kernel.root)
    restoration = put_back(kernel, journal, Loader("quiet", "hugepages=3"))
    assert [repair.subject for repair in restoration.repairs] == ["kernel arguments (grubby)", f"file {file}"]
    assert restoration.notices == (
        "the machine was booted since: its pools and knobs are those of the boot",
        "this boot was started with hugepages=3: the next one will not be",
    )
    assert value(kernel.root, f"{VM}/min_free_kbytes") == "2000"
    assert kernel.written == []
    assert journal.read() is None


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ("none /dev/hugepages hugetlbfs rw,pagesize=2M 0 0\ntmpfs /dev/shm tmpfs rw,nr_inodes=5 0 0\n", []),
        ("none /dev/hugepages hugetlbfs rw,pagesize=2M 0 0\n", []),
        (
            "tmpfs /dev/shm tmpfs rw 0 0\n",
            [Repair("mount /dev/hugepages", "hugetlbfs rw,pagesize=2M", NOTHING, NOTHING)],
        ),
        (
            "none /dev/hugepages hugetlbfs rw,pagesize=2M,size=4M 0 0\n",
            [
                Repair(
                    "mount /dev/hugepages",
                    "hugetlbfs rw,pagesize=2M",
                    "hugetlbfs rw,pagesize=2M,size=4M",
                    "hugetlbfs rw,pagesize=2M,size=4M",
                )
            ],
        ),
        (
            "none /dev/hugepages hugetlbfs rw,pagesize=2M 0 0\ntmpfs /dev/shm tmpfs rw,huge=always 0 0\n",
            [Repair("mount /dev/shm", "tmpfs huge=never", "tmpfs huge=always", "tmpfs huge=always")],
        ),
    ],
)
@pytest.mark.usefixtures("record")
def test_mounts_that_were_there(kernel: Kernel, journal: Journal, mounts: str, expected: list[Repair]) -> None:
    kernel.set("proc/self/mounts", mounts)
    assert list(put_back(kernel, journal).repairs) == expected


def test_controllers(kernel: Kernel, journal: Journal) -> None:
    kernel.set("proc/self/mounts", "none /cg cgroup2 rw 0 0\n")
    kernel.set("cg/cgroup.subtree_control", "cpu\n")
    record = new_record("a test", this_process(), kernel.root)
    journal.begin(record)
    kernel.set("cg/cgroup.subtree_control", "cpu hugetlb\n")
    # a file takes what is written for its new content, and that is no list of controllers with hugetlb in it
    (repair,) = put_back(kernel, journal).repairs
    assert repair == Repair("hugetlb in /cg", "not handed down", "handed down", "not handed down")
    assert value(kernel.root, "cg/cgroup.subtree_control") == "-hugetlb"


def test_a_journal_that_asks_for_files_that_are_no_knobs(kernel: Kernel, journal: Journal, record: Record) -> None:
    state = replace(record.state, knobs={"proc/sys/kernel/core_pattern": "|/tmp/evil"})
    write(kernel.root / "proc/sys/kernel/core_pattern", "core")
    journal.begin(replace(record, state=state))
    (repair,) = put_back(kernel, journal).unrestored
    assert repair == Repair("kernel/core_pattern", "|/tmp/evil", NOTHING, NOTHING)
    assert value(kernel.root, "proc/sys/kernel/core_pattern") == "core"
