"""Real machines with the distribution's kernels: what init.sh prints is what the kernel shows."""

import pytest

from hugepage_qa.qemu.boards import BOARDS, find_board
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.lost_machine import Loss, MachineLost
from hugepage_qa.qemu.packages import cache_directory, distribution_kernel
from hugepage_qa.qemu.probe_machine import Lab
from hugepage_qa.qemu.virtual_machine import VirtualMachine
from hugepage_qa.sizes import GIB

pytestmark = pytest.mark.boots

CPUS = [(board.architecture, cpu) for board in BOARDS.values() for cpu in board.cpus]

# ASCII alone: an s390x kernel takes a line with any other byte for EBCDIC
# quotes, backslashes, tabs and control characters go through QEMU, kernel, awk, terminal and JSON
HARD_WORDS = 'foo="a  b" c=\\d\\n\\" \te=\x01\x1f f=%s&x'


def kernel(architecture: str) -> KernelImage:
    return distribution_kernel(architecture, cache_directory(), report=lambda _: None)


@pytest.fixture(scope="module")
def lab() -> Lab:
    return Lab(cache_directory(), deadline=180)


@pytest.mark.parametrize(("architecture", "cpu"), CPUS)
def test_machine_shows_its_facts(lab: Lab, architecture: str, cpu: str) -> None:
    boot = lab.boot(VirtualMachine(kernel(architecture), cpu, (2 * GIB,), HARD_WORDS))
    assert boot.tree.read("proc/cmdline") == f"{boot.qemu_command[-1]}\n"
    assert boot.tree.read("proc/sys/kernel/arch") == f"{architecture}\n"
    # TCG has no EDAT, and a kernel without it has no huge pages of any kind
    assert bool(boot.tree.names("sys/kernel/mm/transparent_hugepage/khugepaged")) is (architecture != "s390x")
    for path in ("dmesg", "proc/meminfo", "proc/zoneinfo", "proc/vmstat", "proc/self/smaps", "proc/1/comm"):
        assert boot.tree.read(path), path
    # KernelPageSize of the first mapping only
    assert (boot.tree.read("proc/self/smaps") or "").count("VmFlags") == 1


@pytest.mark.parametrize("architecture", [name for name, board in BOARDS.items() if board.max_nodes > 1])
@pytest.mark.parametrize("memory", [(GIB, GIB), (2 * GIB, 0)], ids=["two", "memoryless"])
def test_nodes(lab: Lab, architecture: str, memory: tuple[int, ...]) -> None:
    board = find_board(architecture)
    boot = lab.boot(VirtualMachine(kernel(architecture), board.default_cpu, memory))
    assert boot.tree.read("sys/devices/system/node/online") == "0-1\n"
    shown = boot.tree.read("sys/devices/system/node/has_memory")
    assert shown == ("0-1\n" if all(memory) else "0\n")


def loss_of(lab: Lab, machine: VirtualMachine) -> MachineLost:
    with pytest.raises(MachineLost) as caught:
        lab.boot(machine)
    return caught.value


def test_kernel_that_panics(lab: Lab) -> None:
    lost = loss_of(lab, VirtualMachine(kernel("x86_64"), "max", (GIB,), "mem=24M"))
    assert str(lost) == "the kernel panicked: Kernel panic - not syncing: System is deadlocked on memory"


def test_kernel_that_dies_before_its_console_driver_says_why(lab: Lab) -> None:
    assert loss_of(lab, VirtualMachine(kernel("aarch64"), "max", (GIB,), "mem=40M")).loss is Loss.PANICKED


def test_emulator_that_refuses(lab: Lab) -> None:
    lost = loss_of(lab, VirtualMachine(kernel("x86_64"), "max", (900 << 40,)))
    assert lost.loss is Loss.EMULATOR_ENDED
    assert "memory" in str(lost)
