"""The archive is a valid newc archive, the same for the same input."""

import lzma
import os
import stat
import subprocess
from pathlib import Path

from hugepage_qa.qemu.initramfs import probe_archive, probe_initramfs


def entries(archive: bytes) -> dict[str, tuple[int, bytes, tuple[int, int]]]:
    """Return name -> (mode, content, device) by the letter of the format."""
    found: dict[str, tuple[int, bytes, tuple[int, int]]] = {}
    position = 0
    while True:
        assert archive[position : position + 6] == b"070701"
        assert position % 4 == 0
        fields = [int(archive[position + 6 + 8 * n : position + 14 + 8 * n], 16) for n in range(13)]
        name = archive[position + 110 : position + 110 + fields[11] - 1].decode()
        if name == "TRAILER!!!":
            return found
        start = position + (110 + fields[11] + 3) // 4 * 4
        found[name] = (fields[1], archive[start : start + fields[6]], (fields[9], fields[10]))
        position = start + (fields[6] + 3) // 4 * 4


def test_archive_holds_what_a_probe_machine_boots_into() -> None:
    found = entries(probe_archive(b"BUSYBOX"))
    assert found["bin/busybox"] == (stat.S_IFREG | 0o755, b"BUSYBOX", (0, 0))
    assert found["dev/console"] == (stat.S_IFCHR | 0o600, b"", (5, 1))
    assert found["init"][1].startswith(b"#!/bin/busybox sh\n")
    assert all(str(Path(name).parent) in {".", *found} for name in found), "a folder must come with its files"


def test_archive_is_deterministic_and_built_once(tmp_path: Path) -> None:
    busybox = tmp_path / "busybox"
    busybox.write_bytes(b"BUSYBOX")
    first = probe_initramfs(busybox, tmp_path / "cache")
    before = first.stat().st_mtime_ns
    os.utime(busybox, (0, 0))
    assert probe_initramfs(busybox, tmp_path / "cache") == first
    assert first.stat().st_mtime_ns == before
    busybox.write_bytes(b"ANOTHER")
    assert probe_initramfs(busybox, tmp_path / "cache") != first


def test_modules_are_there_as_they_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "virtio.ko").write_bytes(b"PLAIN")
    (tmp_path / "virtio_mem.ko.xz").write_bytes(lzma.compress(b"COMPRESSED"))
    (tmp_path / "busybox").touch()
    modules = [tmp_path / "virtio.ko", tmp_path / "virtio_mem.ko.xz"]
    found = entries(probe_initramfs(tmp_path / "busybox", tmp_path / "cache", modules).read_bytes())
    assert {name: entry[1] for name, entry in found.items() if name.startswith("modules/")} == {
        "modules/virtio.ko": b"PLAIN",
        "modules/virtio_mem.ko": b"COMPRESSED",
    }
    assert "modules" in found
    assert "modules" not in entries(probe_archive(b"BUSYBOX"))


def test_programs_are_beside_busybox_and_can_be_started(tmp_path: Path) -> None:
    for name in ("busybox", "built"):
        (tmp_path / name).write_bytes(name.encode())
    archive = probe_initramfs(tmp_path / "busybox", tmp_path / "cache", programs={"busy": tmp_path / "built"})
    assert entries(archive.read_bytes())["bin/busy"] == (stat.S_IFREG | 0o755, b"built", (0, 0))


def test_init_is_valid_shell(tmp_path: Path) -> None:
    script = tmp_path / "init"
    script.write_bytes(entries(probe_archive(b""))["init"][1])
    subprocess.run(["/bin/sh", "-n", str(script)], check=True)
