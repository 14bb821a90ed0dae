"""What makes a file one for swap, as include/linux/swap.h has it: the kernel checks all of it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from hugepage_qa.kernel.uapi import ByteOrder
from hugepage_qa.machine.swap_file import HEADER_OFFSET, MAGIC, swap_header
from hugepage_qa.sizes import KIB, MIB


@pytest.mark.parametrize(
    ("size", "page", "order", "expected"),
    [
        (MIB, 4 * KIB, "little", "01000000 ff000000 00000000"),
        (MIB, 4 * KIB, "big", "00000001 000000ff 00000000"),
        (MIB, 64 * KIB, "little", "01000000 0f000000 00000000"),
        (64 * MIB, 64 * KIB, "big", "00000001 000003ff 00000000"),
    ],
)
def test_it_has_version_last_page_and_no_bad_pages(size: int, page: int, order: ByteOrder, expected: str) -> None:
    assert swap_header(size, page, order) == bytes.fromhex(expected)


@pytest.mark.parametrize("page", [4 * KIB, 64 * KIB])
def test_mkswap_writes_the_same(tmp_path: Path, page: int) -> None:
    program = shutil.which("mkswap", path="/sbin:/usr/sbin")
    if program is None:
        pytest.skip("mkswap is not installed")
    file = tmp_path / "swap"
    file.write_bytes(bytes(MIB))
    file.chmod(0o600)
    subprocess.run([program, "-p", str(page), str(file)], capture_output=True, check=True)
    content = file.read_bytes()
    assert content[HEADER_OFFSET:].startswith(swap_header(MIB, page, "little"))
    assert content[:page].endswith(MAGIC)
