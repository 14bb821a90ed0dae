"""A machine under test is always put back."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from hugepage_qa import durable
from hugepage_qa.errors import InputError
from hugepage_qa.machine import protection
from hugepage_qa.machine.journal import find_journal
from hugepage_qa.machine.protection import Protection, protected_machine, require_root
from hugepage_qa.machine.run_lock import LOCK
from hugepage_qa.process.marks import RUN

from .conftest import NEXT_BOOT_ID, THP, VM, Kernel, value, write

MIN_FREE = f"{VM}/min_free_kbytes"
CASES = "reboot cases"
CHILD = """
import subprocess, sys, time
from pathlib import Path
from hugepage_qa.machine import protection
protection.require_root = lambda what: None
root = Path(sys.argv[1])
with protection.protected_machine("a child", root=root) as protected:
    (root / "proc/sys/vm/min_free_kbytes").write_text("2000")
    (protected.scratch / "file").touch()
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    print(protected.run_id, sleeper.pid, flush=True)
    # a signal that comes just before a sleep begins is seen after it
    while True:
        time.sleep(0.01)
"""


NOEXEC = """
import shutil, subprocess, sys
from pathlib import Path
from hugepage_qa.machine.protection import _make_scratch
scratch = Path(sys.argv[1], "scratch")
_make_scratch(scratch, Path("/"))
_make_scratch(scratch, Path("/"))
program = shutil.copy("/bin/true", scratch)
subprocess.run([program], check=True)
print(Path("/proc/mounts").read_text().count(str(scratch)), oct(scratch.stat().st_mode & 0o777))
"""


def run_is_over(root: Path) -> bool:
    """Nothing of a run is left in the machine."""
    return (
        value(root, MIN_FREE) == "1000"
        and find_journal(root).read() is None
        and not (root / LOCK).exists()
        and [path.name for path in (root / "run").iterdir()] == ["motd"]
    )


def start_child(root: Path) -> tuple[subprocess.Popen[str], str, int]:
    """Start a run; return it, its run id, and a process that it has started."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    run_id, sleeper = child.stdout.readline().split()
    return child, run_id, int(sleeper)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_the_body_may_change_the_machine(machine: Path) -> None:
    said: list[str] = []
    with protected_machine("a  test\nin lines", root=machine, say=said.append) as protected:
        record = protected.journal.read()
        assert record is not None
        assert (record.purpose, record.run_id) == ("a test in lines", protected.run_id)
        assert record.holder.pid == os.getpid()
        assert os.environ[RUN] == protected.run_id == protected.environment[RUN]
        assert protected.scratch.stat().st_mode & 0o777 == 0o700
        assert not protected.resumed
        write(machine / MIN_FREE, "2000")
        write(protected.scratch / "deep/file", "")
    assert run_is_over(machine)
    assert RUN not in os.environ
    assert protected.unrestored == ()
    # that a run changes the machine is no news
    assert said == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_programs_of_a_run_are_executed_although_run_is_mounted_with_noexec(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o noexec none "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "--mount", "/bin/sh", "-ec", mount, "sh", str(tmp_path), sys.executable, NOEXEC]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    if "unshare failed" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert (done.stdout, done.returncode) == ("1 0o700\n", 0), done.stderr


def test_the_journal_is_there_before_the_body(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(durable, "sync_directory", synced.append)
    with protected_machine("a test", root=machine) as protected:
        assert synced == [protected.journal.path.parent]


@pytest.mark.parametrize("error", [RuntimeError, AssertionError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_error_in_the_body(machine: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), protected_machine("a test", root=machine):
        write(machine / MIN_FREE, "2000")
        raise error
    assert run_is_over(machine)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_stop_signals(machine: Path, number: signal.Signals, code: int) -> None:
    child, _, sleeper = start_child(machine)
    with child:
        child.send_signal(number)
        assert child.wait() == code
    assert run_is_over(machine)
    assert not is_running(sleeper)


def test_kill_and_the_next_start(machine: Path) -> None:
    child, run_id, sleeper = start_child(machine)
    with child:
        child.kill()
    assert value(machine, MIN_FREE) == "2000"
    assert is_running(sleeper)
    said: list[str] = []
    with protected_machine("the next one", root=machine, say=said.append) as protected:
        assert value(machine, MIN_FREE) == "1000"
        assert not is_running(sleeper)
        assert protected.run_id != run_id
        assert [path.name for path in (machine / "run").glob("hugepage-qa-*")] == [protected.scratch.name]
    assert run_is_over(machine)
    assert said[0].startswith(f"the run {run_id} (a child; process {child.pid} ({sys.executable} -c ")
    assert said[0].endswith("did not put the machine back: doing that now")
    assert set(said[1:]) >= {
        "vm/min_free_kbytes: put back to 1000, was 2000",
        f"directory /run/hugepage-qa-{run_id}: removed, was a directory",
    }


def test_two_runs_at_once(machine: Path) -> None:
    child, _, _ = start_child(machine)
    with child:
        with pytest.raises(InputError, match=f"in use by process {child.pid} "), protected_machine("b", root=machine):
            pytest.fail("two runs at once")
        # and the first one is undisturbed
        assert value(machine, MIN_FREE) == "2000"
        assert find_journal(machine).read() is not None
        child.send_signal(signal.SIGTERM)
    assert run_is_over(machine)


def test_a_signal_while_the_machine_is_put_back(kernel: Kernel) -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    kernel.rules.append(lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        with protected_machine("a test", root=kernel.root):
            kernel.set(MIN_FREE, "2000")
            kernel.set(f"{THP}/use_zero_page", "0")
        assert received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert run_is_over(kernel.root)
    assert value(kernel.root, f"{THP}/use_zero_page") == "1"


def test_what_cannot_be_put_back_is_tried_again_by_the_next_run(kernel: Kernel) -> None:
    said: list[str] = []
    refuse = [True]
    kernel.rules.append(lambda path, _: kernel.refuse(path, "2000") if path == MIN_FREE and refuse else None)
    with protected_machine("a test", root=kernel.root, say=said.append) as protected:
        kernel.set(MIN_FREE, "2000")
    (repair,) = protected.unrestored
    assert (repair.subject, repair.wanted, repair.after) == ("vm/min_free_kbytes", "1000", "2000")
    assert said == ["vm/min_free_kbytes: NOT put back: wanted 1000, found 2000"]
    said.clear()
    with protected_machine("the next one", root=kernel.root, say=said.append) as protected:
        # as wanted by the first one, not as found by this one
        record = protected.journal.read()
        assert record is not None
        assert record.state.knobs[MIN_FREE] == "1000"
        refuse.clear()
    assert protected.unrestored == ()
    assert run_is_over(kernel.root)


def test_a_report_on_a_machine_that_is_put_back(kernel: Kernel, tmp_path: Path) -> None:
    refuse = [True]
    kernel.rules.append(lambda path, _: kernel.refuse(path, "0") if path.endswith("zero_page") and refuse else None)
    with protected_machine("a test", root=kernel.root) as protected:
        results = protected.journal.make_scratch(tmp_path)
        kernel.set(MIN_FREE, "2000")
        kernel.set(f"{THP}/use_zero_page", "0")
        (repair,) = protected.put_back()
        assert repair.subject == "transparent_hugepage/use_zero_page"
        assert value(kernel.root, MIN_FREE) == "1000"
        # killed now, the next start still has something to remove
        assert results.is_dir()
        assert protected.scratch.is_dir()
        refuse.clear()
        record = protected.journal.read()
        assert record is not None
        assert str(results) in record.scratch
    assert protected.unrestored == ()
    assert run_is_over(kernel.root)


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(InputError, match=r"No space left on device.*the machine was not changed"):
        enter(machine)
    assert run_is_over(machine)


def test_no_room_for_the_scratch_directory(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir = Path.mkdir

    def fail(path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if path.name.startswith("hugepage-qa-"):
            full_disk()
        mkdir(path, mode, parents, exist_ok)

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(OSError, match="No space left"):
        enter(machine)
    assert run_is_over(machine)


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b'{"format": "hugepage-qa journal", "version": 2}', b"{}"])
def test_a_journal_that_cannot_be_read_is_neither_used_nor_lost(machine: Path, content: bytes) -> None:
    path = find_journal(machine).path
    path.parent.mkdir(mode=0o700, parents=True)
    path.write_bytes(content)
    write(machine / MIN_FREE, "2000")
    with pytest.raises(InputError, match="the file is kept"):
        enter(machine)
    assert path.read_bytes() == content
    assert value(machine, MIN_FREE) == "2000"
    assert not (machine / LOCK).exists()


def enter(root: Path) -> None:
    """Start a run that must not come to its body."""
    with protected_machine("a test", root=root):
        pytest.fail("it went on")


def test_not_root(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protection, "require_root", require_root)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(InputError, match="changing a machine: expected to be root, found user id 4711: use sudo"):
        enter(machine)
    assert run_is_over(machine)


@pytest.mark.parametrize("name", ["sys", "proc/sys"])
def test_kernel_files_that_cannot_be_written(machine: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs
    read_only = SimpleNamespace(f_flag=os.ST_RDONLY)
    monkeypatch.setattr(os, "statvfs", lambda path: read_only if path == machine / name else real(path))
    with pytest.raises(InputError, match=f"{name}: is mounted read-only, expected"):
        enter(machine)
    assert run_is_over(machine)


# --- reboots ---


def reboot(root: Path) -> None:
    write(root / "proc/sys/kernel/random/boot_id", NEXT_BOOT_ID)
    write(root / MIN_FREE, "1500")


def ask_for_reboot(root: Path, then: Callable[[Protection], object] = lambda _: None) -> str:
    """A run that changes something that lasts and asks for a reboot; return its run id."""
    with protected_machine(CASES, token=CASES, root=root) as protected:
        write(root / MIN_FREE, "2000")
        protected.journal.keep_file(root / "99-hugepage-qa.conf")
        write(root / "99-hugepage-qa.conf", "")
        protected.journal.expect_reboot(CASES)
        then(protected)
    return protected.run_id


def test_a_reboot_that_the_run_has_asked_for(machine: Path) -> None:
    run_id = ask_for_reboot(machine)
    # left as it is: the reboot is still to come
    assert value(machine, MIN_FREE) == "2000"
    assert find_journal(machine).read() is not None
    assert not (machine / LOCK).exists()
    reboot(machine)
    said: list[str] = []
    with protected_machine(CASES, token=CASES, root=machine, say=said.append) as protected:
        assert protected.resumed
        assert protected.run_id == run_id
        assert (machine / "99-hugepage-qa.conf").exists()
        write(machine / MIN_FREE, "3000")
    # run-time knobs as this boot had them, files as they were before the first
    assert value(machine, MIN_FREE) == "1500"
    assert not (machine / "99-hugepage-qa.conf").exists()
    assert find_journal(machine).read() is None
    assert said == []


@pytest.mark.parametrize("token", [None, "b"])
def test_another_start_puts_the_machine_back(machine: Path, token: str | None) -> None:
    ask_for_reboot(machine)
    reboot(machine)
    said: list[str] = []
    with protected_machine("another", token=token, root=machine, say=said.append) as protected:
        assert not protected.resumed
        assert not (machine / "99-hugepage-qa.conf").exists()
    assert value(machine, MIN_FREE) == "1500"
    assert any("booted since" in line for line in said)


def test_the_same_token_without_a_reboot(machine: Path) -> None:
    ask_for_reboot(machine)
    with protected_machine(CASES, token=CASES, root=machine, say=lambda _: None) as protected:
        assert not protected.resumed
        assert value(machine, MIN_FREE) == "1000"
        assert not (machine / "99-hugepage-qa.conf").exists()


def test_a_request_for_a_reboot_that_fails(machine: Path) -> None:
    def fail(_: Protection) -> None:
        raise subprocess.CalledProcessError(1, "tmt-reboot")

    with pytest.raises(subprocess.CalledProcessError):
        ask_for_reboot(machine, fail)
    assert run_is_over(machine)
    assert not (machine / "99-hugepage-qa.conf").exists()


def test_systemd_ends_the_run_for_the_reboot(machine: Path) -> None:
    with pytest.raises(SystemExit):
        ask_for_reboot(machine, lambda _: signal.raise_signal(signal.SIGTERM))
    assert value(machine, MIN_FREE) == "2000"
    record = find_journal(machine).read()
    assert record is not None
    assert record.expected_reboot is not None


def test_several_reboots(machine: Path) -> None:
    ask_for_reboot(machine)
    for number in range(3):
        write(machine / "proc/sys/kernel/random/boot_id", f"{number:08d}-2222-3333-4444-555555555555")
        with protected_machine(CASES, token=CASES, root=machine) as protected:
            assert protected.resumed
            protected.journal.expect_reboot(CASES)
    reboot(machine)
    with protected_machine(CASES, token=CASES, root=machine) as protected:
        assert protected.resumed
    assert run_is_over_after_boot(machine)


def run_is_over_after_boot(root: Path) -> bool:
    return find_journal(root).read() is None and not (root / "99-hugepage-qa.conf").exists()
