"""Each known bug of the pools: what such a kernel does, and that a kernel without it does right."""

import re
from pathlib import Path

import pytest
from tests.unit.oracle.pool.machines import LARGE, SMALL, counters, pool_machine, run

from hugepage_qa.oracle import pool as hugetlb_pool
from hugepage_qa.oracle.issue_tables import ALL_ISSUES
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.pool.known_pool_issues import POOL_ISSUES, pool_issues_of
from hugepage_qa.oracle.pool.pool_machine import PoolMachine
from hugepage_qa.oracle.pool.pool_operation import NEVER_ENDS, Operation, Outcome
from hugepage_qa.oracle.pool.pool_setup import (
    Allocate,
    Close,
    CreateFile,
    Demote,
    MountPool,
    SetCount,
    SetOvercommit,
    Truncate,
    Unmount,
)
from hugepage_qa.oracle.pool.pool_use import Exit, Fork, MapAnonymous, MapFile, Move, Read, Unmap, Write
from hugepage_qa.version import KernelVersion

Program = tuple[Operation, ...]


def on_mount(least: int | None, most: int | None) -> Program:
    """Return a mount with limits in pages, and a file on it."""
    limits = [None if limit is None else limit * SMALL for limit in (least, most)]
    return MountPool("m", SMALL, *limits), CreateFile("a", "f", "m")


def file(area: int, pages: int, shared: bool = True, noreserve: bool = False) -> MapFile:
    return MapFile("a", area, SMALL, "f", 0, pages, shared, noreserve)


def private(area: int, pages: int, size: int = SMALL, noreserve: bool = False) -> MapAnonymous:
    return MapAnonymous("a", area, size, pages, False, noreserve)


TOUCH = Read("a", 1, SMALL, 0)

# quirk -> kernel version, pages in the pool, operations; the last may fail
PROGRAMS: dict[Quirk, tuple[str, int, Program]] = {
    Quirk.DEMOTE_TAKES_RESERVED: ("6.12", 0, (SetCount(LARGE, 3), private(1, 1, LARGE), Demote(LARGE, 3))),
    Quirk.SUBPOOL_RESERVE_MADE_UP: ("6.12", 4, (*on_mount(2, None), private(1, 2), file(2, 3))),
    Quirk.SUBPOOL_USE_LOST_AT_FAULT: (
        "7.2",
        0,
        (*on_mount(None, 2), file(1, 1, noreserve=True), TOUCH),
    ),
    Quirk.SUBPOOL_USE_LOST_AT_MMAP: ("6.18", 0, (*on_mount(None, 2), file(1, 1))),
    Quirk.SUBPOOL_RESERVE_DROPPED: ("7.2", 2, (*on_mount(2, 8), file(1, 5))),
    Quirk.SUBPOOL_RESERVE_NOT_USED: (
        "6.12",
        1,
        (*on_mount(1, None), file(1, 1, shared=False, noreserve=True), TOUCH),
    ),
    Quirk.SUBPOOL_RESERVE_AVOIDED: (
        "6.1",
        3,
        (
            *on_mount(2, None),
            file(1, 1, shared=False),
            Write("a", 1, SMALL, 0, 7),
            Fork("a", "b"),
            Write("a", 1, SMALL, 0, 8),
        ),
    ),
    Quirk.RESERVED_SURPLUS_FREED: (
        "7.2",
        0,
        (
            SetOvercommit(SMALL, 2),
            *on_mount(2, None),
            Allocate("a", "f", SMALL, 0, 1, False),
            Truncate("a", "f", SMALL, 0),
        ),
    ),
    Quirk.UNMAP_RESERVES_PAGE_IN_USE: (
        "6.18",
        2,
        (private(1, 1), Write("a", 1, SMALL, 0, 7), Fork("a", "b"), Exit("a")),
    ),
    Quirk.MOVE_FORGETS_RESERVATION: (
        "7.2",
        2,
        (private(1, 2), Move("a", 1, SMALL, 0, 1, 2), Unmap("a", 1, SMALL, 0, 2)),
    ),
    Quirk.MOVE_LENGTH_TRUNCATED: ("7.2", 0, (private(1, 4, LARGE, noreserve=True), Move("a", 1, LARGE, 0, 4, 2))),
    Quirk.FAILED_MOVE_ENDS_RESERVATION: (
        "7.2",
        0,
        (SetCount(LARGE, 4), private(1, 4, LARGE), Move("a", 1, LARGE, 0, 4, 2)),
    ),
    Quirk.FORK_LOSES_PAGES: (
        "7.2",
        0,
        (SetCount(LARGE, 1), private(1, 1, LARGE), Write("a", 1, LARGE, 0, 7), Fork("a", "b"), Read("b", 1, LARGE, 0)),
    ),
    Quirk.COPY_NEVER_ENDS: (
        "7.2",
        1,
        (
            private(1, 1),
            Write("a", 1, SMALL, 0, 7),
            Fork("a", "b"),
            Move("a", 1, SMALL, 0, 1, 2),
            Write("a", 2, SMALL, 0, 8),
        ),
    ),
}

NONE = (0, 0, 0, 0)
#: outcome of the last operation, counters of 2M and of 1G: on a right kernel, on one with the bug
RESULTS: dict[Quirk, tuple[tuple[Outcome, tuple[int, ...], tuple[int, ...]], ...]] = {
    Quirk.DEMOTE_TAKES_RESERVED: (("ok", (1024, 1024, 0, 0), (1, 1, 1, 0)), ("ok", (1536, 1536, 0, 0), (0, 0, 1, 0))),
    Quirk.SUBPOOL_RESERVE_MADE_UP: (("ENOMEM", (4, 4, 4, 0), NONE), ("ENOMEM", (4, 4, 4, 0), NONE)),
    Quirk.SUBPOOL_USE_LOST_AT_FAULT: (("SIGBUS", NONE, NONE), ("SIGBUS", NONE, NONE)),
    Quirk.SUBPOOL_USE_LOST_AT_MMAP: (("ENOMEM", NONE, NONE), ("ENOMEM", NONE, NONE)),
    Quirk.SUBPOOL_RESERVE_DROPPED: (("ENOMEM", (2, 2, 2, 0), NONE), ("ENOMEM", (2, 2, 0, 0), NONE)),
    Quirk.SUBPOOL_RESERVE_NOT_USED: ((0, (1, 0, 0, 0), NONE), ("SIGBUS", (1, 1, 1, 0), NONE)),
    Quirk.SUBPOOL_RESERVE_AVOIDED: (("ok", (3, 1, 0, 0), NONE), ("ok", (3, 1, 1, 0), NONE)),
    Quirk.RESERVED_SURPLUS_FREED: (("ok", (2, 2, 2, 2), NONE), ("ok", (1, 1, 2, 1), NONE)),
    Quirk.UNMAP_RESERVES_PAGE_IN_USE: (("ok", (2, 1, 0, 0), NONE), ("ok", (2, 1, -1, 0), NONE)),
    Quirk.MOVE_FORGETS_RESERVATION: (("ok", (2, 2, 1, 0), NONE), ("ok", (2, 2, 2, 0), NONE)),
    Quirk.MOVE_LENGTH_TRUNCATED: (("ok", NONE, NONE), ("ENOMEM", NONE, NONE)),
    Quirk.FAILED_MOVE_ENDS_RESERVATION: (
        ("ENOMEM", NONE, (4, 4, 4, 0)),
        ("ENOMEM", NONE, (4, 4, 0, 0)),
    ),
    Quirk.FORK_LOSES_PAGES: ((7, NONE, (1, 0, 0, 0)), ("SIGBUS", NONE, (1, 0, 0, 0))),
    Quirk.COPY_NEVER_ENDS: (("ok", (1, 0, 0, 0), NONE), (NEVER_ENDS, (1, 0, 0, 0), NONE)),
}

#: a bug that shows only after another one
AFTER = {Quirk.FAILED_MOVE_ENDS_RESERVATION: Quirk.MOVE_LENGTH_TRUNCATED}


def played(quirk: Quirk, has_bug: bool) -> tuple[PoolMachine, Outcome]:
    version, pages, program = PROGRAMS[quirk]
    follow = {AFTER[quirk]} if quirk in AFTER else set()
    machine = pool_machine(version, pages, follow=follow | ({quirk} if has_bug else set()))
    machine.kernel.suppose({quirk})
    return machine, run(machine, *program)


@pytest.mark.parametrize("quirk", PROGRAMS)
@pytest.mark.parametrize("has_bug", [False, True])
def test_what_a_kernel_with_the_bug_does(quirk: Quirk, has_bug: bool) -> None:
    machine, outcome = played(quirk, has_bug)
    assert (outcome, counters(machine), counters(machine, LARGE)) == RESULTS[quirk][has_bug]
    assert (quirk in machine.kernel.followed) == has_bug


@pytest.mark.parametrize("quirk", PROGRAMS)
def test_the_version_of_the_program_has_the_bug(quirk: Quirk) -> None:
    version = KernelVersion.parse(PROGRAMS[quirk][0])
    assert POOL_ISSUES[quirk] in pool_issues_of(version)


def test_every_bug_that_the_model_follows_has_a_program() -> None:
    rules = "known_pool_issues.py"
    sources = [source for source in Path(hugetlb_pool.__file__).parent.glob("*.py") if source.name != rules]
    followed = {name for source in sources for name in re.findall(r"Quirk\.([A-Z_]+)", source.read_text())}
    assert {quirk.name for quirk in PROGRAMS} == followed
    assert set(PROGRAMS) == set(RESULTS)


def used(machine: PoolMachine) -> tuple[int, int]:
    subpool = machine.mounts["m"].subpool
    assert subpool is not None
    return subpool.used, subpool.reserved


@pytest.mark.parametrize(
    ("quirk", "right", "wrong"),
    [
        (Quirk.SUBPOOL_RESERVE_MADE_UP, (0, 2), (0, 2)),
        (Quirk.SUBPOOL_USE_LOST_AT_FAULT, (0, 0), (1, 0)),
        (Quirk.SUBPOOL_USE_LOST_AT_MMAP, (0, 0), (1, 0)),
        (Quirk.SUBPOOL_RESERVE_DROPPED, (0, 2), (0, 0)),
    ],
)
def test_what_is_left_of_the_quota(quirk: Quirk, right: tuple[int, int], wrong: tuple[int, int]) -> None:
    assert used(played(quirk, has_bug=False)[0]) == right
    assert used(played(quirk, has_bug=True)[0]) == wrong


def test_a_made_up_reserve_is_used_twice() -> None:
    """What the mount believes to have reserved is not there: a touch then counts it down in the pool."""
    program = (*on_mount(2, None), file(1, 2), private(2, 2), file(3, 3), Truncate("a", "f", SMALL, 0))
    for follow, reserved in ((set(), (4, 4, 4, 0)), ({Quirk.SUBPOOL_RESERVE_MADE_UP}, (4, 4, 3, 0))):
        machine = pool_machine("6.12", 4, follow=follow)
        for operation in program:
            run(machine, operation)
        assert counters(machine) == reserved


def test_a_dropped_reserve_is_given_back_twice() -> None:
    machine, _ = played(Quirk.SUBPOOL_RESERVE_DROPPED, has_bug=True)
    run(machine, Close("a", "f"), Unmount("m"))
    assert machine.pools[SMALL].counters()["resv_hugepages"] == 2**64 - 2


def test_a_failed_demotion_tells_so() -> None:
    machine = pool_machine("6.12", follow={Quirk.DEMOTE_TAKES_RESERVED})
    run(machine, SetCount(LARGE, 2), private(1, 1, LARGE))
    assert run(machine, Demote(LARGE, 3)) == "EBUSY"
    assert counters(machine, LARGE) == (0, 0, 1, 0)
    # a free page less a reserved one is unsigned
    assert run(machine, Demote(LARGE, 1)) == "EBUSY"


@pytest.mark.parametrize("version", ["6.1", "6.12"])
def test_where_less_than_nothing_is_reserved_no_page_can_be_demoted(version: str) -> None:
    machine = pool_machine(version, follow={Quirk.DEMOTE_TAKES_RESERVED} if version == "6.12" else ())
    run(machine, SetCount(LARGE, 1), private(1, 1, LARGE), Write("a", 1, LARGE, 0, 5))
    machine.pools[LARGE].resv = -1
    assert run(machine, Demote(LARGE, 1)) == "EBUSY"
    assert counters(machine, LARGE) == (1, 0, -1, 0)


def test_a_mount_with_a_reserve_asks_the_pool_for_nothing_however_short_that_is() -> None:
    machine = pool_machine("6.12", follow={Quirk.DEMOTE_TAKES_RESERVED})
    mounted = MountPool("m", LARGE, LARGE, None), CreateFile("a", "f", "m")
    run(machine, SetCount(LARGE, 3), private(1, 1, LARGE), *mounted, Demote(LARGE, 2))
    assert counters(machine, LARGE) == (1, 1, 2, 0)
    assert run(machine, MapFile("a", 2, LARGE, "f", 0, 1, False, False)) == "ok"
    assert run(machine, MapFile("a", 3, LARGE, "f", 0, 1, False, False)) == "ENOMEM"


def test_a_pool_with_reservations_below_zero_shrinks_as_unsigned_numbers_do() -> None:
    machine, _ = played(Quirk.UNMAP_RESERVES_PAGE_IN_USE, has_bug=True)
    machine.pools[SMALL].free = machine.pools[SMALL].nr
    run(machine, SetCount(SMALL, 0))
    # 2**64 - 1 pages seem to be needed: none is removed, all become surplus
    assert counters(machine) == (2, 2, -1, 2)


def test_below_zero_reservations_hide_pages_that_are_missing() -> None:
    machine, _ = played(Quirk.UNMAP_RESERVES_PAGE_IN_USE, has_bug=True)
    # one page is free, and -1 are reserved
    assert run(machine, MapAnonymous("b", 3, SMALL, 2, False, False)) == "ENOMEM"
    assert counters(machine) == (2, 1, -1, 0)


def test_what_may_show_is_open_until_it_is_supposed() -> None:
    version, pages, program = PROGRAMS[Quirk.FORK_LOSES_PAGES]
    machine = pool_machine(version, pages, follow={Quirk.FORK_LOSES_PAGES})
    assert run(machine, *program) == 7
    assert machine.kernel.open == {Quirk.FORK_LOSES_PAGES}
    assert not machine.kernel.followed


def test_a_mended_kernel_does_right() -> None:
    machine = pool_machine("6.12", follow={Quirk.DEMOTE_TAKES_RESERVED})
    machine.kernel.mend(Quirk.DEMOTE_TAKES_RESERVED)
    run(machine, SetCount(LARGE, 2), private(1, 1, LARGE), Demote(LARGE, 2))
    assert counters(machine, LARGE) == (1, 1, 1, 0)


@pytest.mark.parametrize(
    ("quirk", "having", "lacking"),
    [
        (Quirk.FORK_LOSES_PAGES, "6.12.74 6.18 7.2.13 7.3.4", "6.1.192 6.6.200 6.12.73 6.17.9"),
        (Quirk.SMAPS_SHOWS_SHARED, "6.12.74 6.18.8 6.19 7.3.4", "6.1.192 6.12.73 6.17.9 6.18.7"),
        (Quirk.SMAPS_SHOWS_BROKEN, "6.1.91 6.6.29 6.8.8 6.9 7.3.4", "5.15 6.1.90 6.6.28 6.7.9 6.8.7"),
        (Quirk.SUBPOOL_USE_LOST_AT_FAULT, "6.14.8 6.15 7.3.4", "6.12.117 6.14.7"),
        (Quirk.SUBPOOL_USE_LOST_AT_MMAP, "6.14.8 6.15 6.18.15 6.19.5", "6.14.7 6.18.16 6.19.6 7.0"),
        (Quirk.SUBPOOL_RESERVE_MADE_UP, "6.1.192 6.12.117 6.14.7", "6.14.8 6.15"),
        (Quirk.SUBPOOL_RESERVE_AVOIDED, "6.1.190 6.6.1 6.12.13 6.13.2", "6.1.191 6.12.14 6.13.3 6.14"),
        (Quirk.SUBPOOL_RESERVE_DROPPED, "6.14.8 6.18.44 7.2.13 7.3.3", "6.12.117 7.3.4 7.4"),
        (Quirk.FAILED_MOVE_ENDS_RESERVATION, "6.15 6.18.44 7.3.3", "6.12.117 7.3.4 7.4"),
        (Quirk.UNMAP_RESERVES_PAGE_IN_USE, "6.9 6.12.109 6.18.49 7.2.3", "6.1.192 6.12.110 6.18.50 7.2.4 7.3"),
        (Quirk.REMOVED_GROUP_OFF_NODES, "5.17 6.12.116 6.18.44 7.3.3", "5.16 6.12.117 7.3.4 7.4"),
        (Quirk.MOVED_PAGE_OFF_NODES, "5.17 6.1.192 6.12.116 7.3.3", "5.16 6.12.117 7.3.4 7.4"),
        (Quirk.BUFFER_TAKES_RESERVED, "6.12 6.12.117 6.16.3", "6.1.192 6.17 6.18.44 7.3.4"),
        (Quirk.ATTACHMENT_RESERVES, "4.19 5.10.212 6.1.78 6.7.9", "5.10.213 6.1.79 6.8 6.12.107"),
        (Quirk.COPY_NEVER_ENDS, "5.16 6.1.192 6.12.117 7.2.13 7.3.3", "5.15 7.3.4 7.4"),
        (Quirk.MOVE_MISPLACES_PAGES, "6.0 6.1.190 6.12.111 6.18.44 7.2.8", "5.19 6.1.191 6.12.112 7.2.9 7.3"),
        (Quirk.MOVED_PAGE_UNCOUNTED, "6.13 6.18.44 7.2.13 7.3.3", "6.12.117 7.3.4 7.4"),
        (Quirk.SEGMENT_RSS_MULTIPLIED, "6.7 6.12.116 7.2.12 7.3.3", "6.6.200 6.12.117 7.3.4 7.4"),
    ],
)
def test_branches_get_bugs_and_fixes_with_backports(quirk: Quirk, having: str, lacking: str) -> None:
    for versions, has_it in ((having, True), (lacking, False)):
        for version in versions.split():
            assert ALL_ISSUES[quirk].applies_to(KernelVersion.parse(version)) == has_it, version


def test_a_bug_of_one_architecture_is_none_of_others() -> None:
    issue = ALL_ISSUES[Quirk.BROKEN_PAGE_LOST_AT_FORK]
    found = {of: issue.applies_to(KernelVersion(6, 1), of) for of in ("aarch64", "x86_64", "")}
    assert found == {"aarch64": True, "x86_64": False, "": False}
    assert not issue.applies_to(KernelVersion(6, 6), "aarch64")


def test_a_move_that_fails_loses_what_lies_beyond_the_truncated_length() -> None:
    machine = pool_machine("7.3.4", follow={Quirk.MOVE_LENGTH_TRUNCATED})
    run(machine, SetCount(LARGE, 5), private(1, 5, LARGE), Write("a", 1, LARGE, 0, 7), Write("a", 1, LARGE, 4, 8))
    assert run(machine, Move("a", 1, LARGE, 0, 5, 2)) == "ENOMEM"
    assert counters(machine, LARGE) == (5, 4, 3, 0)
    assert [run(machine, Read("a", 1, LARGE, page)) for page in (0, 4)] == [7, 0]


@pytest.mark.parametrize(
    ("first", "touched", "may_fail"),
    # area 1 lies at 72 GiB, and what is left of the table of 512 GiB counts as moved
    [(0, None, True), (1, None, False), (4, None, True), (0, 0, False), (0, 3, False)],
)
def test_a_missing_page_table_may_truncate_the_length(first: int, touched: int | None, may_fail: bool) -> None:
    machine = pool_machine("7.2", follow={Quirk.MOVE_LENGTH_TRUNCATED})
    run(machine, SetCount(LARGE, 1), private(1, 8, LARGE, noreserve=True))
    if touched is not None:
        run(machine, Write("a", 1, LARGE, touched, 7))
    machine.kernel.suppose({Quirk.MOVE_LENGTH_TRUNCATED})
    assert run(machine, Move("a", 1, LARGE, first, 1, 2)) == ("ENOMEM" if may_fail else "ok")
