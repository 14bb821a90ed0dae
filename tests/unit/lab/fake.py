"""Fake programs for PATH, and files that stand for kernels."""

import struct
from pathlib import Path

RELEASE = "6.12.5-qa"


def install(directory: Path, name: str, script: str) -> Path:
    """Put shell ``script`` as program ``name`` into ``directory``."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    return path


def bzimage(path: Path) -> Path:
    """Write to ``path`` the least that counts as an x86 kernel of RELEASE."""
    data = bytearray(0x600)
    data[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", data, 0x20E, 0x300)
    data[0x500 : 0x500 + len(RELEASE)] = RELEASE.encode()
    path.write_bytes(data)
    return path
