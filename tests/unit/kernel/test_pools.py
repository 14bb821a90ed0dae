"""hugetlb pools in sysfs."""

from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.pools import Pool, read_node_pools, read_pools
from hugepage_qa.kernel.tree import CapturedTree, DirectoryTree

GLOBAL = "sys/kernel/mm/hugepages/hugepages-2048kB"
NODE = "sys/devices/system/node/node1/hugepages/hugepages-2048kB"


def test_every_file_of_a_pool() -> None:
    files = {
        "nr_hugepages": "8\n",
        "nr_hugepages_mempolicy": "8\n",
        "nr_overcommit_hugepages": "2\n",
        "free_hugepages": "5\n",
        "resv_hugepages": "1\n",
        "surplus_hugepages": "3\n",
        "demote_size": "64kB\n",
    }
    (pool,) = read_pools(CapturedTree({f"{GLOBAL}/{name}": text for name, text in files.items()}))
    assert (pool.size, pool.name) == (2 << 20, "hugepages-2048kB")
    assert pool.files == {
        "nr_hugepages": 8,
        "nr_hugepages_mempolicy": 8,
        "nr_overcommit_hugepages": 2,
        "free_hugepages": 5,
        "resv_hugepages": 1,
        "surplus_hugepages": 3,
        "demote_size": 64 << 10,
    }


def test_file_of_a_later_kernel() -> None:
    tree = CapturedTree({f"{GLOBAL}/nr_hugepages": "1\n", f"{GLOBAL}/nr_new": "4\n", f"{GLOBAL}/mode": "fast\n"})
    assert read_pools(tree) == (Pool(2 << 20, {"nr_hugepages": 1, "nr_new": 4}),)


def test_missing_files_are_none() -> None:
    (pool,) = read_pools(CapturedTree({f"{GLOBAL}/nr_hugepages": "1\n"}))
    assert pool.count("resv_hugepages") == 0
    assert "demote_size" not in pool.files


def test_no_hugetlb() -> None:
    assert read_pools(CapturedTree({})) == ()
    assert read_node_pools(CapturedTree({})) == {}


def test_malformed_file_is_named() -> None:
    with pytest.raises(InputError, match=rf"^/{GLOBAL}/free_hugepages, line 1: 'x\\n': expected a whole number"):
        read_pools(CapturedTree({f"{GLOBAL}/free_hugepages": "x\n"}))


def test_nodes_have_their_own() -> None:
    tree = CapturedTree({f"{NODE}/nr_hugepages": "4\n", "sys/devices/system/node/node0/cpulist": "0\n"})
    assert read_node_pools(tree) == {0: (), 1: (Pool(2 << 20, {"nr_hugepages": 4}),)}


def test_sum_over_nodes_is_the_machine(any_capture: CapturedTree) -> None:
    nodes = read_node_pools(any_capture)
    for pool in read_pools(any_capture):
        for name in ("nr_hugepages", "free_hugepages", "surplus_hugepages"):
            assert pool.files[name] == sum(
                part.files[name] for pools in nodes.values() for part in pools if part.size == pool.size
            )


def test_write_only_file_is_left_out(tmp_path: Path) -> None:
    directory = tmp_path / GLOBAL
    (directory / "demote").mkdir(parents=True)  # reading a directory fails as reading the write-only file does
    (directory / "nr_hugepages").write_text("3\n")
    assert read_pools(DirectoryTree(tmp_path)) == (Pool(2 << 20, {"nr_hugepages": 3}),)
