"""Fake programs for PATH, and files that stand for kernels."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def install() -> Callable[[Path, str, str], None]:
    """Return install(directory, name, script): puts shell script as program name into directory."""

    def put(directory: Path, name: str, script: str) -> None:
        directory.mkdir(exist_ok=True)
        path = directory / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    return put


@pytest.fixture
def bzimage() -> Callable[[str], bytes]:
    """Return bzimage(release): the least that counts as an x86 kernel of that release."""

    def build(release: str) -> bytes:
        data = bytearray(0x600)
        data[0x202:0x206] = b"HdrS"
        struct.pack_into("<H", data, 0x20E, 0x300)
        data[0x500 : 0x500 + len(release)] = release.encode()
        return bytes(data)

    return build
