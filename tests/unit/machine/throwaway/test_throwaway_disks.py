"""Which disks and swap a throwaway machine has, and what is said where it has none."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.process.local_agent import LocalAgent

from hugepage_qa.kernel.proc_tables import find_mount
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine.host import CannotRun, Host
from hugepage_qa.machine.real_machine import RealMachine
from hugepage_qa.machine.swap_file import MAGIC, swap_header
from hugepage_qa.machine.throwaway_machine import ThrowawayMachine
from hugepage_qa.process.text_program_build import Recipe
from hugepage_qa.sizes import MIB


def with_disks(machine: ThrowawayMachine, monkeypatch: pytest.MonkeyPatch, *serials: str) -> list[tuple[str, ...]]:
    """Have ``machine`` see disks with these serial numbers, and mount nothing; return what is asked of the agent."""
    files = {f"sys/block/vd{letter}/serial": serial for letter, serial in zip("abc", serials, strict=False)}
    asked: list[tuple[str, ...]] = []
    ask = machine._channel.ask
    monkeypatch.setattr(machine._files, "names", lambda _path: [path.split("/")[2] for path in files])
    monkeypatch.setattr(machine._files, "read", files.get)

    def noted(letter: str, *fields: Any) -> Any:
        asked.append((letter, *map(str, fields)))
        return [] if letter in "Mi" else ask(letter, *fields)

    monkeypatch.setattr(machine._channel, "ask", noted)
    return asked


def test_a_disk_is_found_by_its_name_and_mounted_once(
    machine: ThrowawayMachine, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "xfs.ko").write_bytes(b"\0depends=libcrc32c\0")
    (tmp_path / "libcrc32c.ko").write_bytes(b"a module")
    (tmp_path / "crc32c-cryptoapi.ko").write_bytes(b"what btrfs finds by itself")
    machine._files._modules = tuple(tmp_path.glob("*.ko"))
    asked = with_disks(machine, monkeypatch, "\n", "btrfs\n", "xfs\n")
    point = Host(machine).disk("xfs")
    assert Host(machine).disk("xfs") == point == f"{place}/tmp/xfs-1"
    assert [one[1:] for one in asked if one[0] in "iM"] == [
        (f"{place}/tmp/crc32c_cryptoapi.ko",),
        (f"{place}/tmp/libcrc32c.ko",),
        (f"{place}/tmp/xfs.ko",),
        ("/dev/vdc", point, "xfs", ""),
    ]
    assert not list((place / "tmp").glob("*.ko")), "no memory is left to them"


def test_the_disk_for_programs_and_swap_is_found_by_its_name_in_any_order(
    machine: ThrowawayMachine, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = with_disks(machine, monkeypatch, "xfs\n", "btrfs\n", "ext4\n")
    assert machine._files._mount_disk() == ""
    assert asked == [("M", "/dev/vdc", f"{place}/disk", "ext4", "")]


@pytest.mark.parametrize(
    ("installed", "reason"),
    [(None, "a disk with xfs needs mkfs.xfs, which is not installed here"), ("/sbin/mkfs.xfs", "no virtio disks")],
)
def test_without_a_disk_it_is_said_what_is_missing(
    machine: ThrowawayMachine, monkeypatch: pytest.MonkeyPatch, installed: str | None, reason: str
) -> None:
    with_disks(machine, monkeypatch, "")
    monkeypatch.setattr("hugepage_qa.qemu.empty_disks.Maker.find", lambda _maker: installed)
    with pytest.raises(CannotRun, match=reason):
        Host(machine).disk("xfs")


def test_a_file_system_that_the_kernel_has_not_is_told(
    machine: ThrowawayMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_disks(machine, monkeypatch, "btrfs")

    def refuse(letter: str, *_fields: Any) -> list[bytes]:
        if letter == "M":
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return []

    monkeypatch.setattr(machine._channel, "ask", refuse)
    with pytest.raises(CannotRun, match="this kernel mounts no btrfs: No such device"):
        Host(machine).disk("btrfs")


def test_the_disk_of_the_real_machine_is_what_it_is(real: RealMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "_disk", lambda: Path("/var/tmp"))
    mount = find_mount(DirectoryTree(Path("/")), "/var/tmp")
    assert mount is not None
    assert Host(real).disk(mount.type) == "/var/tmp"
    with pytest.raises(CannotRun, match=f"no disk with none is free: programs lie on {mount.type}"):
        Host(real).disk("none")


def test_what_needs_a_disk_is_skipped_without_one(machine: ThrowawayMachine) -> None:
    reason = "the machine has no disk with ext4: "
    with pytest.raises(CannotRun, match=reason):
        machine.perform("add_swap", [MIB])
    with pytest.raises(CannotRun, match=reason):
        Host(machine).build_text(Recipe(2 * MIB))


def test_a_swap_file_that_is_refused_is_removed(
    agent: LocalAgent, disk: ThrowawayMachine, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    ask = agent.channel.ask

    def refusing(letter: str, *fields: Any) -> list[bytes]:
        if letter != "+":
            return ask(letter, *fields)
        seen.append(Path(fields[0]).read_bytes())
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(agent.channel, "ask", refusing)
    with pytest.raises(PermissionError):
        disk.perform("add_swap", [MIB])
    page = agent.base_page
    assert len(seen[0]) == MIB
    assert seen[0][1024:].startswith(swap_header(MIB, page, "little" if os.uname().machine != "s390x" else "big"))
    assert seen[0][:page].endswith(MAGIC)
    assert not list((place / "disk").iterdir())


def test_modules_are_loaded_once_each_behind_what_it_needs(
    machine: ThrowawayMachine, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rdma_rxe.ko").write_bytes(b"\0depends=ib_core\0")
    (tmp_path / "ib_core.ko").write_bytes(b"a module")
    machine._files._modules = tuple(tmp_path.glob("*.ko"))
    asked = with_disks(machine, monkeypatch)
    assert not Host(machine).has_modules(["rdma_rxe"])
    loaded = [one[1:] for one in asked if one[0] == "i"]
    assert loaded == [(f"{place}/tmp/ib_core.ko",), (f"{place}/tmp/rdma_rxe.ko",)]
    monkeypatch.setattr(machine._files, "names", lambda _path: ["refcnt"])
    assert Host(machine).has_modules(["rdma_rxe"])
    assert [one[1:] for one in asked if one[0] == "i"] == loaded


def test_a_real_machine_loads_nothing_and_is_not_thrown_away(machine: ThrowawayMachine, real: RealMachine) -> None:
    assert not Host(real).has_modules(["no_such_module_as_this"])
    assert not Host(real).is_thrown_away()
    assert Host(machine).is_thrown_away()
