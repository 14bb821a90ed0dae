"""Mounts with their quotas, files, and what truncation and hole punching do."""

import pytest
from tests.unit.oracle.pool.machines import SMALL, counters, pool_machine, run

from hugepage_qa.oracle.pool.pool_machine import PoolMachine
from hugepage_qa.oracle.pool.pool_setup import (
    Allocate,
    Close,
    CreateFile,
    MakeMemfd,
    MountPool,
    PunchHole,
    SetCount,
    Truncate,
    Unlink,
    Unmount,
)
from hugepage_qa.oracle.pool.pool_use import (
    Exit,
    Fork,
    MapAnonymous,
    MapFile,
    Read,
    Unmap,
    Write,
)


def mounted(pages: int, least: int | None = None, most: int | None = None, inodes: int | None = None) -> PoolMachine:
    """Return a machine with a file on a mount whose limits are in pages."""
    machine = pool_machine(pages=pages)
    least_bytes, most_bytes = (None if limit is None else limit * SMALL for limit in (least, most))
    run(machine, MountPool("m", SMALL, least_bytes, most_bytes, inodes), CreateFile("a", "f", "m"))
    return machine


def quota(machine: PoolMachine) -> tuple[int, int]:
    """Return what the mount uses and what it has in reserve."""
    subpool = machine.mounts["m"].subpool
    assert subpool is not None
    return subpool.used, subpool.reserved


def test_a_mount_gives_no_more_than_its_size() -> None:
    machine = mounted(8, most=2)
    assert run(machine, MapFile("a", 1, SMALL, "f", 0, 3, True, False)) == "ENOMEM"
    assert run(machine, MapFile("a", 1, SMALL, "f", 0, 2, True, False)) == "ok"
    assert quota(machine) == (2, 0)
    run(machine, MapFile("a", 2, SMALL, "f", 2, 1, True, True))
    assert run(machine, Read("a", 2, SMALL, 0)) == "SIGBUS"
    assert run(machine, Allocate("a", "f", SMALL, 0, 3, False)) == "ENOSPC"
    # two of the three were allocated, and the length is as it was
    assert counters(machine) == (8, 6, 0, 0)
    assert machine.files["f"].length == 3
    run(machine, Truncate("a", "f", SMALL, 0))
    assert quota(machine) == (0, 0)
    assert counters(machine) == (8, 8, 0, 0)


def test_a_mount_keeps_its_least_size_reserved() -> None:
    machine = mounted(4, least=2)
    assert counters(machine) == (4, 4, 2, 0)
    run(machine, MapFile("a", 1, SMALL, "f", 0, 3, True, False))
    assert counters(machine) == (4, 4, 3, 0)
    run(machine, Write("a", 1, SMALL, 0, 7), Unmap("a", 1, SMALL, 0, 3), Truncate("a", "f", SMALL, 0))
    assert counters(machine) == (4, 4, 2, 0)
    run(machine, Close("a", "f"), Unmount("m"))
    assert counters(machine) == (4, 4, 0, 0)


def test_what_a_mount_has_reserved_serves_those_without_reservation() -> None:
    machine = mounted(2, least=1, most=2)
    run(machine, MapFile("a", 1, SMALL, "f", 0, 2, False, True), MapAnonymous("a", 2, SMALL, 1, False, False))
    assert counters(machine) == (2, 2, 2, 0)
    assert run(machine, Write("a", 1, SMALL, 0, 7)) == "ok"
    assert counters(machine) == (2, 1, 1, 0)
    assert run(machine, Write("a", 1, SMALL, 1, 7)) == "SIGBUS"
    assert quota(machine) == (1, 0)


def test_what_cannot_be_mounted() -> None:
    machine = pool_machine(pages=1)
    assert run(machine, MountPool("m", SMALL, least=2 * SMALL)) == "ENOMEM"
    assert run(machine, MountPool("m", SMALL, least=2 * SMALL, most=SMALL)) == "EINVAL"
    assert counters(machine) == (1, 1, 0, 0)
    # a limit is rounded down to pages
    assert run(machine, MountPool("m", SMALL, least=2 * SMALL - 1)) == "ok"
    assert counters(machine) == (1, 1, 1, 0)


def test_a_mount_has_so_many_inodes() -> None:
    machine = mounted(1, most=1, inodes=2)
    assert run(machine, CreateFile("a", "g", "m")) == "ENOSPC"
    run(machine, Unlink("a", "f"))
    assert run(machine, CreateFile("a", "g", "m")) == "ENOSPC"
    run(machine, Close("a", "f"))
    assert run(machine, CreateFile("a", "g", "m")) == "ok"


def test_a_mount_in_use_stays() -> None:
    machine = mounted(2)
    run(machine, MapFile("a", 1, SMALL, "f", 0, 2, True, False), Write("a", 1, SMALL, 0, 7))
    assert run(machine, Unmount("m")) == "EBUSY"
    run(machine, Close("a", "f"))
    assert run(machine, Unmount("m")) == "EBUSY"
    run(machine, Unmap("a", 1, SMALL, 0, 2))
    assert counters(machine) == (2, 1, 1, 0)
    assert run(machine, Unmount("m")) == "ok"
    assert counters(machine) == (2, 2, 0, 0)


def test_a_file_lives_until_its_last_user_ends() -> None:
    machine = mounted(2)
    run(machine, MapFile("a", 1, SMALL, "f", 0, 1, True, False), Write("a", 1, SMALL, 0, 7), Unlink("a", "f"))
    run(machine, Close("a", "f"), Fork("a", "b"), Exit("a"))
    assert counters(machine) == (2, 1, 0, 0)
    run(machine, Exit("b"))
    assert counters(machine) == (2, 2, 0, 0)


def test_a_forked_process_has_files_open_too() -> None:
    machine = pool_machine(pages=1)
    run(machine, MakeMemfd("a", "f", SMALL), Allocate("a", "f", SMALL, 0, 1, False), Fork("a", "b"))
    run(machine, Close("a", "f"))
    assert counters(machine) == (1, 0, 0, 0)
    run(machine, Exit("b"))
    assert counters(machine) == (1, 1, 0, 0)


def test_a_hole_takes_private_copies_with_it_and_leaves_reservations() -> None:
    machine = mounted(6)
    run(machine, MapFile("a", 1, SMALL, "f", 0, 2, True, False), Write("a", 1, SMALL, 0, 7))
    run(machine, MapFile("a", 2, SMALL, "f", 0, 2, False, False), Write("a", 2, SMALL, 0, 8))
    assert counters(machine) == (6, 4, 2, 0)
    run(machine, PunchHole("a", "f", SMALL, 0, 2))
    # the private mapping has its reservation back, the file keeps that of the page that was never there
    assert counters(machine) == (6, 6, 3, 0)
    assert run(machine, Read("a", 2, SMALL, 0)) == 0
    assert run(machine, Read("a", 1, SMALL, 0)) == 0
    assert counters(machine) == (6, 4, 2, 0)


def test_truncation_ends_reservations_of_the_file() -> None:
    machine = mounted(6)
    run(machine, MapFile("a", 1, SMALL, "f", 0, 4, True, False), Write("a", 1, SMALL, 3, 7))
    run(machine, Truncate("a", "f", SMALL, 1))
    assert counters(machine) == (6, 6, 1, 0)
    run(machine, Truncate("a", "f", SMALL, 4))
    assert run(machine, Read("a", 1, SMALL, 3)) == 0


@pytest.mark.parametrize("split_first", [False, True])
def test_the_order_of_mappings_decides_about_reservations(split_first: bool) -> None:
    """The owner gets its reservation back when it is the last one that the kernel takes the page from."""
    machine = pool_machine(pages=4)
    run(machine, MakeMemfd("a", "f", SMALL), MapFile("a", 1, SMALL, "f", 0, 2, False, False))
    run(machine, Write("a", 1, SMALL, 0, 7), Fork("a", "b"))
    if split_first:
        # the part that is left is put behind the child's
        run(machine, Unmap("a", 1, SMALL, 1, 1))
    before = machine.pools[SMALL].resv
    run(machine, PunchHole("a", "f", SMALL, 0, 1))
    assert machine.pools[SMALL].resv - before == split_first


def test_allocation_beyond_the_end_is_removed_by_growing() -> None:
    machine = pool_machine(pages=3)
    run(machine, MakeMemfd("a", "f", SMALL), Allocate("a", "f", SMALL, 0, 3, True))
    assert counters(machine) == (3, 0, 0, 0)
    assert machine.files["f"].length == 0
    run(machine, Truncate("a", "f", SMALL, 1))
    assert counters(machine) == (3, 2, 0, 0)


def test_freed_pages_of_a_file_go_as_surplus() -> None:
    machine = mounted(2)
    run(machine, Allocate("a", "f", SMALL, 0, 2, False), SetCount(SMALL, 1))
    assert counters(machine) == (2, 0, 0, 1)
    run(machine, Truncate("a", "f", SMALL, 0))
    assert counters(machine) == (1, 1, 0, 0)
