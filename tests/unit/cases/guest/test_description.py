"""What can be no guest is refused in one line that names it."""

from collections.abc import Callable

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.guest.guest_description import (
    Allocation,
    Cell,
    DeviceKind,
    GuestDescription,
    MemoryDevice,
)
from hugepage_qa.sizes import GIB, MIB

CELL = Cell(GIB, 2 * MIB)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Cell(GIB, 0), "page size 0"),
        (lambda: Cell(GIB, -2), "page size -2"),
        (lambda: Cell(GIB, 3 * MIB), "page size 3145728"),
        (lambda: Cell(GIB, 512), "page size 512"),
        (lambda: Cell(0, 2 * MIB), "memory of 0 bytes"),
        (lambda: Cell(-GIB, None), "memory of -1073741824 bytes"),
        (lambda: Cell(GIB, None, -1), "node -1"),
        (lambda: MemoryDevice("dimm 0", DeviceKind.DIMM, GIB, None), "'dimm 0'"),
        (lambda: MemoryDevice("d", DeviceKind.VIRTIO_MEM, GIB, None, requested=GIB + 1), "requested 1073741825"),
        (lambda: GuestDescription("guest", ()), "guest guest: expected memory"),
        (lambda: GuestDescription("../guest", (CELL,)), "'../guest'"),
        (lambda: GuestDescription("a,b=c", (CELL,)), "'a,b=c'"),
        (lambda: GuestDescription("guest", (CELL,), threads=0), "threads"),
        (lambda: GuestDescription("guest", (CELL,), allocation=Allocation.ON_DEMAND, threads=2), "threads"),
        (lambda: GuestDescription("guest", (CELL,), reports_free_pages=True), "through a balloon"),
        (lambda: GuestDescription("guest", (CELL,), max_memory=GIB - 1), "max_memory 1073741823"),
        (
            lambda: GuestDescription("guest", (CELL,), devices=(MemoryDevice("d", DeviceKind.DIMM, GIB, None),)),
            "need a max_memory",
        ),
    ],
)
def test_what_can_be_no_guest(make: Callable[[], object], named: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_memory_and_topology() -> None:
    assert GuestDescription("guest", (CELL, CELL)).memory == 2 * GIB
    assert not GuestDescription("guest", (CELL,)).has_topology
    assert GuestDescription("guest", (CELL, CELL)).has_topology
    assert GuestDescription("guest", (Cell(GIB, GIB, 0),)).has_topology
    assert GuestDescription("guest", (CELL,), max_memory=2 * GIB).has_topology
