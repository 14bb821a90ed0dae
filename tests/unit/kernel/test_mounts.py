"""Mounts, and the huge= option of a tmpfs."""

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.proc_tables import (
    Mount,
    huge_policy,
    read_mounts,
    read_tmpfs_huge,
)
from hugepage_qa.kernel.tree import CapturedTree


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("tmpfs /tmp tmpfs rw,relatime,huge=always 0 0\n", "always"),
        ("tmpfs /tmp tmpfs rw,relatime 0 0\n", "never"),
        ("tmpfs /run tmpfs rw,huge=always 0 0\n", None),
        ("/dev/vda /tmp ext4 rw,huge=always 0 0\n", None),
        ("broken\n", None),
        ("", None),
    ],
)
def test_tmpfs_huge(text: str, policy: str | None) -> None:
    assert read_tmpfs_huge(CapturedTree({"proc/mounts": text})) == policy


def test_mounts() -> None:
    text = "none /mnt/a\\040b hugetlbfs rw,pagesize=2M,nosuid 0 0\nproc /proc proc rw 0 0\n"
    mounts = read_mounts(CapturedTree({"proc/self/mounts": text}))
    assert mounts == (Mount("/mnt/a b", "hugetlbfs", "rw,pagesize=2M,nosuid"), Mount("/proc", "proc", "rw"))
    assert [mounts[0].option(name) for name in ("pagesize", "nosuid", "size")] == ["2M", "", None]


def test_no_mounts() -> None:
    assert read_mounts(CapturedTree({})) == ()
    of_another = CapturedTree({"proc/7/mounts": "none /huge hugetlbfs rw,pagesize=2M 0 0\n"})
    assert [mount.point for mount in read_mounts(of_another, 7)] == ["/huge"]


def test_malformed_mount() -> None:
    text = "proc /proc proc rw 0 0\nproc /proc\n"
    with pytest.raises(InputError, match=r"^/proc/self/mounts, line 2: 'proc /proc': expected 6 fields"):
        read_mounts(CapturedTree({"proc/self/mounts": text}))


def test_huge_policy() -> None:
    assert huge_policy(Mount("/x", "tmpfs", "rw,huge=within_size")) == "within_size"
    assert huge_policy(Mount("/x", "tmpfs", "rw")) == "never"
