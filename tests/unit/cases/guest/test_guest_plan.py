"""What guests need of the pools, of published and of made-up machines."""

from typing import Any

import pytest
from click.testing import CliRunner

from hugepage_qa.cases.guest.page_plan import (
    kvm_refuses,
    ordinary_memory,
    plan_for_machine,
    plan_for_pool,
)
from hugepage_qa.commands.guest_plan import guest as command
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.qemu.guest.foreign_domain import WantedGuest
from hugepage_qa.qemu.guest.guest_description import (
    Cell,
    DeviceKind,
    GuestDescription,
    MemoryDevice,
    Pool,
    pages_needed,
)
from hugepage_qa.sizes import GIB, MIB


def described(*cells: Cell, **options: Any) -> GuestDescription:
    return GuestDescription("guest", cells, **options)


def guest(*cells: Cell, name: str = "guest", in_files: bool = False) -> WantedGuest:
    return WantedGuest(name, cells, in_files)


def machine(free: dict[int, dict[int, int]], reserved: int = 0, hpage: str | None = None) -> CapturedTree:
    """Return a machine with 16 GiB; ``free`` is node -> page size -> free pages, ``reserved`` are promised of each.

    ``hpage`` is the parameter of its KVM.
    """
    tree = {"proc/meminfo": "MemTotal: 16777216 kB\nHugepagesize: 2048 kB\n", "sys/devices/system/node/online": "0"}
    sizes = {size for pools in free.values() for size in pools}
    whole = {size: sum(pools.get(size, 0) for pools in free.values()) for size in sizes}
    for node, pools in free.items():
        for size, pages in pools.items():
            tree |= pool(f"sys/devices/system/node/node{node}/hugepages", size, pages)
    for size, pages in whole.items():
        tree |= pool("sys/kernel/mm/hugepages", size, pages)
        tree[f"sys/kernel/mm/hugepages/hugepages-{size // 1024}kB/resv_hugepages"] = f"{reserved}\n"
    return CapturedTree(tree if hpage is None else tree | {"sys/module/kvm/parameters/hpage": hpage})


def pool(directory: str, size: int, pages: int) -> dict[str, str]:
    values = {"nr_hugepages": pages, "free_hugepages": pages, "surplus_hugepages": 0}
    return {f"{directory}/hugepages-{size // 1024}kB/{name}": f"{value}\n" for name, value in values.items()}


def test_ibms_guest_of_64_gib_leaves_4464_of_70000_pages() -> None:
    """IBM, Improving Transactional Database Workloads in KVM Guests on IBM zSystems using Huge Pages, 4.1."""
    plan = plan_for_pool([guest(Cell(64 * GIB, MIB))], 70000)
    assert [(one.needed, one.left, one.missing) for one in plan.pools] == [(65536, 4464, 0)]
    assert plan.is_met


def test_ibms_page_tables() -> None:
    """The same, 5.2.1: about 260 MiB of page tables on 4 KiB pages, 7 MiB on huge pages, those of others included."""
    with_small = ordinary_memory(guest(Cell(64 * GIB, 4096)))
    with_huge = ordinary_memory(guest(Cell(64 * GIB, MIB)))
    assert 240 * MIB < with_small - with_huge < 270 * MIB


@pytest.mark.parametrize(("pages", "missing"), [(65535, 1), (0, 65536), (65536, 0)])
def test_a_pool_that_is_short_by_one_page_is_short(pages: int, missing: int) -> None:
    plan = plan_for_pool([guest(Cell(64 * GIB, MIB))], pages)
    assert plan.pools[0].missing == missing
    assert plan.is_met == (missing == 0)


def test_a_page_that_is_begun_is_taken_whole() -> None:
    assert pages_needed(described(Cell(GIB + 1, GIB))) == {Pool(GIB): 2}
    # each cell has memory of its own
    assert pages_needed(described(Cell(3 * MIB, 2 * MIB), Cell(3 * MIB, 2 * MIB))) == {Pool(2 * MIB): 4}


def test_cells_take_from_the_pools_of_their_nodes_and_sizes() -> None:
    guest = described(Cell(GIB, GIB, 0), Cell(GIB, 2 * MIB, 1), Cell(GIB, 2 * MIB, 1), Cell(GIB, None))
    assert pages_needed(guest) == {Pool(GIB, 0): 1, Pool(2 * MIB, 1): 1024}


def test_devices_take_pages_when_they_are_plugged_in() -> None:
    dimm = MemoryDevice("dimm0", DeviceKind.DIMM, GIB, 2 * MIB)
    guest = described(Cell(GIB, 2 * MIB, 1), max_memory=2 * GIB, devices=(dimm,))
    assert pages_needed(guest) == {Pool(2 * MIB, 1): 1024}


def test_guests_add_up() -> None:
    assert plan_for_pool([guest(Cell(GIB, 2 * MIB))] * 3, 0).pools[0].missing == 1536


def test_reserved_pages_are_not_available() -> None:
    plan = plan_for_machine([guest(Cell(GIB, 2 * MIB))], machine({0: {2 * MIB: 600}}, reserved=100))
    assert (plan.pools[0].available, plan.pools[0].missing) == (500, 12)


def test_a_node_that_is_short_is_named_although_another_has_plenty() -> None:
    tree = machine({0: {2 * MIB: 500}, 1: {2 * MIB: 5000}})
    plan = plan_for_machine([guest(Cell(GIB, 2 * MIB, 0), Cell(GIB, 2 * MIB, 1))], tree)
    assert [(one.pool.node, one.missing) for one in plan.pools] == [(0, 12), (1, 0)]
    assert plan.pools[0].file == "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
    assert not plan.is_met


@pytest.mark.parametrize(
    ("cell", "named"),
    [
        (Cell(GIB, MIB), "page size 1M: this machine has none of it, expected one of 2M"),
        (Cell(GIB, 2 * MIB, 7), "node 7: this machine has no such NUMA node, expected one of 0"),
        (Cell(17 * GIB, 2 * MIB), "8704 huge pages are 17408 MiB: this machine has 16384 MiB"),
    ],
)
def test_what_the_machine_can_never_have(cell: Cell, named: str) -> None:
    with pytest.raises(InputError, match=named):
        plan_for_machine([guest(cell)], machine({0: {2 * MIB: 1}}))


@pytest.mark.parametrize(("value", "refuses"), [("0\n", True), ("N\n", True), ("1\n", False), ("Y\n", False)])
def test_kvm_of_s390x_without_hpage(value: str, refuses: bool) -> None:
    tree = machine({0: {MIB: 70000}}, hpage=value)
    assert kvm_refuses(tree) is refuses
    if refuses:
        with pytest.raises(InputError, match=r"boot with kvm\.hpage=1"):
            plan_for_machine([guest(Cell(GIB, MIB))], tree)
    else:
        assert plan_for_machine([guest(Cell(GIB, MIB))], tree).is_met


def test_kvm_of_other_architectures_has_no_such_parameter() -> None:
    assert not kvm_refuses(machine({0: {2 * MIB: 1}}))


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(command, ["plan", *arguments])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def test_the_command_says_what_stays_free() -> None:
    code, output = run("--memory", "64G", "--page", "1M", "--pool", "70000")
    assert code == 0
    assert "65536 pages of 1M are needed, 70000 are available\n  4464 stay free" in output


def test_the_command_says_what_to_reserve() -> None:
    code, output = run("--memory", "64G@0,1G@1", "--page", "1M", "--pool", "65535")
    assert code == 1
    assert "echo 65536 >/sys/devices/system/node/node0/hugepages/hugepages-1024kB/nr_hugepages" in output
    assert "1024 pages of 1M on node 1 are needed" in output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--memory", "64Q", "--page", "1M"],
        ["--memory", "1G", "--page", "0"],
        ["--memory", "1G", "--page", "3M"],
        ["--memory", "1G@x", "--page", "2M"],
        ["--memory", "1G@", "--page", "2M"],
        ["--memory", "0", "--page", "2M"],
        ["--memory", "", "--page", "2M"],
        ["--memory", "1G", "--page", "2M", "--guests", "0"],
    ],
)
def test_wrong_input_of_the_command(arguments: list[str]) -> None:
    with pytest.raises(InputError):
        run(*arguments)
