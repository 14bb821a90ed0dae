"""What guests need of the pools, of published and of made-up machines."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hugepage_qa.cases.guest.page_commands import advice
from hugepage_qa.cases.guest.page_plan import (
    kvm_refuses,
    ordinary_memory,
    plan_for_machine,
    plan_for_pool,
)
from hugepage_qa.commands.guest_plan import guest as command
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.qemu.guest import foreign_domain
from hugepage_qa.qemu.guest.foreign_domain import WantedGuest
from hugepage_qa.qemu.guest.guest_description import (
    Cell,
    DeviceKind,
    GuestDescription,
    MemoryDevice,
    Pool,
    pages_needed,
)
from hugepage_qa.qemu.guest.guest_site import NotHere
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
        ["--memory", "1G", "--page", "2M", "--guests", "1000000000"],
    ],
)
def test_wrong_input_of_the_command(arguments: list[str]) -> None:
    with pytest.raises(InputError):
        run(*arguments)


def test_guests_start_in_their_order_and_a_smaller_one_may_fit_behind_one_that_does_not() -> None:
    guests = [guest(Cell(size * GIB, MIB), name=name) for name, size in (("db1", 64), ("db2", 64), ("web", 1))]
    plan = plan_for_pool(guests, 70000)
    assert plan.refusals == ("db2 cannot start: it needs 65536 pages of 1M, 4464 are free by then",)
    assert (plan.pools[0].missing, plan.pools[0].wanted) == (2 * 65536 + 1024 - 70000, 2 * 65536 + 1024)
    assert not plan.is_met


def test_cells_that_are_bound_and_others_share_the_pages() -> None:
    tree = machine({0: {2 * MIB: 100}, 1: {2 * MIB: 100}})
    both = guest(Cell(120 * 2 * MIB, 2 * MIB), Cell(90 * 2 * MIB, 2 * MIB, 1))
    plan = plan_for_machine([both], tree)
    found = {one.pool.node: (one.needed, one.available, one.missing, one.wanted) for one in plan.pools}
    assert found == {None: (120, 110, 10, 210), 1: (90, 100, 0, 100)}
    assert plan.refusals == ("guest cannot start: it needs 210 pages of 2M, 200 are free by then",)
    node = plan_for_machine([guest(Cell(101 * 2 * MIB, 2 * MIB, 1))], tree)
    assert node.refusals == ("guest cannot start: it needs 101 pages of 2M on node 1, 100 are free by then",)


def test_memory_that_is_no_multiple_of_a_page_and_a_guest_without_huge_pages_are_told() -> None:
    plan = plan_for_pool([guest(Cell(GIB + 512 * MIB, GIB)), guest(Cell(GIB, None), name="plain")], 2)
    assert plan.is_met
    assert plan.remarks == (
        "guest: 1536 MiB are no multiple of 1G: QEMU refuses that from 8.2 on, and takes 2 whole pages before",
        "plain takes no huge pages",
    )
    assert plan.ordinary_memory > GIB


def test_pages_in_files_need_a_hugetlbfs_of_their_size() -> None:
    files = {
        **machine({0: {2 * MIB: 600}}).files,
        "proc/self/mounts": "none /dev/hugepages hugetlbfs rw,pagesize=1024M 0 0\n",
    }
    wanted = guest(Cell(GIB, 2 * MIB), in_files=True)
    plan = plan_for_machine([wanted], CapturedTree(files))
    assert plan.refusals == ("guest cannot start: no hugetlbfs is mounted for pages of 2M",)
    assert [line for line in advice(plan, 2 * MIB) if "mount -t" in line] == [
        "  mkdir -p /dev/hugepages-2048kB && mount -t hugetlbfs -o pagesize=2M hugetlbfs /dev/hugepages-2048kB"
    ]
    files["proc/self/mounts"] = "none /dev/hugepages hugetlbfs rw,pagesize=2M 0 0\n"
    assert plan_for_machine([wanted], CapturedTree(files)).is_met
    files["proc/self/mounts"] = ""
    assert plan_for_machine([guest(Cell(GIB, 2 * MIB))], CapturedTree(files)).is_met


def test_what_to_type() -> None:
    tree = machine({0: {2 * MIB: 500, GIB: 0}, 1: {2 * MIB: 5000, GIB: 1}}, reserved=0)
    guests = [guest(Cell(GIB, 2 * MIB, 0), name="a"), guest(Cell(GIB, GIB, 0), Cell(2 * GIB, GIB, 1), name="b")]
    lines = list(advice(plan_for_machine(guests, tree), 2 * MIB))
    assert [line for line in lines if line.startswith("  ")] == [
        "  echo 1 >/sys/devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages",
        "  echo 2 >/sys/devices/system/node/node1/hugepages/hugepages-1048576kB/nr_hugepages",
        "  echo 512 >/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages",
        "  virsh allocpages 1G 1 --cellno 0",
        "  virsh allocpages 1G 2 --cellno 1",
        "  virsh allocpages 2M 512 --cellno 0",
        "  hugepagesz=1G hugepages=0:1,1:2",
        "  hugepagesz=2M hugepages=0:512",
        "  grep Huge /proc/meminfo",
    ]
    assert any("reserve them at boot" in line for line in lines)
    assert not list(advice(plan_for_machine([guest(Cell(GIB, 2 * MIB, 1))], tree), 2 * MIB))


def xml(directory: Path, name: str, gib: int = 64, more: str = "") -> str:
    file = directory / f"{name}.xml"
    backing = "<memoryBacking><hugepages/></memoryBacking>"
    file.write_text(f"<domain><name>{name}</name><memory unit='G'>{gib}</memory>{backing}{more}</domain>")
    return str(file)


def test_several_domains_in_files(tmp_path: Path) -> None:
    files = ["--xml", xml(tmp_path, "db1"), "--xml", xml(tmp_path, "db2", 2)]
    code, output = run(*files, "--page", "1M", "--pool", "70000")
    assert code == 0
    assert output.startswith("db1: 65536 pages of 1M\ndb2: 2048 pages of 1M\n67584 pages of 1M are needed, 70000 ")
    assert "2416 stay free" in output
    code, output = run(*files, "--page", "1M", "--pool", "67583")
    assert code == 1
    assert "db2 cannot start: it needs 2048 pages of 1M, 2047 are free by then" in output
    assert "unable to map backing store for guest RAM: Cannot allocate memory" in output
    assert "  vm.nr_hugepages = 67584\n" in output


def test_a_host_of_which_nothing_is_known(tmp_path: Path) -> None:
    code, output = run("--xml", xml(tmp_path, "db1"), "--page", "1M", "--elsewhere")
    assert code == 0
    assert "65536 pages of 1M are needed\n" in output
    assert "available" not in output
    assert "  virsh allocpages 1M 65536\n" in output
    assert "kvm.hpage=1" in output
    with pytest.raises(InputError, match="expected --page, here the default size of the host is not known"):
        run("--xml", xml(tmp_path, "db1"), "--elsewhere")


def test_the_default_size_of_this_machine_is_that_of_pages_without_one(tmp_path: Path) -> None:
    for path, text in machine({0: {2 * MIB: 600}}).files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    code, output = run("--xml", xml(tmp_path, "db1", 1), "--root", str(tmp_path))
    assert (code, "512 pages of 2M are needed, 600 are available\n  88 stay free" in output) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no guest: expected --memory, --xml or --domain"),
        (["--xml", "/no/such"], "--xml /no/such: No such file or directory"),
        (["--xml", "/"], "--xml /: Is a directory"),
        (["--xml", "/etc/passwd"], "--xml /etc/passwd: not XML"),
        (["--memory", "1G", "--elsewhere"], "expected --page"),
        (
            ["--memory", "1G", "--page", "2M", "--pool", "1", "--elsewhere"],
            "--pool and --elsewhere: expected one of them",
        ),
    ],
)
def test_wrong_guests(arguments: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        run(*arguments)


def test_two_guests_of_one_name(tmp_path: Path) -> None:
    file = xml(tmp_path, "db1")
    with pytest.raises(InputError, match="two guests are called db1"):
        run("--xml", file, "--xml", file, "--page", "2M", "--elsewhere")


class Libvirt:
    """A libvirt with the domains db1, which is off, and db2, which runs."""

    VIR_DOMAIN_XML_INACTIVE = 2

    class libvirtError(Exception):  # noqa: N801 - its name
        """As that of libvirt."""

    def openReadOnly(self, uri: str | None) -> "Libvirt":  # noqa: N802
        assert uri is None
        return self

    def lookupByName(self, name: str) -> "Libvirt":  # noqa: N802
        if name not in ("db1", "db2"):
            raise self.libvirtError(f"Domain not found: no domain with matching name '{name}'")
        self.name = name
        return self

    def XMLDesc(self, flags: int) -> str:  # noqa: N802
        assert flags == self.VIR_DOMAIN_XML_INACTIVE
        huge = "<memoryBacking><hugepages/></memoryBacking>"
        return f"<domain><name>{self.name}</name><memory unit='G'>1</memory>{huge}</domain>"

    def isActive(self) -> int:  # noqa: N802
        return int(self.name == "db2")

    def close(self) -> None:
        self.name = ""


def test_domains_of_libvirt_that_run_have_their_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_domain, "import_libvirt", Libvirt)
    code, output = run("--domain", "db1", "--domain", "db2", "--page", "2M", "--pool", "512")
    assert code == 0
    assert output.startswith("db2 runs already, and has its pages\n512 pages of 2M are needed, 512 are available\n")
    with pytest.raises(InputError, match="--domain db3: Domain not found"):
        run("--domain", "db3", "--page", "2M", "--pool", "1")


def test_no_binding_of_libvirt(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_libvirt() -> None:
        raise NotHere("the Python package libvirt-python is not installed")

    monkeypatch.setattr(foreign_domain, "import_libvirt", import_libvirt)
    with pytest.raises(InputError, match="--domain db1: the Python package libvirt-python is not installed"):
        run("--domain", "db1", "--elsewhere")


def test_many_guests_that_cannot_start_are_counted() -> None:
    code, output = run("--memory", "1G", "--page", "2M", "--pool", "512", "--guests", "100")
    assert code == 1
    assert output.count("cannot start") == 10
    assert "guest 1 cannot" not in output
    assert "so it is with 89 more\n" in output
