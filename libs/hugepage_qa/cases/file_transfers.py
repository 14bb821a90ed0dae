"""Each call that carries what a file holds to memory, or from there into the file."""

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hugepage_qa.cases.file_contents import KnownFile
from hugepage_qa.cases.hugetlb_files import HugeFile
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD
from hugepage_qa.process.actor import Actor

#: a file, an address, from which byte of the file on, and how many bytes: it returns how many it carried
Transfer = Callable[[KnownFile, int, int, int], int]

#: where what is carried stands in another file: not where it stands in this one, within a page
_ELSEWHERE = 8


def read(file: KnownFile, address: int, first: int, length: int) -> int:
    """Read it (pread(2))."""
    return file.actor.call("pread64", file.descriptor, address, length, first)


def read_in_two(file: KnownFile, address: int, first: int, length: int) -> int:
    """Read it to two buffers (preadv(2))."""
    half = length // 16 * 8
    parts = file.actor.uapi.pack("4Q", address, half, address + half, length - half)
    return file.actor.call("preadv", file.descriptor, parts, 2, first, 0)


def spliced(file: KnownFile, address: int, first: int, length: int) -> int:
    """Read it through a pipe (splice(2)), which has the pages themselves."""
    start = file.actor.uapi.pack("Q", first)
    with _pipe(file.actor) as (reader, writer):
        given = file.actor.call("splice", file.descriptor, start, writer, 0, length, 0)
        return file.actor.call("read", reader, address, given)


def sent(file: KnownFile, address: int, first: int, length: int) -> int:
    """Read it through a pipe that it is sent to (sendfile(2))."""
    start = file.actor.uapi.pack("Q", first)
    with _pipe(file.actor) as (reader, writer):
        given = file.actor.call("sendfile", writer, file.descriptor, start, length)
        return file.actor.call("read", reader, address, given)


def copied(file: KnownFile, address: int, first: int, length: int) -> int:
    """Read what a copy of it has, elsewhere in a page: file systems can share whole blocks alone."""
    copy, actor = file.beside(), file.actor
    start, to = (actor.uapi.pack("Q", place) for place in (first, _ELSEWHERE))
    given = actor.call("copy_file_range", file.descriptor, start, copy, to, length, 0)
    found = actor.call("pread64", copy, address, given, _ELSEWHERE)
    actor.call("close", copy)
    return found


READS: tuple[Transfer, ...] = (read, read_in_two, spliced, sent, copied)


#: those that ``expect_read_by`` makes
READING_CALLS = ("pread64", "splice", "sendfile", "copy_file_range")


def expect_read_by(
    live: Live, call: str, file: HugeFile, copy: HugeFile, first: int, length: int, expected: int
) -> None:
    """Have one of ``READING_CALLS`` read ``length`` bytes of a filled file, and expect it to return ``expected``.

    That is how many bytes it carried, to memory, a pipe or ``copy``, which have to be those of the file, or an errno
    with a minus sign.
    """
    actor, pack = file.actor, file.actor.uapi.pack
    buffer = actor.mmap(length, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with _pipe(actor) as (reader, writer):
        arguments: dict[str, tuple[int | bytes, ...]] = {
            "pread64": (file.descriptor, buffer, length, first),
            "splice": (file.descriptor, pack("Q", first), writer, 0, length, 0),
            "sendfile": (writer, file.descriptor, pack("Q", first), length),
            "copy_file_range": (file.descriptor, pack("Q", first), copy.descriptor, pack("Q", 0), length, 0),
        }
        found = actor.result(call, *arguments[call])
        live.expect("what it returns", expected, found)
        if found > 0:
            if call == "copy_file_range":
                actor.call("pread64", copy.descriptor, buffer, found, 0)
            elif call != "pread64":
                actor.call("read", reader, buffer, found)
            live.expect("words of them that are others", 0, actor.check(buffer, found, WORD, 1 + first))
    actor.call("munmap", buffer, length)


def written_in_three(file: KnownFile, address: int, first: int, length: int) -> int:
    """Write it from three buffers (pwritev(2)), of which the middle one is short."""
    half = length // 16 * 8
    parts = ((address, half), (address + half, WORD), (address + half + WORD, length - half - WORD))
    vector = file.actor.uapi.pack("6Q", *(number for part in parts for number in part))
    return file.actor.call("pwritev", file.descriptor, vector, len(parts), first, 0)


def spliced_in(file: KnownFile, address: int, first: int, length: int) -> int:
    """Write it from a pipe (splice(2)) that it was written to."""
    with _pipe(file.actor) as (reader, writer):
        given = file.actor.call("write", writer, address, length)
        return _from_a_pipe(file, reader, first, given)


def given_in(file: KnownFile, address: int, first: int, length: int) -> int:
    """Write it from a pipe that has the pages of memory themselves (vmsplice(2))."""
    with _pipe(file.actor) as (reader, writer):
        given = file.actor.call("vmsplice", writer, file.actor.uapi.pack("2Q", address, length), 1, 0)
        return _from_a_pipe(file, reader, first, given)


def teed_in(file: KnownFile, address: int, first: int, length: int) -> int:
    """Write it from a pipe that has got it from another one, which has it still (tee(2))."""
    actor = file.actor
    with _pipe(actor) as (reader, writer), _pipe(actor) as (other_reader, other_writer):
        given = actor.call("write", writer, address, length)
        found = _from_a_pipe(file, other_reader, first, actor.call("tee", reader, other_writer, given, 0))
        # what is left in the first one
        return min(found, actor.call("read", reader, address, length))


def sent_in(file: KnownFile, address: int, first: int, length: int) -> int:
    """Write what another file holds (sendfile(2))."""
    actor = file.actor
    with _other_file(file, address, length) as other:
        actor.call("lseek", file.descriptor, first, os.SEEK_SET)
        return actor.call("sendfile", file.descriptor, other, actor.uapi.pack("Q", _ELSEWHERE), length)


def spliced_from_another(file: KnownFile, address: int, first: int, length: int) -> int:
    """Write it from a pipe that has the pages of another file (splice(2))."""
    actor = file.actor
    with _other_file(file, address, length) as other, _pipe(actor) as (reader, writer):
        start = actor.uapi.pack("Q", _ELSEWHERE)
        return _from_a_pipe(file, reader, first, actor.call("splice", other, start, writer, 0, length, 0))


WRITES: tuple[Transfer, ...] = (written_in_three, spliced_in, given_in, teed_in, sent_in, spliced_from_another)


def _from_a_pipe(file: KnownFile, reader: int, first: int, length: int) -> int:
    """Have the file take ``length`` bytes from a pipe, which may give less at a time, and return how many it took."""
    actor, done = file.actor, 0
    while done < length:
        to = actor.uapi.pack("Q", first + done)
        taken = actor.call("splice", reader, 0, file.descriptor, to, length - done, 0)
        if not taken:
            break
        done += taken
    return done


@contextmanager
def _pipe(actor: Actor) -> Iterator[tuple[int, int]]:
    ends = actor.pipe()
    yield ends
    for end in ends:
        actor.call("close", end)


@contextmanager
def _other_file(file: KnownFile, address: int, length: int) -> Iterator[int]:
    """Give a file that holds ``length`` bytes that stand at ``address``."""
    other = file.beside()
    file.actor.call("pwrite64", other, address, length, _ELSEWHERE)
    yield other
    file.actor.call("close", other)
