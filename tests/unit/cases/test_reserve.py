"""A pool that does not grow is a failure where memory has the blocks for it, or can be put together, and only there."""

import errno
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.cases.still_machine import StillMachine, judge_on

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.result import Verdict
from hugepage_qa.machine.host import CannotRun, Host
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.sizes import GIB, MIB


@pytest.mark.parametrize(
    ("blocks", "available", "movable", "verdict", "reason"),
    [
        (100, 4 << 20, False, Verdict.FAIL, "reserves-what-memory-allows"),
        (9, 4 << 20, False, Verdict.SKIP, "memory is fragmented"),
        (0, 4 << 20, True, Verdict.FAIL, "reserves-what-memory-allows"),
        (100, 64 << 10, False, Verdict.SKIP, "memory is short"),
    ],
)
def test_a_pool_that_does_not_grow(blocks: int, available: int, movable: bool, verdict: Verdict, reason: str) -> None:
    def read(path: str) -> str | None:
        text: str | None = StillMachine().perform("read", [path])
        if path == "proc/buddyinfo":
            return f"Node 0, zone   Normal 50000 0 0 0 0 0 0 0 0 {blocks} 0\n"
        if path == "proc/meminfo":
            lines = (line for line in (text or "").splitlines(keepends=True) if "MemAvailable" not in line)
            return f"{''.join(lines)}MemAvailable: {available} kB\n"
        return text

    def act(live: Live) -> None:
        live.reserve(2, movable=movable)

    judgement = judge_on(StillMachine({"read": read}), act)
    assert judgement.verdict is verdict, judgement.reason
    assert reason in judgement.reason


_RULE = Rule("a-rule", "what is judged here", "nowhere")


def _fragmented(path: str) -> str | None:
    text: str | None = StillMachine().perform("read", [path])
    return "Node 0, zone   Normal 50000 0 0 0 0 0 0 0 0 0 0\n" if path == "proc/buddyinfo" else text


_WITHOUT_RANGES: dict[str, Callable[..., Any]] = {
    "read": _fragmented,
    "start_actor": lambda: (0, 1),
    "request": lambda _number, _text: ("errno 2", None),
}


@pytest.mark.parametrize(("refuses_all", "verdict"), [(True, Verdict.SKIP), (False, Verdict.FAIL)])
def test_a_size_that_has_no_run_time(refuses_all: bool, verdict: Verdict) -> None:
    def write(path: str, text: str) -> None:
        if path.endswith("1048576kB/nr_hugepages") and (refuses_all or text != StillMachine().perform("read", [path])):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    found = judge_on(StillMachine({"write": write}), lambda live: live.reserve(1), GIB)
    assert found.verdict is verdict, found.reason


def test_pages_that_a_cpuset_keeps_from_the_suite() -> None:
    def read(path: str) -> str | None:
        text: str | None = StillMachine().perform("read", [path])
        if path == "proc/self/status":
            return f"{_STATUS}Mems_allowed_list:\t1-3\n"
        return "1\n" if path == "sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages" else text

    for has_others in (False, True):
        machine = StillMachine({"read": read})
        machine.kind = replace(machine.kind, has_others=has_others)
        with ExitStack() as stack:
            live = Live(Host(machine), 2 * MIB, _RULE, stack)
            assert (0 in live.nodes) is not has_others
            if has_others:
                with pytest.raises(CannotRun, match="by its cpuset"):
                    live.put_aside()


_STATUS = "Name:\tme\nState:\tR (running)\nTgid:\t1\nPid:\t1\nPPid:\t1\nUid:\t0\t0\t0\t0\nThreads:\t1\n"


@pytest.mark.parametrize(("has_others", "verdict"), [(True, Verdict.SKIP), (False, Verdict.FAIL)])
def test_what_others_take_meanwhile_is_no_failure_to_grow_again(has_others: bool, verdict: Verdict) -> None:
    def act(live: Live) -> None:
        live.set_nr(2)
        live.expect_pool(nr=2, free=2)

    machine = StillMachine(_WITHOUT_RANGES)
    machine.kind = replace(machine.kind, has_others=has_others)
    assert judge_on(machine, act, GIB).verdict is verdict


@pytest.mark.parametrize(
    ("size", "pages", "seconds", "rounds"),
    [
        (GIB, (2, 2), 30.0, 2),
        (GIB, (2, 3), 30.0, 2),
        # there may be room for fewer, or by now
        (GIB, (2, 1), 30.0, 4),
        (GIB, (2, 2), 90.0, 4),
        # of a block that may come at any time
        (2 * MIB, (2, 2), 30.0, 4),
    ],
)
def test_room_for_gigantic_pages_is_not_made_again_where_there_was_none(
    size: int, pages: tuple[int, int], seconds: float, rounds: int
) -> None:
    now = 0.0
    written: list[str] = []

    machine = StillMachine({**_WITHOUT_RANGES, "write": lambda path, _text: written.append(path), "clock": lambda: now})
    host = Host(machine)
    for asked in pages:
        with ExitStack() as stack, pytest.raises(CannotRun):
            Live(host, size, _RULE, stack).reserve(asked)
        now += seconds
    assert written.count("proc/sys/vm/compact_memory") == rounds
