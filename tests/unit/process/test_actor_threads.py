"""Threads of the actor, for real: what they do at the same moment, and again and again."""

import errno
import mmap
import os
import time
from itertools import product

import pytest

from hugepage_qa.kernel.uapi import MAP_FIXED_NOREPLACE, MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.actor_threads import Action, Came

PAGE = mmap.PAGESIZE
WRITABLE = mmap.PROT_READ | mmap.PROT_WRITE
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


def test_those_that_race_tell_how_many_of_them_could_store(actor: Actor) -> None:
    began = time.monotonic()
    assert actor.race(3, 0.2, PAGE, PRIVATE) == {3}
    # the processes' clock may be slewed against this one
    assert time.monotonic() - began >= 0.1
    fd = actor.call("memfd_create", "file", 0)
    # nothing is behind the end of an empty file
    assert actor.race(2, 0, PAGE, mmap.MAP_SHARED, fd) == {0}
    with pytest.raises(OSError, match="EBADF"):
        actor.race(2, 0, PAGE, mmap.MAP_SHARED, 99)
    for processes in (0, 33):
        with pytest.raises(ValueError, match="malformed"):
            actor.race(processes, 0, PAGE, PRIVATE)


def test_those_that_race_to_attach_a_segment_find_what_all_of_them_store(actor: Actor) -> None:
    identifier = actor.call("shmget", 0, 2 * PAGE, 0o1600)
    try:
        assert actor.race_to_attach(3, 0.2, 2 * PAGE, identifier, 64) == {3}
        address = actor.call("shmat", identifier, 0, 0)
        # what was stored last: the number of the round from 1 on, and how far it is from the start
        last = actor.read(address)
        assert last > 0
        assert actor.check(address, 2 * PAGE, 64, last) == 0
    finally:
        actor.call("shmctl", identifier, 0, 0)
    with pytest.raises(ValueError, match="lost"):
        actor.race_to_attach(2, 0, PAGE, 1 << 30, 64)


@pytest.mark.parametrize("value", [0, 5])
@pytest.mark.parametrize("flags", [mmap.MAP_PRIVATE, mmap.MAP_SHARED])
def test_those_that_touch_first_find_what_is_there(actor: Actor, flags: int, value: int) -> None:
    address = actor.mmap(PAGE, WRITABLE, flags | mmap.MAP_ANONYMOUS)
    is_shared = flags == mmap.MAP_SHARED
    fd = actor.call("memfd_create", "file", 0)
    rounds, came = actor.touch_first(2, 0.2, address, value=value, removed=PAGE if is_shared else 0, fd=fd)
    assert (rounds > 0, came) == (True, Came.DONE)
    assert actor.read(address) == (value if is_shared else 0)
    assert actor.call("lseek", fd, 0, os.SEEK_END) == 1
    actor.write(address, 7)
    assert Came.WRONG in actor.touch_first(2, 0, address)[1]


def test_those_that_touch_first_are_refused_as_others_are(actor: Actor) -> None:
    address = actor.mmap(PAGE, WRITABLE, PRIVATE)
    with pytest.raises(OSError, match="EBADF"):
        actor.touch_first(2, 0, address, fd=99)
    with pytest.raises(OSError, match="EINVAL"):
        actor.touch_first(2, 0, address + 1, removed=PAGE)
    for processes in (0, 17):
        with pytest.raises(ValueError, match="malformed"):
            actor.touch_first(processes, 0, address)


def test_threads_that_clash_tell_what_came_of_each_action(actor: Actor) -> None:
    touch, done = Action.TOUCH, Came.DONE
    assert actor.threads.clash([touch] * 4, 0.1, PAGE, PRIVATE) == [done] * 4
    fd = actor.call("memfd_create", "file", 0)
    actor.call("ftruncate", fd, PAGE)
    # nothing is behind the end of an empty file
    assert actor.threads.clash([touch] * 2, 0, PAGE, mmap.MAP_SHARED, fd) == [Came.SIGBUS] * 2
    with pytest.raises(OSError, match="EBADF"):
        actor.threads.clash([touch], 0, PAGE, mmap.MAP_SHARED, 99)
    for actions in (0, 33):
        with pytest.raises(ValueError, match="malformed"):
            actor.threads.clash([touch] * actions, 0, PAGE, PRIVATE)


def test_threads_store_all_over_memory_that_is_aligned(actor: Actor) -> None:
    ways = Action.TOUCH, Action.READ_FIRST, Action.READ_FIRST_FROM_OUTSIDE, Action.TOUCH
    for actions, pages in product((ways, ways[:2]), (1, 4)):
        assert actor.threads.clash(actions, 0.1, pages * PAGE, PRIVATE, aligned=True) == [Came.DONE] * len(actions)
    fd = actor.call("memfd_create", "file", 0)
    came = actor.threads.clash(ways[:3], 0, PAGE, mmap.MAP_SHARED, fd, aligned=True)
    # nothing is behind the end of an empty file
    assert came == [Came.SIGBUS, Came.SIGBUS, Came.REFUSED]


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
    *writers, rivals = actor.threads.clash([Action.TOUCH] * 3 + [rival], 0.3, PAGE, PRIVATE)
    assert rivals is Came.DONE
    for came in writers:
        assert came & ~may_come == Came(0)


def test_threads_find_what_they_store(actor: Actor) -> None:
    address = actor.mmap(4 * PAGE, WRITABLE, PRIVATE)
    for _thread in range(3):
        actor.threads.use(address, 4 * PAGE, PAGE)
    for one in actor.threads.stop(0.1):
        assert (one.came, one.errors) == (Came.DONE, frozenset())
        assert one.times > 0


def test_threads_see_what_a_call_of_another_does_to_their_memory(actor: Actor) -> None:
    address = actor.mmap(4 * PAGE, WRITABLE, PRIVATE)
    actor.threads.use(address, 4 * PAGE, PAGE)
    actor.threads.repeat("madvise", address, 4 * PAGE, mmap.MADV_DONTNEED)
    user, call = actor.threads.stop(0.3)
    assert Came.GONE in user.came
    assert call.came is Came.DONE


def test_what_is_filled_is_watched_in_memory_and_in_files(actor: Actor) -> None:
    file = actor.call("memfd_create", "watched", 0)
    actor.call("ftruncate", file, 2 * PAGE)
    address = actor.mmap(2 * PAGE, WRITABLE, mmap.MAP_SHARED, file)
    for value in (0, 7):
        actor.threads.watch(address, 2 * PAGE, PAGE, value)
        actor.threads.reread(file, 2 * PAGE, PAGE, value)
        assert [one.came for one in actor.threads.stop(0.01)] == [Came.DONE, Came.DONE]
        actor.fill(address, 2 * PAGE, 8, 7)
    actor.write(address + PAGE, 1)
    actor.threads.watch(address, 2 * PAGE, PAGE, 7)
    actor.threads.reread(file, 3 * PAGE, PAGE, 7)
    memory, in_file = actor.threads.stop(0.01)
    assert Came.WRONG in memory.came
    assert Came.WRONG | Came.REFUSED in in_file.came


def test_a_call_that_is_attempted_need_not_be_done(actor: Actor) -> None:
    actor.threads.attempt("madvise", PAGE // 2, PAGE, mmap.MADV_DONTNEED)
    (attempted,) = actor.threads.stop(0.01)
    assert (attempted.came, attempted.errors) == (Came.REFUSED, frozenset({errno.EINVAL}))
    assert attempted.times > 0


def test_a_mapping_that_shuttles_is_there_and_away_with_what_it_holds(actor: Actor) -> None:
    address, room = (actor.mmap(4 * PAGE, WRITABLE, PRIVATE) for _mapping in range(2))
    actor.fill(address, 4 * PAGE, 8, 7)
    actor.threads.watch(address, 4 * PAGE, PAGE, 7)
    actor.threads.shuttle(address, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room)
    watching, moving = actor.threads.stop(0.3)
    assert Came.WRONG not in watching.came
    assert (moving.came, moving.errors) == (Came.DONE, frozenset())
    # an even or an odd number of times
    there = address if moving.times % 2 == 0 else room
    assert actor.check(there, 4 * PAGE, 8, 7) == 0


def test_errors_of_a_repeated_call_are_told_beside_its_successes(actor: Actor) -> None:
    address = actor.mmap(PAGE, WRITABLE, PRIVATE)
    fixed = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED_NOREPLACE
    actor.threads.repeat("mmap", address, PAGE, WRITABLE, fixed, -1, 0)
    actor.threads.repeat("munmap", address, PAGE)
    actor.threads.use(address, PAGE, PAGE)
    mapping, unmapping, user = actor.threads.stop(0.3)
    assert (mapping.came, mapping.errors) == (Came.DONE | Came.REFUSED, frozenset({errno.EEXIST}))
    assert (unmapping.came, unmapping.errors) == (Came.DONE, frozenset())
    assert Came.SIGSEGV in user.came


def test_a_buffer_of_a_repeated_call_is_its_own(actor: Actor) -> None:
    file = actor.call("memfd_create", "repeated", 0)
    actor.threads.repeat("pwrite64", file, bytes([7] * 8), 8, 0)
    actor.call("pwrite64", file, bytes(8), 8, 8)
    (writing,) = actor.threads.stop(0)
    assert writing.came is Came.DONE
    _length, (read,) = actor.call_with_buffers("pread64", file, bytes(16), 16, 0)
    assert read == bytes([7] * 8 + [0] * 8)


def test_a_child_has_none_of_the_threads(actor: Actor) -> None:
    address = actor.mmap(PAGE, WRITABLE, PRIVATE)
    actor.threads.use(address, PAGE, PAGE)
    assert actor.fork().threads.stop(0) == []
    assert len(actor.threads.stop(0)) == 1
