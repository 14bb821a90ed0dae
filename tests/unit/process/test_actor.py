"""The actor, for real: it is built and asked."""

import errno
import mmap
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.uapi import AT_FDCWD
from hugepage_qa.process import actor_link
from hugepage_qa.process.actor import Actor, Fault, start_actor
from hugepage_qa.process.actor_link import ActorGone, ActorStarved
from hugepage_qa.process.c_compiler import build_actor

PAGE = mmap.PAGESIZE
WRITABLE = mmap.PROT_READ | mmap.PROT_WRITE
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


def test_one_that_cannot_be_started_says_nothing_of_the_kernel(program: Path, tmp_path: Path) -> None:
    copy = tmp_path / "actor"
    copy.write_bytes(program.read_bytes())
    with pytest.raises(InputError, match=r"actor: Permission denied: .*noexec"), start_actor(copy):
        pass


def test_a_refused_call_shows_its_buffers(actor: Actor) -> None:
    assert actor.result_with_buffers("read", -1, b"12345678", 8) == (-errno.EBADF, (b"12345678",))


def test_it_was_told_of_no_broken_memory_by_the_signal_that_ended_an_access(actor: Actor) -> None:
    with pytest.raises(Fault):
        actor.read(0)
    assert actor.told_of_broken_memory() is None


def test_it_stores_and_loads_all_64_bits(actor: Actor) -> None:
    address = actor.mmap(PAGE, WRITABLE, PRIVATE)
    actor.write(address, 2**64 - 2)
    assert actor.read(address) == 2**64 - 2


def test_check_counts_what_fill_did_not_leave(actor: Actor) -> None:
    address = actor.mmap(4 * PAGE, WRITABLE, PRIVATE)
    actor.fill(address, 4 * PAGE, PAGE, 7)
    assert actor.check(address, 4 * PAGE, PAGE, 7) == 0
    actor.write(address + PAGE, 0)
    assert actor.check(address, 4 * PAGE, PAGE, 7) == 1


def test_every_word_that_is_not_zero_is_counted(actor: Actor) -> None:
    address = actor.mmap(2 * PAGE, WRITABLE, PRIVATE)
    assert actor.nonzero(address, 2 * PAGE) == 0
    for offset in (8, PAGE - 8, 2 * PAGE - 8):
        actor.write(address + offset, 1 << 63)
    assert actor.nonzero(address, 2 * PAGE) == 3
    assert actor.nonzero(address, PAGE) == 2


def test_words_that_are_apart_are_counted(actor: Actor) -> None:
    address = actor.mmap(PAGE, WRITABLE, PRIVATE)
    # of a line the word with its number: the first word and the last of a page are among them
    for offset in (0, 8, 64 + 8, PAGE - 8):
        actor.write(address + offset, 1)
    assert actor.nonzero(address, PAGE, 64) == 3
    actor.fill(address, PAGE, 64, 1)
    assert actor.nonzero(address, PAGE, 64) == PAGE // 64


def test_it_computes_for_as_long_as_it_is_told(actor: Actor) -> None:
    def cpu_seconds() -> float:
        fields = Path(f"/proc/{actor.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        # utime and stime are the 14th and 15th field, and this is from the third on (proc_pid_stat(5))
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    before = cpu_seconds()
    actor.compute(0.2)
    assert 0.15 < cpu_seconds() - before < 0.4


def test_discard_gives_parts_of_memory_back(actor: Actor) -> None:
    address = actor.mmap(8 * PAGE, WRITABLE, PRIVATE)
    actor.fill(address, 8 * PAGE, PAGE, 1)
    actor.discard(address, 8 * PAGE, 4 * PAGE, 2 * PAGE)
    kept = [bool(actor.read(address + page * PAGE)) for page in range(8)]
    assert kept == [False, False, True, True] * 2


def test_discard_of_what_is_not_mapped_is_refused(actor: Actor) -> None:
    with pytest.raises(OSError, match="ENOMEM"):
        actor.discard(0, PAGE, PAGE, PAGE)
    with pytest.raises(ValueError, match="malformed"):
        actor.discard(0, PAGE, 0, PAGE)


def test_stores_that_are_not_told_of_are_counted(actor: Actor) -> None:
    pagemap = actor.call("openat", AT_FDCWD, "/proc/self/pagemap", os.O_RDONLY, 0)
    clear_refs = actor.call("openat", AT_FDCWD, "/proc/self/clear_refs", os.O_WRONLY, 0)
    address = actor.mmap(PAGE, WRITABLE, PRIVATE)
    nothing = actor.call("openat", AT_FDCWD, "/dev/null", os.O_WRONLY, 0)
    # every new mapping is soft-dirty as a whole, and nobody has it forget
    is_told = actor.soft_dirty(address, 3, nothing, pagemap) == (0, 3)
    assert actor.soft_dirty(address, 3, clear_refs, pagemap) == ((0, 0) if is_told else (3, 0))
    with pytest.raises(OSError, match="EBADF"):
        actor.soft_dirty(address, 1, 99, pagemap)
    with pytest.raises(OSError, match="EFAULT"):
        actor.soft_dirty(0, 1, clear_refs, pagemap)


def test_limits_of_who_starts_the_suite_are_none_of_the_actor(program: Path) -> None:
    limit, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE, most))
    try:
        with start_actor(program) as actor:
            fd = actor.call("memfd_create", "file", 0)
            assert actor.call("ftruncate", fd, 2 * PAGE) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))


def test_an_access_that_faults_is_an_answer(actor: Actor) -> None:
    address = actor.mmap(2 * PAGE, WRITABLE, PRIVATE)
    actor.call("munmap", address + PAGE, PAGE)
    with pytest.raises(Fault) as caught:
        actor.write(address + PAGE, 1)
    assert (caught.value.signal, caught.value.address) == (signal.SIGSEGV, address + PAGE)
    with pytest.raises(Fault):
        actor.fill(address, 2 * PAGE, PAGE, 1)
    actor.write(address, 1)


def test_a_truncated_file_gives_sigbus(actor: Actor) -> None:
    fd = actor.call("memfd_create", "name", 0)
    actor.call("ftruncate", fd, PAGE)
    address = actor.mmap(PAGE, WRITABLE, mmap.MAP_SHARED, fd)
    actor.call("ftruncate", fd, 0)
    with pytest.raises(Fault) as caught:
        actor.read(address)
    assert caught.value.signal is signal.SIGBUS


def test_errno_is_that_of_the_kernel(actor: Actor) -> None:
    with pytest.raises(OSError, match="EBADF") as caught:
        actor.call("close", 99)
    assert caught.value.errno == errno.EBADF
    with pytest.raises(OSError, match="ENOSYS"):
        actor.call("no_such_call")


def test_buffers_come_back_as_the_kernel_left_them(actor: Actor) -> None:
    fd = actor.call("memfd_create", "name", 0)
    assert actor.call("write", fd, b"abc", 3) == 3
    actor.call("lseek", fd, 0, os.SEEK_SET)
    assert actor.call_with_buffers("read", fd, bytes(4), 4) == (3, (b"abc\0",))


def test_every_byte_passes_both_ways(actor: Actor) -> None:
    fd = actor.call("memfd_create", "name", 0)
    every = bytes(range(256)) * 16
    assert actor.call("pwrite64", fd, every, len(every), 0) == len(every)
    assert actor.call_with_buffers("pread64", fd, bytes(len(every)), len(every), 0) == (len(every), (every,))


@pytest.mark.parametrize("buffer", ["x0", "x0g", "xAB"])
def test_what_is_not_hexadecimal_is_malformed(actor: Actor, buffer: str) -> None:
    with pytest.raises(ValueError, match="malformed"):
        actor._ask("call", "close", buffer)


def test_a_forked_actor_has_memory_of_its_own(actor: Actor) -> None:
    address = actor.mmap(PAGE, WRITABLE, PRIVATE)
    actor.write(address, 1)
    child = actor.fork()
    child.write(address, 2)
    assert (actor.read(address), child.read(address)) == (1, 2)
    child.end()
    deadline = time.monotonic() + 60
    # what it held is given back by now, its entry goes when its parent is told
    while Path(f"/proc/{child.pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{child.pid}").exists()


def test_what_was_forked_ends_with_the_block(program: Path) -> None:
    with start_actor(program) as actor:
        pids = [actor.pid, actor.fork().pid]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_forked_actor_goes_on_when_its_parent_exits(actor: Actor) -> None:
    address = actor.mmap(PAGE, WRITABLE, PRIVATE)
    actor.write(address, 1)
    child = actor.fork()
    actor.exit()
    with pytest.raises(ActorGone):
        actor.read(address)
    assert child.read(address) == 1
    actor.end()
    with pytest.raises(ActorGone):
        child.read(address)


def test_an_actor_that_gets_no_cpu_says_nothing_of_the_kernel(actor: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_link, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(actor_link, "_STARVED_SECONDS", 0.5)
    os.kill(actor.pid, signal.SIGSTOP)
    with pytest.raises(ActorStarved, match="0 s of a CPU"):
        actor.call("getpid")
    os.kill(actor.pid, signal.SIGCONT)


def test_an_actor_is_killed_once(actor: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    actor.end()
    monkeypatch.setattr(os, "pidfd_open", lambda _pid: pytest.fail("its process id may be another's"))
    actor.end()
    actor.exit()


def test_a_killed_actor_is_gone_and_not_a_fault(actor: Actor) -> None:
    os.kill(actor.pid, signal.SIGKILL)
    with pytest.raises(ActorGone):
        actor.read(0)


def test_it_ends_when_its_parent_is_killed(program: Path) -> None:
    text = (
        "import sys, time; from pathlib import Path; from hugepage_qa.process.actor import start_actor\n"
        "with start_actor(Path(sys.argv[1])) as actor: print(actor.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", text, str(program)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        status = Path("/proc", parent.stdout.readline().strip(), "status")
        assert status.exists()
        parent.kill()
    deadline = time.monotonic() + 10
    while status.exists() and "State:\tZ" not in status.read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not status.exists() or "State:\tZ" in status.read_text()


def test_malformed_requests_are_refused(actor: Actor) -> None:
    for words in (("nonsense",), ("load", "x1"), ("load", "12z"), ("fill", 1, 1, 0, 1), ("load", *range(7))):
        with pytest.raises(ValueError, match="malformed"):
            actor._ask(*words)


def test_no_compiler_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(InputError, match="no C compiler"):
        build_actor(tmp_path)


def test_a_compiler_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.raises(InputError, match=r"makes no actor: "):
        build_actor(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_program_that_begins_anew_gets_its_arguments_and_its_environment(actor: Actor) -> None:
    assert actor.exec("NAME=value", 10, 100_000) == 0
    assert Path(f"/proc/{actor.pid}/environ").read_bytes() == b"NAME=value\0"
    words = Path(f"/proc/{actor.pid}/cmdline").read_bytes().split(b"\0")[:-1]
    assert [len(word) for word in words[3:]] == 10 * [100_000]
    assert len(set(words[3:])) == 10
    with pytest.raises(OSError, match="E2BIG"):
        actor.exec("", 200, 100_000)
    assert actor.exec() == 0


def test_of_two_words_each_wakes_who_sleeps_on_it(actor: Actor) -> None:
    address = actor.mmap(PAGE, WRITABLE, PRIVATE)
    assert actor.wake(address, address + 4) == (1, 1)
    # as if both were one futex: who wakes first wakes both
    assert actor.wake(address, address) == (0, 2)


def test_the_c_library_allocates_and_takes_back(actor: Actor) -> None:
    assert actor.libc() >= 2
    address = actor.malloc(3 * PAGE)
    actor.fill(address, 3 * PAGE, 8, 5)
    assert actor.check(address, 3 * PAGE, 8, 5) == 0
    actor.free(address)
    with pytest.raises(OSError, match="ENOMEM"):
        actor.malloc(1 << 60)
