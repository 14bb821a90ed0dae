"""The huge= option of a tmpfs."""

import pytest

from hugepage_qa.kernel.mounts import read_tmpfs_huge
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
