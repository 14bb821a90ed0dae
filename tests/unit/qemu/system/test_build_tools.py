"""What is missing on the host is said at once."""

import platform
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.system import build_tools
from hugepage_qa.qemu.system.platforms import Firmware, find_platform

PLATFORM = find_platform("x86_64")


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name, **_options: None)


@pytest.mark.usefixtures("nothing_installed")
def test_all_that_is_missing_is_one_line(tmp_path: Path) -> None:
    bare = replace(PLATFORM, firmware=(Firmware(tmp_path / "code", tmp_path / "variables"),))
    with pytest.raises(InputError) as caught:
        build_tools.require(bare, build_tools.TO_BUILD)
    message = str(caught.value)
    assert "\n" not in message
    for program in ("qemu-system-x86_64", "mmdebstrap", "sfdisk", "mke2fs", "qemu-img", "ssh-keygen", "UEFI firmware"):
        assert program in message
    assert (
        "apt-get install qemu-system-x86 mmdebstrap util-linux fdisk e2fsprogs tar qemu-utils openssh-client ovmf"
        in message
    )
    own = platform.machine() == PLATFORM.board.architecture
    assert f"dnf install {'qemu-kvm-core' if own else 'qemu-system-x86-core'}" in message


def test_firmware_needs_both_files(tmp_path: Path) -> None:
    firmware = Firmware(tmp_path / "code", tmp_path / "variables")
    bare = replace(PLATFORM, firmware=(firmware,))
    firmware.code.touch()
    assert build_tools.find_firmware(bare) is None
    firmware.variables.touch()
    assert build_tools.find_firmware(bare) == firmware


def test_other_architectures_are_refused() -> None:
    with pytest.raises(InputError, match="a system machine can be x86_64"):
        find_platform("s390x")
