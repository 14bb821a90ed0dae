"""Record one program on the pools of this machine, for the test that replays and falsifies it.

python -m tests.unit.cases.random.record_random, as root, on a machine that nobody else uses. It has every kind of
operation that pages of the smallest size know, and comes across no known bug.
"""

import gzip
import json

from tests.unit.cases.record_areas import RECORDS
from tests.unit.cases.transcript import Recorder

from hugepage_qa.cases.random.random_run import RandomResult, run_saved_program
from hugepage_qa.cases.result import Verdict
from hugepage_qa.machine.host import Host
from hugepage_qa.machine.protection import protected_machine
from hugepage_qa.machine.real_machine import real_machine
from hugepage_qa.oracle.pool.pool_operation import Operation
from hugepage_qa.oracle.pool.pool_setup import (
    Allocate,
    Close,
    CreateFile,
    JoinGroup,
    LimitGroup,
    MakeGroup,
    MakeMemfd,
    MakeSegment,
    MountPool,
    PunchHole,
    SetCount,
    SetOvercommit,
    Truncate,
    Unlink,
    Unmount,
)
from hugepage_qa.oracle.pool.pool_use import (
    Attach,
    Discard,
    Exit,
    Fork,
    Grow,
    MapAnonymous,
    MapFile,
    Move,
    Read,
    Unmap,
    Write,
)
from hugepage_qa.sizes import MIB

SIZE = 2 * MIB
RECORD = RECORDS / "pool-program.json.gz"

PROGRAM: tuple[Operation, ...] = (
    SetCount(SIZE, 6),
    SetOvercommit(SIZE, 1),
    MakeGroup("g"),
    LimitGroup("g", SIZE, 4 * SIZE, reserved=False),
    LimitGroup("g", SIZE, None, reserved=True),
    JoinGroup("a", "g"),
    MountPool("m", SIZE, least=SIZE, most=3 * SIZE, inodes=2),
    CreateFile("a", "f", "m"),
    CreateFile("a", "g", "m"),
    MapFile("a", 1, SIZE, "f", 0, 2, shared=True, noreserve=False),
    Write("a", 1, SIZE, 0, 7),
    MapFile("a", 2, SIZE, "f", 0, 1, shared=False, noreserve=True),
    Read("a", 2, SIZE, 0),
    Write("a", 2, SIZE, 0, 8),
    Read("a", 1, SIZE, 0),
    PunchHole("a", "f", SIZE, 0, 1),
    Allocate("a", "f", SIZE, 0, 3, keep_size=True),
    Truncate("a", "f", SIZE, 1),
    Unlink("a", "f"),
    Close("a", "f"),
    Unmount("m"),
    Unmap("a", 1, SIZE, 0, 2),
    Unmap("a", 2, SIZE, 0, 1),
    Unmount("m"),
    MakeMemfd("a", "h", SIZE),
    MapFile("a", 3, SIZE, "h", 0, 2, shared=True, noreserve=True),
    Write("a", 3, SIZE, 1, 9),
    MakeSegment("a", "s", SIZE, 1),
    Attach("a", 4, SIZE, "s"),
    Write("a", 4, SIZE, 0, 10),
    Unlink("a", "s"),
    MapAnonymous("a", 5, SIZE, 2, shared=False, noreserve=False),
    Write("a", 5, SIZE, 0, 11),
    Write("a", 5, SIZE, 1, 12),
    Read("a", 3, SIZE, 0),
    Discard("a", 5, SIZE, 1, 1),
    Move("a", 5, SIZE, 0, 2, 6),
    Grow("a", 6, SIZE, 0, 2),
    Fork("a", "b"),
    Write("b", 6, SIZE, 0, 13),
    Read("a", 6, SIZE, 0),
    Exit("b"),
    MapAnonymous("a", 7, SIZE, 8, shared=True, noreserve=False),
)


def run_on(host: Host) -> RandomResult:
    """Run the program, and what ends it."""
    return run_saved_program(host, SIZE, PROGRAM)


def main() -> None:
    """Record it."""
    with protected_machine("a recording of a program") as protection, real_machine(protection.scratch) as machine:
        recorder = Recorder(machine)
        judgement = run_on(Host(recorder))
    print(judgement.verdict.value, judgement.reason, judgement.evidence)  # noqa: T201
    if judgement.verdict is Verdict.PASS:
        RECORD.write_bytes(gzip.compress(json.dumps(recorder.events, sort_keys=True).encode(), mtime=0))


if __name__ == "__main__":
    main()
