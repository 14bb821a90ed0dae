"""Which emulator is taken, and that nothing is asked of it that it has not: RHEL's has little, and lies elsewhere."""

import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.qemu.conftest import OFFER

from hugepage_qa.errors import InputError
from hugepage_qa.process.child import run_to_end
from hugepage_qa.qemu import installed_emulator
from hugepage_qa.qemu.boards import BOARDS, Board, find_board, find_cpu
from hugepage_qa.qemu.installed_emulator import (
    VARIABLE,
    NotOffered,
    Part,
    expect_offered,
    find_emulator,
    offered,
    rpm_package,
)
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.packages import cache_directory, distribution_kernel
from hugepage_qa.qemu.probe_machine import Lab
from hugepage_qa.qemu.qmp_monitor import Monitor
from hugepage_qa.qemu.virtual_machine import VirtualMachine
from hugepage_qa.sizes import GIB

Install = Callable[[Path, str, str], None]

BOARD = find_board("x86_64")
RHEL = Path(__file__).with_name("rhel_qemu_kvm.py")


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory in which an x86 machine without QEMU would have RHEL's, or another own one."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(installed_emulator, "_NATIVE", (str(tmp_path / "qemu-kvm"), str(tmp_path / "bin" / "qemu-kvm")))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path


def test_the_emulator_of_the_architecture_comes_before_that_of_the_machine(
    bare_machine: Path, install: Install
) -> None:
    with pytest.raises(
        InputError, match=r"qemu-system-x86_64 is not installed nor .*qemu-kvm: install .* qemu-kvm-core"
    ):
        find_emulator(BOARD)
    found = []
    for place, name in (("bin", "qemu-kvm"), (".", "qemu-kvm"), ("path", "qemu-system-x86_64")):
        install(bare_machine / place, name, "")
        found.append(Path(find_emulator(BOARD)).relative_to(bare_machine))
    assert [str(path) for path in found] == ["bin/qemu-kvm", "qemu-kvm", "path/qemu-system-x86_64"]


def test_the_variable_comes_before_all(bare_machine: Path, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(bare_machine / "path", "qemu-system-x86_64", "")
    install(bare_machine / "mine", "qemu", "")
    monkeypatch.chdir(bare_machine)
    monkeypatch.setenv(VARIABLE, "mine/qemu")
    assert find_emulator(BOARD) == str(bare_machine / "mine" / "qemu")
    monkeypatch.setenv(VARIABLE, "no/such")
    with pytest.raises(InputError, match=f"{VARIABLE}=no/such: no such program"):
        find_emulator(BOARD)


def test_the_emulator_of_the_machine_is_none_of_another_architecture(
    bare_machine: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(bare_machine, "qemu-kvm", "")
    monkeypatch.setenv(VARIABLE, str(bare_machine / "qemu-kvm"))
    foreign = find_board("aarch64")
    with pytest.raises(InputError, match=r"qemu-system-aarch64 is not installed: .* qemu-system-aarch64-core \(RPM\)"):
        find_emulator(foreign)
    assert (rpm_package(BOARD), rpm_package(foreign)) == ("qemu-kvm-core", "qemu-system-aarch64-core")


HELP = {
    Part.MACHINE: """Supported machines are:
pc                   RHEL 7.6.0 PC (i440FX + PIIX, 1996) (alias of pc-i440fx-rhel7.6.0)
pc-i440fx-rhel7.6.0  RHEL 7.6.0 PC (i440FX + PIIX, 1996) (default) (deprecated)
q35                  RHEL-9.8.0 PC (Q35 + ICH9, 2009) (alias of pc-q35-rhel9.8.0)
none                 empty machine
""",
    Part.CPU: """Available CPUs:
x86 486                   (alias configured by machine type)
x86 max                   Enables all features supported by the accelerator
s390 z14-base             IBM z14 GA1        (static, migration-safe)
  a64fx
  cortex-a57              (deprecated)
PowerPC power9           (alias for power9_v2.0)
""",
    Part.ACCELERATOR: "Accelerators supported in QEMU binary:\ntcg\nkvm\n",
    Part.DEVICE: """Controller/Bridge/Hub devices:
name "pcie-root-port", bus PCI, desc "PCI Express Root Port"

Storage devices:
name "virtio-blk-pci", bus PCI, alias "virtio-blk"
name "virtio-mem-pci", bus PCI
""",
}


@pytest.mark.parametrize(
    ("part", "names"),
    [
        (Part.MACHINE, "pc pc-i440fx-rhel7.6.0 q35 none"),
        (Part.CPU, "486 max z14-base a64fx cortex-a57 power9"),
        (Part.ACCELERATOR, "tcg kvm"),
        (Part.DEVICE, "pcie-root-port virtio-blk-pci virtio-blk virtio-mem-pci"),
    ],
)
def test_what_it_lists(part: Part, names: str, tmp_path: Path, install: Install) -> None:
    install(tmp_path, "qemu", f"[ \"$*\" = '-{part.value} help' ] && cat <<'END'\n{HELP[part]}END")
    assert " ".join(offered(str(tmp_path / "qemu"), part)) == names


@pytest.mark.parametrize(
    ("script", "said"), [("echo broken library >&2; exit 127", "broken library"), ("exit 0", "exit code 0")]
)
def test_an_emulator_that_lists_nothing(script: str, said: str, tmp_path: Path, install: Install) -> None:
    install(tmp_path, "qemu", script)
    with pytest.raises(InputError, match=f"qemu -cpu help: expected a list, it says: {said}"):
        offered(str(tmp_path / "qemu"), Part.CPU)
    with pytest.raises(InputError, match="No such file"):
        offered(str(tmp_path / "other"), Part.CPU)


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (("-machine", "q35,memory-backend=ram", "-cpu", "max,-svm", "-accel", "tcg", "-nodefaults"), ""),
        (("-machine", "microvm"), r"qemu has no -machine microvm: it has q35"),
        (("-cpu", "Nehalem,+x"), "qemu has no -cpu Nehalem: it has max, qemu64, host"),
        (("-accel", "hvf"), "qemu has no -accel hvf: it has tcg, kvm"),
        (("-device", "virtio-mem-pci,id=m"), r"qemu has no -device virtio-mem-pci: it has a1, a2, .*a8 and others"),
        (("-device", '{"driver": "pc-dimm", "id": "d"}'), "qemu has no -device pc-dimm"),
    ],
)
def test_what_is_missing_is_one_line(
    arguments: tuple[str, ...], missing: str, tmp_path: Path, install: Install
) -> None:
    devices = "".join(f'name "a{number}", bus PCI\\n' for number in range(1, 12))
    install(tmp_path, "qemu", f"[ \"$*\" = '-device help' ] && printf '{devices}' && exit\n{OFFER}")
    emulator = str(tmp_path / "qemu")
    if not missing:
        expect_offered(emulator, arguments)
        return
    with pytest.raises(NotOffered, match=missing) as caught:
        expect_offered(emulator, arguments)
    assert "\n" not in str(caught.value)


@pytest.fixture
def rhel(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return RHEL's emulator where it lies, on a machine that has no other."""
    if shutil.which("qemu-system-x86_64", path="/usr/bin:/usr/local/bin") is None:
        pytest.skip("qemu-system-x86_64 is not installed")
    (bare_machine / "qemu-kvm").symlink_to(RHEL)
    # the double is a script
    monkeypatch.setenv("PATH", f"{bare_machine / 'path'}:{_without_emulators(bare_machine / 'tools')}")
    return str(bare_machine / "qemu-kvm")


def _without_emulators(directory: Path) -> Path:
    directory.mkdir()
    for name in ("env", "python3"):
        found = shutil.which(name, path="/usr/bin:/bin")
        (directory / name).symlink_to(os.path.realpath(found or name))
    return directory


def command(board: Board, cpu: str, accelerator: str = "tcg") -> tuple[str, ...]:
    kernel = KernelImage(Path("/k"), board.architecture, "6.12.5", None)
    return VirtualMachine(kernel, cpu, (GIB,), cpus=2, accelerator=accelerator).qemu_command(Path("/i"))


@pytest.mark.parametrize("release", ["9", "10"])
def test_rhel_has_all_that_boots_of_its_own_architecture_are_made_of(
    rhel: str, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RHEL", release)
    for cpu in BOARD.cpus:
        assert command(BOARD, cpu)[0] == rhel
    assert "microvm" not in offered(rhel, Part.MACHINE)
    assert ("pc" in offered(rhel, Part.MACHINE)) == (release == "9")
    for foreign in (board for board in BOARDS.values() if board is not BOARD):
        with pytest.raises(InputError, match="is not installed: install"):
            command(foreign, find_cpu(foreign, None).name)


def test_rhel_has_the_devices_of_guests_and_refuses_others_itself(rhel: str) -> None:
    guests = ("virtio-balloon-pci", "pcie-root-port", "pc-dimm", "virtio-mem-pci", "nvdimm", "virtio-net-pci")
    agents = ("virtio-serial-pci", "virtserialport", "virtio-blk-pci", "isa-serial")
    expect_offered(rhel, [word for name in (*guests, *agents) for word in ("-device", name)])
    for arguments, said in (
        (["-machine", "microvm"], "unsupported machine type"),
        (["-machine", "q35", "-device", "cirrus-vga"], "'cirrus-vga' is not a valid device model name"),
    ):
        with pytest.raises(NotOffered):
            expect_offered(rhel, arguments)
        assert said in run_to_end([rhel, *arguments]).stderr


def test_rhel_without_tcg_says_so(rhel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RHEL_ACCELERATORS", "kvm")
    with pytest.raises(NotOffered, match="qemu-kvm has no -accel tcg: it has kvm"):
        command(BOARD, "max")
    # under KVM it is a machine like any other
    assert command(BOARD, "max", "kvm")[0] == rhel


def test_libvirt_is_told_of_what_rhel_has_alone(rhel: str, tmp_path: Path) -> None:
    path = tmp_path / "qmp.sock"
    options = ("-S", "-nodefaults", "-nographic", "-machine", "none,accel=tcg", "-daemonize")
    started = run_to_end([rhel, *options, "-qmp", f"unix:{path},server=on,wait=off", "-pidfile", f"{tmp_path}/pid"])
    assert started.returncode == 0, started.stderr
    monitor = Monitor(path, 60)
    types = {one["name"]: one.get("alias") for one in monitor.ask("query-machines", {}, seconds=60)}
    assert types.pop("pc-q35-rhel9.8.0") == "q35"
    assert types.pop("pc-i440fx-rhel7.6.0") == "pc"
    assert all(name == "none" or name.startswith("pc-q35-rhel") for name in types)
    devices = {one["name"] for one in monitor.ask("qom-list-types", {}, seconds=60)}
    assert {"virtio-mem-pci", "memory-backend-file", "qemu64-x86_64-cpu"} <= devices
    # without which libvirt finds no slot for virtio-mem, and has no virtiofs
    assert {"virtio-blk-pci-non-transitional", "vhost-user-fs-device"} <= devices
    assert "cirrus-vga" not in devices
    monitor.ask("quit", {}, seconds=60)
    monitor.close()


@pytest.mark.boots
def test_a_machine_boots_under_the_emulator_of_rhel_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(RHEL))
    if platform.machine() != BOARD.architecture:
        pytest.skip("RHEL has no emulator of another architecture")
    kernel = distribution_kernel(BOARD.architecture, cache_directory(), report=lambda _: None)
    boot = Lab(cache_directory(), deadline=180).boot(VirtualMachine(kernel, "max", (GIB,), "hugepages=5"))
    assert boot.qemu_command[0] == str(RHEL)
    assert boot.tree.read("proc/sys/vm/nr_hugepages") == "5\n"
