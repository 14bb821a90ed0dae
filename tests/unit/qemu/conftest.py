"""Fake programs for PATH."""

from collections.abc import Callable
from pathlib import Path

import pytest

#: begins the script of an emulator: what it says that it has
OFFER = r"""
case "$1 $2" in
"-machine help") printf 'Supported machines are:\nq35                  Standard PC (alias of pc-q35-7.2)\n' ;;
"-cpu help") printf 'Available CPUs:\nx86 max                   all features\nx86 qemu64  \nx86 host  \n' ;;
"-accel help") printf 'Accelerators supported in QEMU binary:\ntcg\nkvm\n' ;;
"-device help") printf 'name "virtio-blk-pci", bus PCI\nname "virtio-net-pci", bus PCI\n' ;;
esac
case $2 in help) exit ;; esac
"""


@pytest.fixture
def install() -> Callable[[Path, str, str], None]:
    """Return install(directory, name, script): puts shell script as program name into directory."""

    def put(directory: Path, name: str, script: str) -> None:
        directory.mkdir(exist_ok=True)
        path = directory / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    return put
