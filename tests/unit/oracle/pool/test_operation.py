"""How operations read, and how a program ends."""

import pytest
from tests.unit.oracle.pool.machines import LARGE, SMALL, counters, pool_machine, run

from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.pool.pool_operation import AREA_PAGES, area_address, area_of
from hugepage_qa.oracle.pool.pool_setup import CreateFile, MakeSegment, MountPool, SetCount, SetOvercommit, Truncate
from hugepage_qa.oracle.pool.pool_use import (
    Attach,
    Exit,
    Fork,
    MapAnonymous,
    MapFile,
    Move,
    Read,
    Unmap,
    Write,
    closing_operations,
    traces_left,
)


def test_an_operation_reads_like_a_call() -> None:
    text = str(MountPool("m", SMALL, least=None, most=4 * SMALL, inodes=3))
    assert text == "MountPool(mount='m', page_size=2M, least=None, most=8M, inodes=3)"
    assert str(Write("a", 1, LARGE, 0, 7)) == "Write(process='a', area=1, page_size=1G, page=0, value=7)"


@pytest.mark.parametrize("size", [64 << 10, SMALL, LARGE, 16 << 30])
def test_areas_do_not_overlap(size: int) -> None:
    for area in (0, 1, 5):
        for page in (0, AREA_PAGES - 1):
            assert area_of(area_address(area, size, page), size) == (area, page)
        last = area_address(area, size, AREA_PAGES - 1) + size
        assert last <= area_address(area + 1, size, 0)
        assert area_address(area, size, 0) % size == 0


def test_all_is_given_back_at_the_end() -> None:
    machine = pool_machine(pages=2)
    before = {size: pool.counters() for size, pool in machine.pools.items()}
    run(machine, SetCount(SMALL, 9), SetOvercommit(SMALL, 2), MountPool("m", SMALL, least=SMALL))
    run(machine, CreateFile("a", "f", "m"), MapFile("a", 1, SMALL, "f", 0, 2, True, False), Write("a", 1, SMALL, 0, 7))
    run(machine, MakeSegment("a", "s", SMALL, 1), Attach("a", 2, SMALL, "s"), Fork("a", "b"), Exit("a"))
    assert traces_left(machine, before, None) == []
    # it was tried on a copy
    assert counters(machine) != (2, 2, 0, 0)
    for operation in closing_operations(machine, before, None):
        assert run(machine, operation) == "ok"
    assert counters(machine) == (2, 2, 0, 0)
    assert not machine.processes
    assert not machine.mounts


def test_bugs_leave_traces() -> None:
    machine = pool_machine(pages=2, follow={Quirk.MOVE_FORGETS_RESERVATION})
    before = {size: pool.counters() for size, pool in machine.pools.items()}
    run(machine, MapAnonymous("a", 1, SMALL, 2, False, False), Move("a", 1, SMALL, 0, 1, 2))
    assert traces_left(machine, before, None) == ["hugepages-2048kB/resv_hugepages 1"]


def test_what_is_not_there_is_not_touched() -> None:
    machine = pool_machine(pages=2)
    assert run(machine, Read("a", 1, SMALL, 0)) == "SIGSEGV"
    assert run(machine, Unmap("a", 1, SMALL, 0, 2)) == "ok"
    run(machine, MountPool("m", SMALL), CreateFile("a", "f", "m"))
    assert run(machine, Truncate("a", "f", SMALL, 3)) == "ok"
    assert machine.files["f"].length == 3
