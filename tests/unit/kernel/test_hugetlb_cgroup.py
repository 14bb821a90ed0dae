"""The files of the hugetlb controller."""

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.hugetlb_cgroup import file_prefix, read_numa_stat, read_refusals
from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.sizes import GIB, KIB, MIB


@pytest.mark.parametrize(
    ("size", "prefix"),
    [
        (64 * KIB, "hugetlb.64KB."),
        (MIB, "hugetlb.1MB."),
        (2 * MIB, "hugetlb.2MB."),
        (512 * MIB, "hugetlb.512MB."),
        (GIB, "hugetlb.1GB."),
        (16 * GIB, "hugetlb.16GB."),
    ],
)
def test_files_are_named_by_the_page_size(size: int, prefix: str) -> None:
    assert file_prefix(size) == prefix


@pytest.mark.parametrize("text", ["7\n", "max 7\n"])
def test_refusals_are_read_in_both_versions(text: str) -> None:
    assert read_refusals(CapturedTree({"events": text}), "events") == 7


@pytest.mark.parametrize("text", ["", "low 7\n", "max\n", "max 7\nmax 8\n"])
def test_refusals_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="events"):
        read_refusals(CapturedTree({"events": text}), "events")


def test_the_first_line_of_numa_stat_is_of_the_group_itself() -> None:
    text = "total=4194304 N0=0 N1=4194304\nhierarchical_total=6291456 N0=2097152 N1=4194304\n"
    tree = CapturedTree({"stat": text})
    assert read_numa_stat(tree, "stat") == {"total": 4194304, "N0": 0, "N1": 4194304}
    below = {"total": 6291456, "N0": 2097152, "N1": 4194304}
    assert read_numa_stat(tree, "stat", with_groups_below=True) == below
    version_2 = CapturedTree({"stat": "total=6291456 N0=2097152 N1=4194304\n"})
    assert read_numa_stat(version_2, "stat", with_groups_below=True) == below


def test_an_old_kernel_has_no_numa_stat() -> None:
    assert read_numa_stat(CapturedTree({}), "stat") is None


@pytest.mark.parametrize("text", ["total=x\n", "total 0\n", "total=0 N0=-1\n"])
def test_numa_stat_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="stat"):
        read_numa_stat(CapturedTree({"stat": text}), "stat")
