"""What the messages with which QEMU and libvirt refuse a guest mean, whatever version words them."""

import enum
import re

from hugepage_qa.errors import InputError
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.qemu.guest.driver import GuestError


class Meaning(enum.Enum):
    """Why a guest was refused."""

    SHORT_OF_PAGES = "not enough free huge pages"
    NO_MOUNT = "no hugetlbfs is mounted"
    NO_SUCH_SIZE = "no huge pages of this size"
    NO_SUCH_DIRECTORY = "the directory for its memory is not there"
    MORE_THAN_THE_DEVICE = "more memory than the device has"
    IN_USE = "the guest uses memory of the device"
    NOT_PLUGGED_OUT = "this QEMU plugs no such device out"
    MISALIGNED = "memory, or its address, is no multiple of the page size"
    NO_SLOT = "the guest has no slot left for another memory device"
    NO_ROOM = "the guest cannot have so much more memory"
    PLACE_TAKEN = "another memory device has this slot, address or memory"
    NO_SUCH_PLACE = "the guest has no such slot, and no memory devices at such an address"
    NO_SUCH_CELL = "the guest has no such NUMA cell"
    BAD_BLOCK = "a block of virtio-mem that there cannot be, or no whole number of them"
    BAD_LABEL = "a label that an NVDIMM cannot have"
    NO_NVDIMMS = "the board of the guest has no NVDIMMs"
    NO_SUCH_NODE = "no such NUMA node"
    EXCLUDE_EACH_OTHER = "options that exclude each other, or need another one"
    READ_ONLY = "a client that may only read changes nothing"
    NOT_A_NUMBER = "no number of pages, and no size of one"
    NOT_CHANGEABLE = "a pool of base pages is not changed"
    KVM_WITHOUT_HUGE_PAGES = "KVM backs no guest with huge pages here"
    MORE_THAN_ADDRESSABLE = "more memory than the machine can have"
    MAY_NOT_LOCK = "nobody may lock so much memory here"
    NOT_PERMITTED = "its user may not have pages of this hugetlbfs"
    NOT_A_DEFINITION = "not a valid definition of a guest"
    NO_DIRECT_IO = "the file system with the guest's disk has no O_DIRECT"
    NOT_OFFERED = "this QEMU has no such machine, CPU, accelerator or device"
    NO_USERFAULTFD = "the kernel gives its user no userfaultfd, so no post-copy"
    QEMU_LOST = "a QEMU, here or where a guest was sent to, is gone without a word"
    NOT_PROBED = "libvirt cannot ask its emulator what it has"
    UNEXPLAINED = "libvirt itself does not know why"
    MACHINE_EXHAUSTED = "the machine is out of processes, open files or ordinary memory"


#: meaning -> the wordings that have it; none may match a message with another meaning
_WORDINGS: tuple[tuple[Meaning, str], ...] = (
    # mmap(2), when it reserves: QEMU 1.x to 10, with or without the words around it that libvirt adds
    (Meaning.SHORT_OF_PAGES, r"unable to map backing store for guest RAM: Cannot allocate memory"),
    (Meaning.SHORT_OF_PAGES, r"unable to map backing store for hugepages: Cannot allocate memory"),
    # touching the pages: os_mem_prealloc() before QEMU 7.0, qemu_prealloc_mem() since; a SIGBUS is EFAULT since 7.0
    (Meaning.SHORT_OF_PAGES, r"Insufficient free host memory pages available to allocate guest RAM"),
    (Meaning.SHORT_OF_PAGES, r"preallocating memory failed: (?:Bad address|Cannot allocate memory)"),
    # memfd of huge pages, and a file in hugetlbfs that fallocate(2) fills
    (Meaning.SHORT_OF_PAGES, r"cannot set up guest memory '[^']*': Cannot allocate memory"),
    (Meaning.SHORT_OF_PAGES, r"failed to (?:resize memfd|allocate memory).*: (?:Cannot allocate memory|No space left)"),
    # hugetlb_file_setup() reserves nothing for a memfd, ftruncate(2) does not fail: the map does, as above
    (Meaning.NO_SUCH_SIZE, r"Unable to find any usable hugetlbfs mount for \d+ KiB"),
    (Meaning.NO_SUCH_SIZE, r"failed to create memfd.*: (?:Invalid argument|No such file or directory|No such device)"),
    (Meaning.NO_SUCH_SIZE, r"[Hh]ugepage(?:s)?:? .*size can't be zero|hugepage size can't be zero"),
    # virNodeGetFreePages(), virNodeAllocPages()
    (Meaning.NO_SUCH_SIZE, r"page size \d+ is not available on node -?\d+"),
    (Meaning.NO_SUCH_NODE, r"start cell \d+ out of range"),
    (Meaning.NOT_CHANGEABLE, r"system pages pool can't be modified"),
    # of virsh
    (Meaning.NOT_A_NUMBER, r"umeric value '[^']*' for <\w+> option is malformed or out of range"),
    (Meaning.READ_ONLY, r"read only access prevents "),
    (Meaning.NO_MOUNT, r"hugetlbfs filesystem is not mounted(?: or disabled by administrator config)?"),
    (Meaning.NO_MOUNT, r"hugetlbfs filesystem disabled by administrator config"),
    # open(2), mkstemp(3)
    (Meaning.NO_SUCH_DIRECTORY, r"can't (?:open|create) backing store \S+ for guest RAM: No such file or directory"),
    # virtio_mem_set_requested_size(), and virDomainMemoryDefValidate() of libvirt
    (Meaning.MORE_THAN_THE_DEVICE, r"requested-size' cannot exceed the memory backend size"),
    (Meaning.MORE_THAN_THE_DEVICE, r"requested size must be smaller than or equal to @size"),
    # virtio_mem_unplug_request_check(), since QEMU 8.1; before the board refuses
    (Meaning.IN_USE, r"virtio-mem device cannot get unplugged while (?:some of its memory is|'size' != )"),
    (Meaning.NOT_PLUGGED_OUT, r"virtio based memory devices cannot be unplugged"),
    # since QEMU 8.2 of each backend, and ever of that of a device
    (Meaning.MISALIGNED, r"memory size must be multiple of \d"),
    # memory_device_get_free_addr(), pc_dimm_get_free_slot(), and what libvirt says before it asks QEMU
    (Meaning.MISALIGNED, r"address must be aligned to 0x"),
    (Meaning.NO_SLOT, r"no free (?:memory device )?slots? available"),
    (Meaning.NO_SLOT, r"(?:memory device count|memory devices requiring memory slots) '\d+' exceeds slots count"),
    (Meaning.NO_ROOM, r"not enough space, currently 0x\w+ in use of total space for memory devices"),
    (Meaning.NO_ROOM, r"memory device total size exceeds hotplug space"),
    (Meaning.NO_ROOM, r"cannot use/hotplug a memory device when domain 'maxMemory' is not defined"),
    (Meaning.NO_ROOM, r"Attaching memory device with size '\d+' would exceed domain's maxMemory config size"),
    (Meaning.NO_ROOM, r"memory devices .*are not enabled, please specify the maxmem option"),
    (Meaning.NO_ROOM, r"no slots wh?ere allocated, please specify the 'slots' option"),
    (Meaning.PLACE_TAKEN, r"slot \d+ is busy|address range conflicts with memory device id="),
    (Meaning.PLACE_TAKEN, r"memory device (?:slot|base) '\w+' is already being used by another memory device"),
    (Meaning.PLACE_TAKEN, r"memory device address \[[^]]*\] overlaps with other memory device"),
    (Meaning.PLACE_TAKEN, r"can't use already busy memdev: "),
    (Meaning.NO_SUCH_PLACE, r"invalid slot number \d+, valid range|memory device slot '\d+' exceeds slots count"),
    (Meaning.NO_SUCH_PLACE, r"can't add memory device \[[^]]*\], usable range for memory devices"),
    # QEMU 7.2 leaves out a space
    (Meaning.NO_SUCH_CELL, r"property (?:node )?has value '?\d+'?,? which ?exceeds ?the number of numa nodes"),
    (Meaning.NO_SUCH_CELL, r"guest node '\d+' as the guest has only '\d+' NUMA nodes"),
    (Meaning.EXCLUDE_EACH_OTHER, r"target NUMA node needs to be specified for memory device"),
    # virtio_mem_set_block_size(), virtio_mem_device_realize(); virDomainMemoryDefValidate() of libvirt
    (Meaning.BAD_BLOCK, r"'block-size' property has to be (?:at least|a power of two)"),
    (Meaning.BAD_BLOCK, r"property (?:memdev size )?has to be multiples? of 'block-size'"),
    (Meaning.BAD_BLOCK, r"block size must be a power of two|block size too small, must be at least \d+KiB"),
    (Meaning.BAD_BLOCK, r"requested size must be an integer multiple of block size"),
    # nvdimm_set_label_size(), nvdimm_prepare_memory_region()
    (Meaning.BAD_LABEL, r"label-size' \(0x\w+\) is required (?:to be )?at least"),
    (Meaning.BAD_LABEL, r"is too small to contain nvdimm label"),
    (Meaning.BAD_LABEL, r"nvdimm label must be at least \d+KiB|label size must be smaller than NVDIMM size"),
    (Meaning.NO_NVDIMMS, r"nvdimm is not enabled: missing 'nvdimm' in '-M'"),
    (Meaning.EXCLUDE_EACH_OTHER, r"path is required for model 'nvdimm'"),
    (Meaning.NO_SUCH_NODE, r"NUMA node \d+ is unavailable|hugepages: node \d+ not found"),
    (Meaning.NO_SUCH_NODE, r"cannot bind memory to host NUMA nodes: Invalid argument"),
    (Meaning.NO_SUCH_NODE, r"Invalid value for property 'host-nodes'|host-nodes.*out of range"),
    # the control group of a guest, for all its cells: libvirt before 9.4
    (Meaning.NO_SUCH_NODE, r"Invalid value '[^']*' for 'cpuset.mems': Invalid argument"),
    # since QEMU 6.1; before reserve= is no property
    (Meaning.EXCLUDE_EACH_OTHER, r"'prealloc=on' and 'reserve=off' are incompatible"),
    # qemuValidateDomainDefMemory() of libvirt
    (Meaning.EXCLUDE_EACH_OTHER, r"hugepages are not allowed with (?:memory allocation ondemand|anonymous memory)"),
    (Meaning.EXCLUDE_EACH_OTHER, r"host-nodes must be (?:empty for policy default|set for policy \w+)"),
    # target/s390x/kvm: kvm.hpage is 0
    (Meaning.KVM_WITHOUT_HUGE_PAGES, r"Memory backing with [12][MG] pages was specified, but KVM does not support"),
    (Meaning.KVM_WITHOUT_HUGE_PAGES, r"This QEMU machine does not support huge page mappings"),
    (Meaning.MORE_THAN_ADDRESSABLE, r"Address space limit .* phys-bits too low|exceeds? .*maximum supported"),
    # without CAP_SYS_RESOURCE, in containers
    (Meaning.MAY_NOT_LOCK, r"cannot limit locked memory .*Operation not permitted|locking memory failed"),
    # open(2) in the mount
    (Meaning.NOT_PERMITTED, r"can't open backing store \S+ for guest RAM: Permission denied"),
    # userfaultfd(2) without a privilege; before QEMU 8.1 in front of this
    (Meaning.NO_USERFAULTFD, r"[Uu]serfaultfd not available: Operation not permitted"),
    # the other end of the socket, as QEMU and libvirt see it; libvirt quotes the job since 9.1
    (Meaning.QEMU_LOST, r"migration (?:failed|out' failed): .*(?:Broken pipe|Connection reset by peer)"),
    (Meaning.QEMU_LOST, r"migration out(?: job:|') unexpectedly failed|domain is no longer running"),
    # it says nothing when it is killed
    (Meaning.QEMU_LOST, r"(?:qemu|QEMU) unexpectedly closed the monitor(?: \(vm='[^']*'\))?$"),
    # open(2) of a disk
    (Meaning.NO_DIRECT_IO, r"does not support O_DIRECT"),
    # of libvirt, which asks QEMU what it has; under QEMU alone we ask
    (Meaning.NOT_OFFERED, r"(?:is not|isn't) supported (?:by|with) this QEMU|Emulator '[^']*' does not support"),
    (Meaning.NOT_A_DEFINITION, r"XML error:|\(domain_definition\)|unsupported configuration:"),
    (Meaning.NOT_PROBED, r"Failed to start QEMU binary \S+ for probing|Failed to probe QEMU binary"),
    # virErrorMsg(): no error was set; seen of libvirt 9.0 with QEMU 10
    (Meaning.UNEXPLAINED, r"An error occurred, but the cause is unknown"),
    # EMFILE, ENFILE, EAGAIN of fork(2) and pthread_create(3); no mapping of guest memory fails with them
    (Meaning.MACHINE_EXHAUSTED, r"Too many open files|Resource temporarily unavailable"),
    (Meaning.MACHINE_EXHAUSTED, r"cannot fork|fork: Cannot allocate memory|qemu_thread_create: |pthread_create failed"),
    # what TCG translates, GLib's heap, libvirt's heap
    (Meaning.MACHINE_EXHAUSTED, r"jit buffer|dynamic translator buffer|failed to allocate \d+ bytes|^out of memory"),
)


_PROCESS = re.compile(r"\bprocess \d+")


def without_process_ids(message: str) -> str:
    """Return ``message`` as it is each time: a report shows one line for all that it kept out."""
    return _PROCESS.sub("process", message)


def find_meaning(message: str) -> Meaning | None:
    """Return what ``message`` means, None for one that nobody knows. The first wording that is in it counts."""
    return next((meaning for meaning, wording in _WORDINGS if re.search(wording, message)), None)


def refusal(message: str) -> Exception:
    """Return what to raise for ``message``: a GuestError, by which a case is judged, an InputError or CannotRun.

    An exhausted machine starts no QEMU, and that says nothing of huge pages; nor does an error that nobody can tell.
    What QEMU was built without, or the file system has not, cannot run.
    """
    match find_meaning(message):
        case Meaning.MACHINE_EXHAUSTED | Meaning.NOT_PROBED | Meaning.UNEXPLAINED:
            return InputError(message)
        case Meaning.NOT_OFFERED | Meaning.NO_DIRECT_IO:
            return CannotRun(message)
    return GuestError(message)
