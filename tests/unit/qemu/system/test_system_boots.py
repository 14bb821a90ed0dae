"""A real system machine: built, booted through its boot loader, rebooted, cut off, gone."""

import os
from collections.abc import Iterator

import pytest
from tests.unit.qemu.system.bound_machine import removed_at_the_end

from hugepage_qa.cache import cache_directory
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.system.system_launch import SystemOptions, bring_up
from hugepage_qa.qemu.system.system_machine import SystemMachine
from hugepage_qa.sizes import GIB

pytestmark = pytest.mark.boots

# the whole suite may run at the same time
DEADLINE = 900.0


@pytest.fixture(scope="module")
def machine() -> Iterator[SystemMachine]:
    # what the kernel and the boot loader put below 2 GiB, at random places, may be in the way of a gigantic page there
    words = "hugepagesz=1G hugepages=1 thp_anon=64K:always;128K:inherit"
    options = SystemOptions(memory=(5 * GIB, GIB), words=words, name=f"test-{os.getpid()}")
    with removed_at_the_end(f"test-{os.getpid()}"):
        yield bring_up(cache_directory(), options, deadline=DEADLINE, report=print)


def read(machine: SystemMachine, path: str) -> str:
    return machine.shell.run(["cat", path]).strip()


def test_arguments_went_through_the_boot_loader(machine: SystemMachine) -> None:
    assert machine.shell.run(["cat", "/proc/cmdline"]).startswith("BOOT_IMAGE=")
    assert read(machine, "/proc/cmdline").endswith(f"console=ttyS0 no_timer_check {machine.record.words}")
    assert read(machine, "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages") == "1"


def test_nodes_are_those_asked_for(machine: SystemMachine) -> None:
    assert read(machine, "/sys/devices/system/node/has_memory") == "0-1"
    sizes = machine.shell.run(["numactl", "--hardware"]).splitlines()
    node0, node1 = (int(line.split()[-2]) for line in sizes if " size:" in line)
    # what the kernel keeps for itself is missing
    assert 4900 < node0 <= 5120
    assert 900 < node1 <= 1024


def test_no_service_failed(machine: SystemMachine) -> None:
    assert machine.shell.run(["systemctl", "--failed", "--no-legend"]) == ""


def test_changed_arguments_show_after_a_reboot(machine: SystemMachine) -> None:
    before = machine.wait()
    edit = 's/^GRUB_CMDLINE_LINUX="\\(.*\\)"$/GRUB_CMDLINE_LINUX="\\1 hugepagesz=2M hugepages=7"/'
    machine.shell.run(["sed", "-i", edit, "/etc/default/grub"])
    machine.shell.run(["update-grub"], timeout=DEADLINE)
    assert machine.reboot(DEADLINE) != before
    assert read(machine, "/proc/cmdline").endswith("hugepagesz=2M hugepages=7")
    assert read(machine, "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages") == "7"


def test_flushed_files_survive_a_power_cut_and_no_others(machine: SystemMachine) -> None:
    machine.shell.run(["sh", "-c", "echo kept >/root/kept && sync && echo lost >/root/lost"])
    machine.power_cut()
    assert not machine.running
    with pytest.raises(InputError, match="cannot be reached"):
        machine.shell.run(["true"])
    machine.power_on(DEADLINE)
    assert machine.shell.run(["ls", "/root"]) == "kept\n"


def test_reset_is_another_boot(machine: SystemMachine) -> None:
    before = machine.wait()
    assert machine.reset(DEADLINE) != before
