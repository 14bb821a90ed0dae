"""The actor, for real: it is built and asked."""

import errno
import mmap
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.uapi import MAP_FIXED_NOREPLACE, MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.process import actor_link
from hugepage_qa.process.actor import Action, Actor, Came, Fault, start_actor
from hugepage_qa.process.actor_link import ActorGone, ActorStarved
from hugepage_qa.process.c_compiler import build_actor

PAGE = mmap.PAGESIZE
WRITABLE = mmap.PROT_READ | mmap.PROT_WRITE
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_actor(tmp_path_factory.mktemp("actor"))


@pytest.fixture
def actor(program: Path) -> Iterator[Actor]:
    with start_actor(program) as started:
        yield started


def test_one_that_cannot_be_started_says_nothing_of_the_kernel(program: Path, tmp_path: Path) -> None:
    copy = tmp_path / "actor"
    copy.write_bytes(program.read_bytes())
    with pytest.raises(InputError, match=r"actor: Permission denied: .*noexec"), start_actor(copy):
        pass


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


def test_limits_of_who_starts_the_suite_are_none_of_the_actor(program: Path) -> None:
    limit, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE, most))
    try:
        with start_actor(program) as actor:
            fd = actor.call("memfd_create", "file", 0)
            assert actor.call("ftruncate", fd, 2 * PAGE) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))


def test_those_that_race_tell_how_many_of_them_could_store(actor: Actor) -> None:
    began = time.monotonic()
    assert actor.race(3, 0.2, PAGE, PRIVATE) == {3}
    assert time.monotonic() - began >= 0.2
    fd = actor.call("memfd_create", "file", 0)
    # nothing is behind the end of an empty file
    assert actor.race(2, 0, PAGE, mmap.MAP_SHARED, fd) == {0}
    with pytest.raises(OSError, match="EBADF"):
        actor.race(2, 0, PAGE, mmap.MAP_SHARED, 99)
    for processes in (0, 33):
        with pytest.raises(ValueError, match="malformed"):
            actor.race(processes, 0, PAGE, PRIVATE)


def test_threads_that_clash_tell_what_came_of_each_deed(actor: Actor) -> None:
    touch, done = Action.TOUCH, Came.DONE
    assert actor.clash([touch] * 4, 0.1, PAGE, PRIVATE) == [done] * 4
    fd = actor.call("memfd_create", "file", 0)
    actor.call("ftruncate", fd, PAGE)
    # nothing is behind the end of an empty file
    assert actor.clash([touch] * 2, 0, PAGE, mmap.MAP_SHARED, fd) == [Came.SIGBUS] * 2
    with pytest.raises(OSError, match="EBADF"):
        actor.clash([touch], 0, PAGE, mmap.MAP_SHARED, 99)
    for actions in (0, 33):
        with pytest.raises(ValueError, match="malformed"):
            actor.clash([touch] * actions, 0, PAGE, PRIVATE)


@pytest.mark.parametrize(
    ("rival", "may_come"),
    [
        (Action.DISCARD, Came.DONE | Came.GONE),
        (Action.REPLACE, Came.DONE | Came.GONE),
        (Action.PROTECT, Came.DONE | Came.SIGSEGV),
        (Action.MOVE, Came.DONE | Came.SIGSEGV),
        (Action.FORK, Came.DONE),
        (Action.MAP_MORE, Came.DONE),
    ],
)
def test_what_is_done_to_a_mapping_shows_in_what_came_of_those_that_write(
    actor: Actor, rival: Action, may_come: Came
) -> None:
    *writers, rivals = actor.clash([Action.TOUCH] * 3 + [rival], 0.3, PAGE, PRIVATE)
    assert rivals is Came.DONE
    for came in writers:
        assert came & ~may_come == Came(0)


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


def test_threads_find_what_they_store(actor: Actor) -> None:
    address = actor.mmap(4 * PAGE, WRITABLE, PRIVATE)
    for _thread in range(3):
        actor.use(address, 4 * PAGE, PAGE)
    for one in actor.stop(0.1):
        assert (one.came, one.errors) == (Came.DONE, frozenset())
        assert one.times > 0


def test_threads_see_what_a_call_of_another_does_to_their_memory(actor: Actor) -> None:
    address = actor.mmap(4 * PAGE, WRITABLE, PRIVATE)
    actor.use(address, 4 * PAGE, PAGE)
    actor.repeat("madvise", address, 4 * PAGE, mmap.MADV_DONTNEED)
    user, call = actor.stop(0.3)
    assert Came.GONE in user.came
    assert call.came is Came.DONE


def test_what_is_filled_is_watched_in_memory_and_in_files(actor: Actor) -> None:
    file = actor.call("memfd_create", "watched", 0)
    actor.call("ftruncate", file, 2 * PAGE)
    address = actor.mmap(2 * PAGE, WRITABLE, mmap.MAP_SHARED, file)
    for value in (0, 7):
        actor.watch(address, 2 * PAGE, PAGE, value)
        actor.reread(file, 2 * PAGE, PAGE, value)
        assert [one.came for one in actor.stop(0.01)] == [Came.DONE, Came.DONE]
        actor.fill(address, 2 * PAGE, 8, 7)
    actor.write(address + PAGE, 1)
    actor.watch(address, 2 * PAGE, PAGE, 7)
    actor.reread(file, 3 * PAGE, PAGE, 7)
    memory, in_file = actor.stop(0.01)
    assert Came.WRONG in memory.came
    assert Came.WRONG | Came.REFUSED in in_file.came


def test_a_call_that_is_attempted_need_not_be_done(actor: Actor) -> None:
    actor.attempt("madvise", PAGE // 2, PAGE, mmap.MADV_DONTNEED)
    (attempted,) = actor.stop(0.01)
    assert (attempted.came, attempted.errors) == (Came.REFUSED, frozenset({errno.EINVAL}))
    assert attempted.times > 0


def test_a_mapping_that_shuttles_is_there_and_away_with_what_it_holds(actor: Actor) -> None:
    address, room = (actor.mmap(4 * PAGE, WRITABLE, PRIVATE) for _mapping in range(2))
    actor.fill(address, 4 * PAGE, 8, 7)
    actor.watch(address, 4 * PAGE, PAGE, 7)
    actor.shuttle(address, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room)
    watching, moving = actor.stop(0.3)
    assert Came.WRONG not in watching.came
    assert (moving.came, moving.errors) == (Came.DONE, frozenset())
    # an even or an odd number of times
    there = address if moving.times % 2 == 0 else room
    assert actor.check(there, 4 * PAGE, 8, 7) == 0


def test_errors_of_a_repeated_call_are_told_beside_its_successes(actor: Actor) -> None:
    address = actor.mmap(PAGE, WRITABLE, PRIVATE)
    fixed = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED_NOREPLACE
    actor.repeat("mmap", address, PAGE, WRITABLE, fixed, -1, 0)
    actor.repeat("munmap", address, PAGE)
    actor.use(address, PAGE, PAGE)
    mapping, unmapping, user = actor.stop(0.3)
    assert (mapping.came, mapping.errors) == (Came.DONE | Came.REFUSED, frozenset({errno.EEXIST}))
    assert (unmapping.came, unmapping.errors) == (Came.DONE, frozenset())
    assert Came.SIGSEGV in user.came


def test_a_buffer_of_a_repeated_call_is_its_own(actor: Actor) -> None:
    file = actor.call("memfd_create", "repeated", 0)
    actor.repeat("pwrite64", file, bytes([7] * 8), 8, 0)
    actor.call("pwrite64", file, bytes(8), 8, 8)
    (writing,) = actor.stop(0)
    assert writing.came is Came.DONE
    _length, (read,) = actor.call_with_buffers("pread64", file, bytes(16), 16, 0)
    assert read == bytes([7] * 8 + [0] * 8)


def test_a_child_has_none_of_the_threads(actor: Actor) -> None:
    address = actor.mmap(PAGE, WRITABLE, PRIVATE)
    actor.use(address, PAGE, PAGE)
    assert actor.fork().stop(0) == []
    assert len(actor.stop(0)) == 1


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
