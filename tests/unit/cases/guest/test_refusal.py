"""Messages of QEMU and libvirt, as their versions word them, and others that must not be taken for them."""

import pytest

from hugepage_qa.cases.guest.refusal import (
    Meaning,
    find_meaning,
    refusal,
    without_process_ids,
)
from hugepage_qa.errors import InputError
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.qemu.guest.driver import GuestError

SHORT = [
    # libvirt 9.0 with QEMU 7.2
    "internal error: qemu unexpectedly closed the monitor: 2026-11-21T23:00:00.000000Z qemu-system-x86_64:"
    " unable to map backing store for guest RAM: Cannot allocate memory",
    # libvirt 10 and later
    "internal error: QEMU unexpectedly closed the monitor (vm='guest'): 2026-01-01T00:00:00.000000Z qemu-kvm:"
    " unable to map backing store for guest RAM: Cannot allocate memory",
    "internal error: process exited while connecting to monitor: qemu-kvm: unable to map backing store for guest RAM:"
    " Cannot allocate memory",
    # without libvirt
    "qemu-system-x86_64: unable to map backing store for guest RAM: Cannot allocate memory",
    # QEMU before 7.0, 7.0 and later
    "qemu-kvm: os_mem_prealloc: Insufficient free host memory pages available to allocate guest RAM",
    "qemu-system-x86_64: qemu_prealloc_mem: preallocating memory failed: Bad address",
    "object-add: qemu_prealloc_mem: preallocating memory failed: Cannot allocate memory",
    "qemu-system-x86_64: cannot set up guest memory 'pc.ram': Cannot allocate memory",
]
OTHERS = [
    (Meaning.NO_SUCH_SIZE, "internal error: Unable to find any usable hugetlbfs mount for 4096 KiB"),
    (Meaning.NO_MOUNT, "internal error: hugetlbfs filesystem is not mounted or disabled by administrator config"),
    (Meaning.MISALIGNED, "qemu-kvm: backend 'memory-backend-file' memory size must be multiple of 2 MiB"),
    (Meaning.NO_SUCH_NODE, "unsupported configuration: NUMA node 7 is unavailable"),
    (Meaning.NO_SUCH_NODE, "Invalid value '1-2' for 'cpuset.mems': Invalid argument"),
    (Meaning.NO_SUCH_NODE, "unsupported configuration: hugepages: node 2 not found"),
    (Meaning.NO_SUCH_NODE, "qemu-kvm: cannot bind memory to host NUMA nodes: Invalid argument"),
    (
        Meaning.KVM_WITHOUT_HUGE_PAGES,
        "qemu-system-s390x: Memory backing with 1M pages was specified, but KVM does not support this memory backing",
    ),
    (Meaning.KVM_WITHOUT_HUGE_PAGES, "This QEMU machine does not support huge page mappings"),
    (
        Meaning.NO_SUCH_DIRECTORY,
        "qemu-kvm: can't open backing store /mnt/absent for guest RAM: No such file or directory",
    ),
    (Meaning.NOT_PERMITTED, "qemu-kvm: can't open backing store /mnt/huge for guest RAM: Permission denied"),
    # QEMU before 8.1, and later
    (
        Meaning.NO_USERFAULTFD,
        "migrate-set-capabilities: Postcopy is not supported qemu-system-x86_64: postcopy_ram_supported_by_host:"
        " userfaultfd not available: Operation not permitted",
    ),
    (
        Meaning.NO_USERFAULTFD,
        "migrate-set-capabilities: Postcopy is not supported: Userfaultfd not available: Operation not permitted",
    ),
    (Meaning.QEMU_LOST, "migration failed: Unable to write to socket: Broken pipe qemu-kvm: failed to save"),
    (Meaning.QEMU_LOST, "migration failed: Unable to write to socket: Connection reset by peer"),
    (Meaning.QEMU_LOST, "operation failed: domain is no longer running"),
    (Meaning.QEMU_LOST, "operation failed: migration out job: unexpectedly failed"),
    (Meaning.QEMU_LOST, "operation failed: job 'migration out' unexpectedly failed"),
    (Meaning.QEMU_LOST, "operation failed: job 'migration out' failed: Unable to write to socket: Broken pipe"),
    (Meaning.QEMU_LOST, "internal error: qemu unexpectedly closed the monitor"),
    (Meaning.QEMU_LOST, "internal error: QEMU unexpectedly closed the monitor (vm='guest')"),
    (Meaning.EXCLUDE_EACH_OTHER, "object-add: 'prealloc=on' and 'reserve=off' are incompatible"),
    (
        Meaning.EXCLUDE_EACH_OTHER,
        "host-nodes must be empty for policy default, or you should explicitly specify a policy other than default",
    ),
    (Meaning.EXCLUDE_EACH_OTHER, "qemu-system-x86_64: host-nodes must be set for policy bind"),
    (
        Meaning.EXCLUDE_EACH_OTHER,
        "unsupported configuration: hugepages are not allowed with memory allocation ondemand",
    ),
    (
        Meaning.EXCLUDE_EACH_OTHER,
        "unsupported configuration: hugepages are not allowed with anonymous memory source",
    ),
    (Meaning.NO_SUCH_SIZE, "operation failed: page size 777 is not available on node 0"),
    (Meaning.NO_SUCH_NODE, "internal error: start cell 5 out of range (0-0)"),
    (Meaning.NO_SUCH_NODE, "invalid argument: start cell 5 out of range (0-1)"),
    (Meaning.NOT_CHANGEABLE, "Operation not supported: system pages pool can't be modified"),
    (Meaning.READ_ONLY, "operation forbidden: read only access prevents virNodeAllocPages"),
    (Meaning.NO_SUCH_SIZE, "XML error: hugepage size can't be zero"),
    (
        Meaning.NOT_PROBED,
        "internal error: Failed to start QEMU binary /run/bin/qemu-kvm for probing: env: 'python3': No such file or"
        " directory",
    ),
    # QEMU 7.2, of memory devices
    (Meaning.MISALIGNED, "device_add: address must be aligned to 0x200000 bytes"),
    (Meaning.MISALIGNED, "qemu-system-x86_64: -device pc-dimm: backend memory size must be multiple of 0x200000"),
    (Meaning.NO_SLOT, "device_add: no free slots available"),
    (
        Meaning.NO_ROOM,
        "device_add: not enough space, currently 0x8000000 in use of total space for memory devices 0x8000000",
    ),
    (Meaning.NO_ROOM, "device_add: no slots where allocated, please specify the 'slots' option"),
    (Meaning.PLACE_TAKEN, "device_add: slot 0 is busy"),
    (Meaning.PLACE_TAKEN, "device_add: address range conflicts with memory device id='dimm0'"),
    (Meaning.NO_SUCH_PLACE, "device_add: invalid slot number 4, valid range is [0-3]"),
    (
        Meaning.NO_SUCH_PLACE,
        "device_add: can't add memory device [0x200000:0x8000000], usable range for memory devices"
        " [0x100000000:0x118000000]",
    ),
    (
        Meaning.NO_SUCH_CELL,
        "device_add: 'DIMM property node has value 9' which exceeds the number of numa nodes: 1",
    ),
    (Meaning.NO_SUCH_CELL, "device_add: 'node' property has value '9', which exceedsthe number of numa nodes: 1"),
    (Meaning.NO_SUCH_CELL, "device_add: 'node' property has value '9', which exceeds the number of numa nodes: 1"),
    (Meaning.BAD_BLOCK, "device_add: 'block-size' property has to be a power of two"),
    (Meaning.BAD_BLOCK, "device_add: 'block-size' property has to be at least 0x100000"),
    (
        Meaning.BAD_BLOCK,
        "device_add: 'requested-size' property has to be multiples of 'block-size' (0x200000)",
    ),
    (
        Meaning.BAD_LABEL,
        "qemu-system-x86_64: -device nvdimm: Property 'nvdimm.label-size' (0x10000) is required at least 0x20000",
    ),
    (
        Meaning.BAD_LABEL,
        "qemu-system-x86_64: -device nvdimm: the size of memdev memory-nvdimm0 (0x8000000) is too small to contain"
        " nvdimm label (0x8000000) and aligned PMEM (0x200000)",
    ),
    (Meaning.NO_NVDIMMS, "device_add: nvdimm is not enabled: missing 'nvdimm' in '-M'"),
    # libvirt 11.3 and 9.0, of the same
    (
        Meaning.NO_SLOT,
        "unsupported configuration: count of memory devices requiring memory slots '5' exceeds slots count '4'",
    ),
    (
        Meaning.PLACE_TAKEN,
        "unsupported configuration: memory device address [0x100000000:0x108000000] overlaps with other memory device"
        " (0x100000000)",
    ),
    (Meaning.NO_SLOT, "unsupported configuration: memory device count '5' exceeds slots count '4'"),
    (Meaning.NO_SLOT, "operation failed: no free memory device slot available"),
    (
        Meaning.NO_ROOM,
        "unsupported configuration: Attaching memory device with size '131072' would exceed domain's maxMemory config"
        " size '393216'",
    ),
    (
        Meaning.NO_ROOM,
        "unsupported configuration: cannot use/hotplug a memory device when domain 'maxMemory' is not defined",
    ),
    (
        Meaning.PLACE_TAKEN,
        "unsupported configuration: memory device slot '0' is already being used by another memory device",
    ),
    (
        Meaning.PLACE_TAKEN,
        "unsupported configuration: memory device base '0x100000000' is already being used by another memory device",
    ),
    (Meaning.NO_SUCH_PLACE, "unsupported configuration: memory device slot '4' exceeds slots count '4'"),
    (
        Meaning.NO_SUCH_CELL,
        "can't add memory backend for guest node '9' as the guest has only '1' NUMA nodes configured",
    ),
    (
        Meaning.EXCLUDE_EACH_OTHER,
        "unsupported configuration: target NUMA node needs to be specified for memory device",
    ),
    (Meaning.BAD_BLOCK, "block size must be a power of two"),
    (Meaning.BAD_BLOCK, "block size too small, must be at least 2048KiB"),
    (Meaning.BAD_BLOCK, "requested size must be an integer multiple of block size"),
    (Meaning.BAD_LABEL, "XML error: nvdimm label must be at least 128KiB"),
    (Meaning.BAD_LABEL, "XML error: label size must be smaller than NVDIMM size"),
    (Meaning.EXCLUDE_EACH_OTHER, "path is required for model 'nvdimm'"),
    # QEMU 7.2, 8.1 and 10.0
    (Meaning.NOT_PLUGGED_OUT, "device_del: virtio based memory devices cannot be unplugged."),
    (Meaning.IN_USE, "device_del: virtio-mem device cannot get unplugged while 'size' != '0'"),
    (
        Meaning.IN_USE,
        "device_del: virtio-mem device cannot get unplugged while some of its memory is still plugged",
    ),
    (Meaning.MORE_THAN_THE_DEVICE, "qom-set: 'requested-size' cannot exceed the memory backend size(0x8000000)"),
    (Meaning.MORE_THAN_THE_DEVICE, "requested size must be smaller than or equal to @size (131072KiB)"),
    (Meaning.NO_DIRECT_IO, "qemu-kvm: -drive cache=none: Could not open 'a': filesystem does not support O_DIRECT"),
    # libvirt 9.0 with QEMU 10.0
    (Meaning.UNEXPLAINED, "An error occurred, but the cause is unknown"),
    (Meaning.MACHINE_EXHAUSTED, "qemu-kvm: -chardev socket: Failed to open file: Too many open files"),
    (Meaning.MACHINE_EXHAUSTED, "internal error: cannot fork child process: Cannot allocate memory"),
    (Meaning.MACHINE_EXHAUSTED, "qemu-kvm: qemu_thread_create: Resource temporarily unavailable"),
    (Meaning.MACHINE_EXHAUSTED, "qemu-system-x86_64: allocate 1073741824 bytes for jit buffer: Cannot allocate memory"),
    (Meaning.NOT_OFFERED, "unsupported configuration: memory hotplug isn't supported by this QEMU binary"),
    (Meaning.NOT_OFFERED, "unsupported configuration: virtio-mem is not supported by this QEMU binary"),
    (
        Meaning.NOT_OFFERED,
        "unsupported configuration: Emulator '/usr/libexec/qemu-kvm' does not support virt type 'kvm'",
    ),
    (Meaning.NOT_A_DEFINITION, "(domain_definition):1: Opening and ending tag mismatch: a line 1 and b"),
]
NOT_JUDGED = {
    Meaning.MACHINE_EXHAUSTED: InputError,
    Meaning.NOT_PROBED: InputError,
    Meaning.UNEXPLAINED: InputError,
    Meaning.NOT_OFFERED: CannotRun,
    Meaning.NO_DIRECT_IO: CannotRun,
}
UNKNOWN = [
    "",
    "internal error: qemu unexpectedly closed the monitor: something else",
    "unable to map backing store for guest RAM: Permission denied",
    "unable to map backing store for guest RAM: Invalid argument",
    "can't open backing store /dev/hugepages for guest RAM: Is a directory",
    "qemu_prealloc_mem: preallocating memory failed: Operation not permitted",
    "Could not access KVM kernel module: No such file or directory",
    "operation failed: domain 'guest' already exists",
    "Cannot allocate memory",
]


@pytest.mark.parametrize("message", SHORT)
def test_short_of_pages(message: str) -> None:
    assert find_meaning(message) is Meaning.SHORT_OF_PAGES


@pytest.mark.parametrize(("meaning", "message"), OTHERS)
def test_other_meanings(meaning: Meaning, message: str) -> None:
    assert find_meaning(message) is meaning


@pytest.mark.parametrize("message", UNKNOWN)
def test_what_means_something_else(message: str) -> None:
    assert find_meaning(message) is None


@pytest.mark.parametrize(
    "message", [*SHORT, *UNKNOWN, *(text for meaning, text in OTHERS if meaning not in NOT_JUDGED)]
)
def test_what_a_case_judges(message: str) -> None:
    assert isinstance(refusal(message), GuestError)


@pytest.mark.parametrize(("meaning", "message"), [one for one in OTHERS if one[0] in NOT_JUDGED])
def test_neither_an_exhausted_machine_nor_a_lesser_qemu_is_a_refusal(meaning: Meaning, message: str) -> None:
    assert isinstance(refusal(message), NOT_JUDGED[meaning])


def test_a_reason_is_the_same_whatever_process_it_was() -> None:
    messages = [f"cannot limit locked memory of process {pid} to 9: Operation not permitted" for pid in (7, 12345)]
    assert {without_process_ids(message) for message in messages} == {
        "cannot limit locked memory of process to 9: Operation not permitted"
    }
    assert find_meaning(messages[0]) is Meaning.MAY_NOT_LOCK
