"""A range of memory is free for a gigantic page when each base page of it is in a free block."""

import errno
import struct
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest
from tests.unit.cases.kinds import X86_64
from tests.unit.cases.still_machine import StillMachine

from hugepage_qa.cases.free_ranges import BUDDY, has_free_range
from hugepage_qa.kernel.uapi import find_uapi
from hugepage_qa.machine.host import Host
from hugepage_qa.process.actor import Actor
from hugepage_qa.sizes import MIB

_SIZE = 16 * MIB
#: two whole ranges of so many frames, and a part before and behind them
_RANGE, _FIRST, _SPANNED = 4096, 1000, 12000
_ZONE = """\
Node 1, zone {name:>8}
  pages free     9000
        spanned  12000
        present  12000
        managed  12000
        cma      {cma}
  pagesets
  start_pfn:           1000
"""


class _Flags:
    """Opens a file, and reads flags of frames, of which all but those that are ``used`` are free."""

    pid = 100

    def __init__(self, used: Collection[int], *, refuses: bool) -> None:
        self._used, self._refuses = used, refuses

    def request(self, text: str) -> tuple[str, None]:
        _call, name, *words = text.split()
        if self._refuses:
            return f"errno {errno.ENOENT}", None
        if name == "openat":
            return "ok 3", None
        assert name == "pread64"
        size, offset = int(words[2]), int(words[3])
        frames = range(offset // 8, (offset + size) // 8)
        flags = struct.pack(f"<{len(frames)}Q", *(0 if frame in self._used else BUDDY for frame in frames))
        return f"ok {size} {flags.hex()}", None

    def exit(self) -> None:
        """Nothing is to be ended."""

    def end(self) -> None:
        """Nothing is to be ended."""


class _Machine(Host):
    """Has one zone."""

    def __init__(
        self,
        used: Collection[int],
        name: str = "Normal",
        *,
        cma: int = 0,
        refuses: bool = False,
        others: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        zone = _ZONE.format(name=name, cma=cma)
        super().__init__(StillMachine(others or {"read": lambda path: zone if path == "proc/zoneinfo" else None}))
        self._flags = _Flags(used, refuses=refuses)

    def start_actor(self) -> Actor:
        return Actor(self._flags, find_uapi(X86_64.architecture))


@pytest.mark.parametrize(
    ("used", "is_free"),
    [
        ((), True),
        ((_RANGE, 2 * _RANGE), False),
        ((2 * _RANGE - 1, 3 * _RANGE - 1), False),
        ((_RANGE,), True),
        # in no whole range
        ((_FIRST, _RANGE - 1, 3 * _RANGE), True),
    ],
)
def test_each_base_page_of_a_range_is_looked_at(used: Collection[int], is_free: bool) -> None:
    assert has_free_range(_Machine(used), _SIZE, None) is is_free
    assert has_free_range(_Machine(used), _SIZE, 1) is is_free
    assert not has_free_range(_Machine(used), _SIZE, 0)


@pytest.mark.parametrize(
    "machine",
    [_Machine((), "Movable"), _Machine((), cma=4096), _Machine((), refuses=True)],
    ids=["what can be moved", "an area of CMA", "no such file"],
)
def test_where_no_gigantic_page_comes_from(machine: Host) -> None:
    assert not has_free_range(machine, _SIZE, None)


def test_what_two_zones_may_have_is_nobodys() -> None:
    machine = _Machine(())
    one = machine.read("proc/zoneinfo") or ""
    # of the two whole ranges the first one is in the span of another node, too, and the second one is used
    other = one.replace("Node 1", "Node 0").replace("12000", "7000")
    read = {"read": lambda path: one + other if path == "proc/zoneinfo" else None}
    both = _Machine((2 * _RANGE,), others=read)
    assert has_free_range(_Machine((2 * _RANGE,)), _SIZE, 1)
    assert not has_free_range(both, _SIZE, 1)
    assert has_free_range(_Machine((), others=read), _SIZE, 1)


def test_a_zone_without_a_whole_range_has_none() -> None:
    assert not has_free_range(_Machine(()), 64 * MIB, None)
