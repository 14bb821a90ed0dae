"""The journal: what it keeps, and what it refuses."""

import errno
import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.proc_tables import Mount, Segment
from hugepage_qa.machine.journal import Journal, find_journal, read_boot_id
from hugepage_qa.machine.kept_file import KeptFile
from hugepage_qa.machine.run_lock import Holder
from hugepage_qa.machine.saved_state import ExpectedReboot, KeptArguments, MachineState, Record

from .conftest import BOOT_ID, NEXT_BOOT_ID

RECORD = Record(
    run_id="0123456789abcdef",
    purpose="a test",
    holder=Holder(7, "python -m x", "2026-01-02T03:04:05+00:00"),
    boot_id=BOOT_ID,
    state=MachineState(
        knobs={"proc/sys/vm/swappiness": "60"},
        mounts=(Mount("/a b", "hugetlbfs", "rw"),),
        cgroups=("/cg/hugepage-qa-1",),
        hierarchies=("memory",),
        hugetlb_control={"/cg": True},
        segments=(Segment(0x48510001, 3),),
    ),
    scratch=("/run/hugepage-qa-0123456789abcdef",),
    files=(KeptFile("/etc/a", "eA==", 0o644, 0, 0), KeptFile("/etc/b", None)),
    arguments=KeptArguments("grubby", ("quiet", "a=b c")),
    expected_reboot=ExpectedReboot("token", NEXT_BOOT_ID),
)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "state")


@pytest.fixture
def begun(journal: Journal) -> Journal:
    journal.begin(replace(RECORD, files=(), arguments=None, expected_reboot=None))
    return journal


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def record(journal: Journal) -> Record:
    found = journal.read()
    assert found is not None
    return found


def test_what_is_written_is_read(journal: Journal) -> None:
    assert journal.read() is None
    journal.begin(RECORD)
    assert journal.read() == RECORD
    assert journal.path.stat().st_mode & 0o777 == 0o600
    assert journal.path.parent.stat().st_mode & 0o777 == 0o700
    journal.remove()
    assert journal.read() is None


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HUGEPAGE_QA_STATE", raising=False)
    assert find_journal().path == Path("/var/lib/hugepage-qa/journal.json")
    monkeypatch.setenv("HUGEPAGE_QA_STATE", str(tmp_path))
    assert find_journal().path == tmp_path / "journal.json"


def test_boot_id(machine: Path, tmp_path: Path) -> None:
    assert read_boot_id(machine) == BOOT_ID
    with pytest.raises(InputError, match="boot_id: cannot be read"):
        read_boot_id(tmp_path / "none")


# --- what is added ---


def test_a_file_is_kept_as_it_was_first(begun: Journal, tmp_path: Path) -> None:
    path = tmp_path / "99-hugepage-qa.conf"
    begun.keep_file(path)
    path.write_text("vm.nr_hugepages = 1\n", encoding="ascii")
    begun.keep_file(path)
    assert record(begun).files == (KeptFile(str(path), None),)


def test_arguments_are_kept_as_they_were_first(begun: Journal) -> None:
    begun.keep_arguments("grubby", ["quiet"])
    begun.keep_arguments("grubby", ["quiet", "hugepages=1"])
    assert record(begun).arguments == KeptArguments("grubby", ("quiet",))


def test_reboot(begun: Journal) -> None:
    begun.expect_reboot("a token")
    assert record(begun).expected_reboot == ExpectedReboot("a token")
    begun.arrive(NEXT_BOOT_ID)
    assert record(begun).expected_reboot == ExpectedReboot("a token", NEXT_BOOT_ID)
    begun.forget_reboot()
    assert record(begun).expected_reboot is None
    begun.arrive(NEXT_BOOT_ID)
    assert record(begun).expected_reboot is None


def test_scratch_directories(begun: Journal) -> None:
    for _ in range(2):
        begun.add_scratch(Path("/tmp/hugepage-qa-x"))
    assert record(begun).scratch == (*RECORD.scratch, "/tmp/hugepage-qa-x")


def test_a_scratch_directory_is_in_the_journal_before_it_is_made(
    begun: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = begun.make_scratch(tmp_path)
    assert made.parent == tmp_path
    assert made.stat().st_mode & 0o777 == 0o700
    assert record(begun).scratch == (*RECORD.scratch, str(made))
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(InputError, match="nothing was changed"):
        begun.make_scratch(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([begun.path.parent, made])


@pytest.mark.parametrize("path", ["/tmp/x", "hugepage-qa-x", "/", "/etc/../hugepage-qa-x", "/hugepage-qa-x/.."])
def test_other_directories_would_not_be_safe_to_remove(begun: Journal, path: str) -> None:
    with pytest.raises(InputError, match=f"scratch directory {path}: expected"):
        begun.add_scratch(Path(path))


def test_several_at_once(begun: Journal) -> None:
    names = [f"/tmp/hugepage-qa-{number}" for number in range(20)]
    threads = [threading.Thread(target=begun.add_scratch, args=(Path(name),)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(record(begun).scratch) == {*RECORD.scratch, *names}


@pytest.mark.parametrize(
    "add",
    [
        lambda journal: journal.keep_file(Path("/etc/x")),
        lambda journal: journal.keep_arguments("x", []),
        lambda journal: journal.add_scratch(Path("/tmp/hugepage-qa-x")),
        lambda journal: journal.expect_reboot("x"),
    ],
)
@pytest.mark.parametrize("exists", [False, True])
def test_nothing_is_added_where_no_run_protects(journal: Journal, add: Callable[[Journal], None], exists: bool) -> None:
    if exists:
        journal.path.parent.mkdir(mode=0o700)
    with pytest.raises(InputError, match="expected a run that protects the machine, found none"):
        add(journal)
    assert journal.read() is None


def test_what_would_not_be_read_is_not_written(begun: Journal) -> None:
    with pytest.raises(InputError, match="cannot hold"):
        begun.expect_reboot("two\nlines")
    assert record(begun).expected_reboot is None


# --- a disk that fails ---


@pytest.mark.parametrize("call", ["os.open", "os.fsync", "pathlib.Path.rename", "pathlib.Path.mkdir"])
def test_full_disk(journal: Journal, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    monkeypatch.setattr(call, full_disk)
    with pytest.raises(InputError) as caught:
        journal.begin(RECORD)
    assert str(caught.value) == (
        f"journal {journal.path}: cannot be written (No space left on device), the machine was not changed: free its"
        " disk, or set HUGEPAGE_QA_STATE to a directory on another one"
    )
    monkeypatch.undo()
    assert journal.read() is None


def test_full_disk_while_a_file_is_kept(begun: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    before = record(begun)
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(InputError, match="nothing was changed"):
        begun.keep_file(Path("/etc/none"))
    assert record(begun) == before


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        Journal(tmp_path / "file" / "state").begin(RECORD)


# --- what others wrote ---


def change(**values: object) -> Callable[[dict[str, Any]], object]:
    return lambda document: document.update(values)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (change(format="another"), "not a journal of hugepage-qa"),
        (change(version="1"), "version"),
        (change(version=0), "version"),
        (change(surprise=1), "surprise"),
        (change(boot_id="x"), "boot_id"),
        (change(run_id=""), "run_id"),
        (lambda document: document.pop("state"), "'state' is a required property"),
        (lambda document: document["state"]["knobs"].update({"etc/passwd": "x"}), "knobs"),
        (lambda document: document["state"]["knobs"].update({"proc/sys/../../etc/passwd": "x"}), "knobs"),
        (lambda document: document["state"]["knobs"].update({"proc/sys/vm/x": "1\n2"}), "knobs"),
        (lambda document: document["state"]["knobs"].update({"proc/sys/vm/x": 1}), "knobs"),
        (change(scratch=["/home"]), "scratch"),
        (change(scratch=["/hugepage-qa-x/../home"]), "scratch"),
        (change(scratch=["/home/hugepage-qa-/."]), "scratch"),
        (change(files=[{"path": "relative", "content": None, "mode": 0, "user": 0, "group": 0}]), "files"),
        (change(files=[{"path": "/a", "content": "?", "mode": 0, "user": 0, "group": 0}]), "files"),
        (change(arguments=["quiet"]), "arguments"),
    ],
)
def test_a_corrupt_or_foreign_file_is_refused_and_kept(
    journal: Journal, spoil: Callable[[dict[str, Any]], object], reason: str
) -> None:
    journal.begin(RECORD)
    document = json.loads(journal.path.read_text(encoding="utf-8"))
    spoil(document)
    refuse(journal, json.dumps(document).encode(), reason)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b'{"format": NaN}', "no JSON"),
        (b"[]", "not a journal"),
        (b"null", "not a journal"),
        (b"\xff", "no text"),
        (b"\0" * 4096, "no JSON"),
    ],
)
def test_garbage(journal: Journal, content: bytes, reason: str) -> None:
    journal.begin(RECORD)
    refuse(journal, content, reason)


def refuse(journal: Journal, content: bytes, reason: str) -> None:
    journal.path.write_bytes(content)
    for action in (journal.read, lambda: journal.expect_reboot("x")):
        with pytest.raises(InputError) as caught:
            action()
        message = str(caught.value)
        assert message.startswith(f"journal {journal.path}: ")
        assert reason in message
        assert "the file is kept" in message
        assert len(message.splitlines()) == 1
    assert journal.path.read_bytes() == content


def test_half_of_it(journal: Journal) -> None:
    journal.begin(RECORD)
    content = journal.path.read_bytes()
    for length in range(0, len(content) - 2, 97):
        refuse(journal, content[:length], "no JSON")


def test_a_later_version(journal: Journal) -> None:
    journal.begin(RECORD)
    journal.path.write_text('{"format": "hugepage-qa journal", "version": 2, "new": {}}', encoding="ascii")
    with pytest.raises(InputError) as caught:
        journal.read()
    assert "written by a later hugepage-qa (version 2, this one knows 1)" in str(caught.value)
    assert journal.path.exists()


# --- a directory that is not ours alone ---


def test_writable_for_others(begun: Journal) -> None:
    for mode in (0o770, 0o707):
        begun.path.parent.chmod(mode)
        with pytest.raises(InputError, match="is writable for others: expected one that only root can use"):
            begun.read()
        with pytest.raises(InputError, match="is writable for others"):
            begun.begin(RECORD)


def test_of_another_owner(begun: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(InputError, match="belongs to user id"):
        begun.read()


def test_link(begun: Journal, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(begun.path.parent)
    with pytest.raises(InputError, match="is a symbolic link"):
        Journal(tmp_path / "link").read()


def test_no_permission(begun: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(InputError, match=r"cannot be read \(Permission denied\): expected to be root"):
        begun.read()
