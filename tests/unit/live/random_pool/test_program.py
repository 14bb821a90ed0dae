"""A recorded program passes when it is replayed, and fails when any answer of the kernel is falsified."""

import gzip
import json
from functools import cache

from tests.unit.live.random_pool.record import PROGRAM, RECORD, run_on

from hugepage_qa.live.host import Host
from hugepage_qa.live.random_pool.search import Program
from hugepage_qa.live.transcript import Event, Replay

#: answers that decide how the replay goes on: another one is another program
_STEERING = ("fork", "load", "store")


@cache
def recorded() -> list[Event]:
    events: list[Event] = json.loads(gzip.decompress(RECORD.read_bytes()))
    return events


class Following(Replay):
    """Answers as recorded as long as the same is asked; the program has failed by the time it asks something else."""


def replay(events: list[Event]) -> Program:
    return run_on(Host(Following(events)))


def test_a_true_record_passes() -> None:
    program = replay(recorded())
    assert program.differences == ()
    assert program.operations[: len(PROGRAM)] == PROGRAM
    assert program.known == frozenset()
