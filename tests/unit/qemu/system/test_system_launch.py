"""From what a user asks for to a machine; QEMU is a small program."""

import platform as host
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.qemu.conftest import OFFER
from tests.unit.qemu.system.test_system_machine import RECORD

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.system import system_launch
from hugepage_qa.qemu.system.machine_registry import Registry
from hugepage_qa.qemu.system.platforms import Firmware, Platform
from hugepage_qa.qemu.system.system_arguments import Hardware
from hugepage_qa.qemu.system.system_images import SystemImage
from hugepage_qa.qemu.system.system_launch import SystemOptions, bring_up, parse_nodes
from hugepage_qa.qemu.system.system_roots import SystemRoot
from hugepage_qa.sizes import GIB, MIB


@pytest.mark.parametrize(
    ("memory", "nodes", "expected"),
    [
        (None, None, (4 * GIB,)),
        ("2G", None, (2 * GIB,)),
        ("4G", "2", (2 * GIB, 2 * GIB)),
        (None, "4", (GIB, GIB, GIB, GIB)),
        # the first node takes what cannot be shared in whole MiB
        ("1G", "3", (1024 * MIB - 2 * 341 * MIB, 341 * MIB, 341 * MIB)),
        (None, "3G,1G", (3 * GIB, GIB)),
        ("4G", "3G,1G", (3 * GIB, GIB)),
        (None, "2G,0", (2 * GIB, 0)),
    ],
)
def test_nodes(memory: str | None, nodes: str | None, expected: tuple[int, ...]) -> None:
    assert parse_nodes(memory, nodes) == expected


@pytest.mark.parametrize(
    ("memory", "nodes"),
    [
        ("4", "2"),
        ("x", None),
        ("4G", "0"),
        ("4G", "-1"),
        ("4G", "3G,2G"),
        (None, "0,0"),
        ("4G", "9" * 5000),
        ("4G", ""),
        ("4G", "two"),
    ],
)
def test_nodes_that_cannot_be(memory: str | None, nodes: str | None) -> None:
    with pytest.raises(InputError):
        parse_nodes(memory, nodes)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (SystemOptions(architecture="sparc64"), "a system machine can be x86_64"),
        (SystemOptions(memory=(GIB,) * 200), "200 NUMA nodes"),
        (SystemOptions(words="a\nb"), "kernel arguments"),
        (SystemOptions(name="../x"), "machine name"),
        (SystemOptions(kernel=Path("/absent")), "/absent"),
    ],
)
def test_what_cannot_be_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: SystemOptions, complaint: str
) -> None:
    monkeypatch.setattr(host, "machine", lambda: "x86_64")
    monkeypatch.setattr(system_launch, "require", lambda _platform, _tools: None)
    with pytest.raises(InputError, match=complaint):
        bring_up(tmp_path, options, report=lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_root_is_built_on_its_own_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "machine", lambda: "aarch64")
    with pytest.raises(InputError, match="a root can be built on such a host, this is aarch64"):
        bring_up(tmp_path, SystemOptions(architecture="x86_64"), report=lambda _: None)


@pytest.fixture
def start(
    tmp_path: Path, platform: Platform, monkeypatch: pytest.MonkeyPatch, install: Callable[[Path, str, str], None]
) -> Callable[[str], Registry]:
    """Return start(script): a machine whose emulator is ``script``."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "ssh_host_ed25519_key.pub").write_text("ssh-ed25519 HOST root@lab\n")
    firmware = Firmware(tmp_path / "code", tmp_path / "variables")
    image = SystemImage(tmp_path / "image" / "disk.qcow2", SystemRoot(tmp_path / "root"))
    registry = Registry(tmp_path)

    def run(script: str) -> Registry:
        install(tmp_path / "bin", "qemu", f"{OFFER}{script}")
        monkeypatch.setattr(system_launch, "find_emulator", lambda _board: str(tmp_path / "bin" / "qemu"))
        monkeypatch.setattr(system_launch, "find_firmware", lambda _platform: firmware)
        with registry.new_directory("m"):
            system_launch._start(registry, RECORD, Hardware(platform, (GIB,), 1, "tcg"), image, None)
        return registry

    return run


def test_machine_is_known_by_its_host_key(start: Callable[[str], Registry]) -> None:
    machine = start("exit 0").find("m")
    known = (machine.directory / "known_hosts").read_text()
    assert known == f"[127.0.0.1]:{machine.record.port} ssh-ed25519 HOST root@lab\n"
    assert machine.record.command[1:]


def test_port_that_was_taken_meanwhile_is_replaced(start: Callable[[str], Registry], tmp_path: Path) -> None:
    taken = "echo \"-netdev user: Could not set up host forwarding rule 'tcp:...'\" >&2"
    count = f'echo x >>{tmp_path}/tries; [ "$(wc -l <{tmp_path}/tries)" -ge 3 ] && exit 0'
    start(f"{count}; {taken}; exit 1")
    assert (tmp_path / "tries").read_text() == "x\n" * 3


def test_other_complaints_end_it_at_once(start: Callable[[str], Registry], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="machine m: cannot set up guest memory"):
        start(f"echo x >>{tmp_path}/tries; echo 'cannot set up guest memory' >&2; exit 1")
    assert (tmp_path / "tries").read_text() == "x\n"
    assert Registry(tmp_path).names() == []
