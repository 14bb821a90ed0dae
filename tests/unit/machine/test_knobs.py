"""Which knobs there are, and how they are read and written."""

from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.kernel import interleave_weights
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine.knobs import Kind, Knob, find_knobs, knob_name, read_knobs

from .conftest import KSM, NODES, POOLS, THP, VM, value, write


def values(root: Path) -> dict[str, str]:
    return {knob.name: value for knob, value in read_knobs(root).items()}


def test_what_there_is_decides(machine: Path) -> None:
    assert values(machine) == {
        # without the surplus page, which is not written
        "node0/hugepages-2048kB/nr_hugepages": "7",
        "node0/hugepages-1048576kB/nr_hugepages": "1",
        "node1/hugepages-2048kB/nr_hugepages": "4",
        "node1/hugepages-1048576kB/nr_hugepages": "0",
        "hugepages-2048kB/nr_overcommit_hugepages": "2",
        "hugepages-1048576kB/nr_overcommit_hugepages": "0",
        "hugepages-1048576kB/demote_size": "2048kB",
        "transparent_hugepage/enabled": "madvise",
        "transparent_hugepage/shmem_enabled": "never",
        "transparent_hugepage/use_zero_page": "1",
        "transparent_hugepage/hugepages-64kB/enabled": "never",
        "transparent_hugepage/hugepages-64kB/shmem_enabled": "inherit",
        "transparent_hugepage/khugepaged/defrag": "1",
        "vm/overcommit_kbytes": "0",
        "vm/overcommit_ratio": "50",
        "vm/min_free_kbytes": "1000",
        "kernel/shmmax": "18446744073692774399",
    }


def test_files_of_kernels_to_come(machine: Path) -> None:
    write(machine / f"{THP}/hugetext_enabled", "3\n")
    write(machine / f"{THP}/new", "this [that]\n")
    found = values(machine)
    assert found["transparent_hugepage/hugetext_enabled"] == "3"
    assert found["transparent_hugepage/new"] == "that"


def test_a_kernel_without_nodes_has_the_pools_of_the_machine(machine: Path) -> None:
    for node in ("node0", "node1"):
        for path in (machine / NODES / node / "hugepages").glob("*/*"):
            path.unlink()
        for path in (machine / NODES / node / "hugepages").glob("*"):
            path.rmdir()
    found = {name: value for name, value in values(machine).items() if name.endswith("/nr_hugepages")}
    assert found == {"hugepages-2048kB/nr_hugepages": "12", "hugepages-1048576kB/nr_hugepages": "1"}


def test_a_machine_without_huge_pages(tmp_path: Path) -> None:
    assert find_knobs(tmp_path) == ()


def test_an_advisor_of_ksm_has_what_it_sets(machine: Path) -> None:
    write(machine / f"{KSM}/run", "0")
    write(machine / f"{KSM}/pages_to_scan", "100")
    assert {name: text for name, text in values(machine).items() if name.startswith("ksm/")} == {
        "ksm/run": "0",
        "ksm/pages_to_scan": "100",
    }
    write(machine / f"{KSM}/advisor_mode", "[none] scan-time\n")
    assert values(machine)["ksm/pages_to_scan"] == "100"
    write(machine / f"{KSM}/advisor_mode", "none [scan-time]\n")
    assert "ksm/pages_to_scan" not in values(machine)
    assert values(machine)["ksm/advisor_mode"] == "scan-time"


def test_weights_of_nodes_are_knobs_unless_the_kernel_chooses_them(machine: Path) -> None:
    write(machine / f"{interleave_weights.DIRECTORY}/node0", "3\n")
    assert values(machine)["mempolicy/weighted_interleave/node0"] == "3"
    write(machine / interleave_weights.AUTOMATIC, "true\n")
    assert "mempolicy/weighted_interleave/node0" not in values(machine)


def test_links_are_no_knobs(machine: Path) -> None:
    target = machine / f"{THP}/enabled"
    (machine / f"{THP}/also_enabled").symlink_to(target)
    assert "transparent_hugepage/also_enabled" not in values(machine)


def test_malformed_pool(machine: Path) -> None:
    write(machine / f"{NODES}/node1/hugepages/hugepages-2048kB/nr_hugepages", "many")
    with pytest.raises(InputError, match="node1/hugepages/hugepages-2048kB/nr_hugepages, line 1: 'many'"):
        read_knobs(machine)


def test_a_surplus_page_that_goes_between_two_counts(machine: Path) -> None:
    path = f"{NODES}/node0/hugepages/hugepages-2048kB/nr_hugepages"
    surplus = f"{NODES}/node0/hugepages/hugepages-2048kB/surplus_hugepages"

    class Moving(DirectoryTree):
        def read(self, name: str) -> str | None:
            text = super().read(name)
            if name == path and text == "8":
                write(machine / path, "7")
                write(machine / surplus, "0")
            return text

    assert Knob(Kind.POOL, path).read(Moving(machine)) == "7"


def test_a_value_that_cannot_be_read(machine: Path) -> None:
    assert Knob(Kind.THP, f"{THP}/none").read(DirectoryTree(machine)) is None


def test_write(machine: Path) -> None:
    knob = Knob(Kind.SYSCTL, f"{VM}/overcommit_ratio")
    knob.write(machine, "7")
    assert value(machine, knob.path) == "7"


def test_writing_makes_and_follows_nothing(machine: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Knob(Kind.SYSCTL, f"{VM}/none").write(machine, "7")
    (machine / VM / "link").symlink_to(machine / VM / "overcommit_ratio")
    with pytest.raises(OSError, match="symbolic links"):
        Knob(Kind.SYSCTL, f"{VM}/link").write(machine, "7")
    assert value(machine, f"{VM}/overcommit_ratio") == "50"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (f"{POOLS}/hugepages-2048kB/nr_hugepages", "hugepages-2048kB/nr_hugepages"),
        (f"{NODES}/node1/hugepages/hugepages-64kB/nr_hugepages", "node1/hugepages-64kB/nr_hugepages"),
        (f"{THP}/enabled", "transparent_hugepage/enabled"),
        ("proc/sys/kernel/shmmax", "kernel/shmmax"),
        ("proc/other", "proc/other"),
    ],
)
def test_names(path: str, name: str) -> None:
    assert knob_name(path) == name


def test_this_machine() -> None:
    knobs = read_knobs()
    assert all(Path("/", knob.path).is_file() for knob in knobs)
    assert not {knob.path for knob in knobs} & {f"{THP}/khugepaged/full_scans", f"{THP}/hpage_pmd_size"}
