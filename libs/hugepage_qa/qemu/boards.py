"""The table of QEMU machines: everything in which the architectures of a probe machine differ is data here."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hugepage_qa.errors import InputError
from hugepage_qa.sizes import GIB, KIB, MIB


@dataclass(frozen=True)
class Cpu:
    """One CPU model of a board, chosen for what it does to huge pages."""

    name: str
    qemu_cpu: str
    """Value of QEMU's ``-cpu`` under TCG."""
    features: frozenset[str]
    """What the page tables of this CPU can do, in the words of /proc/cpuinfo where it has any."""
    mmu: str
    """Kind of page table: x86, 4K (arm64 granule), radix, hash, s390x."""
    kvm_inside: str | None = None
    """The same value for a machine in which KVM runs guests; None where TCG has nothing for it."""
    machine_options: tuple[str, ...] = ()
    """Further properties of ``-machine`` that this CPU model needs."""
    kvm_cpu: str | None = None
    """Value of ``-cpu`` under KVM; None where KVM would not give the same page sizes."""
    host_flags: frozenset[str] = frozenset()
    """Flags that /proc/cpuinfo of the host must show before KVM gives the same page sizes."""


@dataclass(frozen=True)
class Board:
    """A QEMU machine and what the distributions call its architecture."""

    architecture: str
    """What ``uname -m`` prints."""
    qemu: str
    """The emulator's program name."""
    machine: str
    console: str
    """The kernel's name of the serial port."""
    serial: tuple[str, ...]
    """QEMU arguments that connect that port to the character device ``console``."""
    cpus: Mapping[str, Cpu]
    default_cpu: str
    command_line_size: int
    """COMMAND_LINE_SIZE of the kernel, including the terminating NUL."""
    max_nodes: int
    """NUMA nodes that the machine can have."""
    debian_architecture: str
    debian_kernel: str
    """Metapackage whose Depends names the current kernel."""
    debian_qemu: str
    """Package that holds the emulator on Debian."""
    rpm_qemu: str
    """Package that holds the emulator on Fedora."""
    base_page: int
    """Base page in bytes of the distributions' kernels, unless the kernel's configuration names another."""
    ram_start: int = 0
    """Physical address of the first byte of RAM."""
    ram_hole: tuple[int, int, int] | None = None
    """(limit, end, resume): with RAM of ``limit`` bytes or more it stops at ``end`` and goes on at ``resume``."""
    virtual_words: str = ""
    """Kernel words without which a machine that is starved of CPU time dies of its emulated devices."""
    second_port: tuple[str, ...] = ()
    """QEMU arguments of a further serial port, which is connected to the character device ``second``; none: none."""
    second_port_device: str = ""
    """The kernel's file of it."""
    virtio_bus: str = "pci"
    """How QEMU calls the bus of virtio devices: ``virtio-blk-<bus>``."""
    early_console: str = ""
    """Kernel words that make messages appear before the serial driver is up: an early death stays readable."""
    kvm_machine_options: tuple[str, ...] = field(default=())
    """Further properties of ``-machine`` under KVM."""
    tcg_options: tuple[str, ...] = ()
    """Further properties of ``-accel tcg``."""

    @property
    def kernel_words(self) -> str:
        """The kernel words that every machine gets before those that it is for."""
        return f"console={self.console} {self.virtual_words}".strip()

    @property
    def rpm_architecture(self) -> str:
        """The name of the architecture in RPM repositories; it happens to be the kernel's own."""
        return self.architecture


def _by_name(*cpus: Cpu) -> Mapping[str, Cpu]:
    return {cpu.name: cpu for cpu in cpus}


_X86_64 = Board(
    architecture="x86_64",
    qemu="qemu-system-x86_64",
    # microvm starts faster on paper, but hung under TCG in two runs of three
    machine="q35",
    console="ttyS0",
    # the kernel counts timer interrupts while it spins for 10 ticks, and panics when an emulator that gets no CPU time
    # delivered none: "IO-APIC + timer doesn't work!". As a guest of KVM it skips the test (arch/x86/kernel/kvm.c)
    virtual_words="no_timer_check",
    early_console="earlyprintk=ttyS0,115200",
    serial=("-serial", "chardev:console"),
    second_port=("-device", "isa-serial,chardev=second"),
    second_port_device="/dev/ttyS1",
    cpus=_by_name(
        Cpu(
            "max",
            # erms, fsrm: with these the kernel clears and copies pages by bytes ("rep stosb"), in TCG one step each:
            # 4 times slower. model, stepping: of the first K8, for of later ones the kernel takes rep_good for granted
            # (arch/x86/kernel/cpu/amd.c init_amd_k8()) and 6.1 copies by words ("rep movsq"): 5 times slower.
            # svm: KVM in the machine finds it and works, until it overruns the machine's stack (QEMU 7.2, kvm_amd of
            # 6.1) and the machine panics. Without svm the highest extended CPUID leaf falls, and then Debian 12
            # cannot read /proc/self/mountinfo: min-xlevel keeps it
            "max,-erms,-fsrm,-svm,min-xlevel=0x8000000a,model=4,stepping=1",
            frozenset({"pse", "pdpe1gb"}),
            "x86",
            # guests of a few instructions it ran thousands of times, one after the other
            kvm_inside="max,-erms,-fsrm,min-xlevel=0x8000000a,model=4,stepping=1",
            kvm_cpu="host",
            host_flags=frozenset({"pse", "pdpe1gb"}),
        ),
        # an x86 machine without 1 GiB pages
        Cpu("qemu64", "qemu64", frozenset({"pse"}), "x86", kvm_cpu="qemu64", host_flags=frozenset({"pse"})),
    ),
    default_cpu="max",
    command_line_size=2048,
    max_nodes=128,
    debian_architecture="amd64",
    # the same version as linux-image-amd64 with fewer drivers: it boots faster
    debian_kernel="linux-image-cloud-amd64",
    debian_qemu="qemu-system-x86",
    rpm_qemu="qemu-system-x86-core",
    base_page=4 * KIB,
    # q35 keeps the addresses below 4 GiB for devices
    ram_hole=(2816 * MIB, 2 * GIB, 4 * GIB),
)

_AARCH64 = Board(
    architecture="aarch64",
    qemu="qemu-system-aarch64",
    machine="virt",
    console="ttyAMA0",
    early_console="earlycon",
    serial=("-serial", "chardev:console"),
    # before QEMU 9.0 the board itself has one port alone
    second_port=("-device", "pci-serial,chardev=second"),
    second_port_device="/dev/ttyS0",
    cpus=_by_name(
        # SVE and the architected pointer authentication cost TCG much time and change no page size
        # MTE is there for memory that is mapped with PROT_MTE
        Cpu("max", "max,sve=off,pauth-impdef=on", frozenset(), "4K", machine_options=("mte=on",), kvm_cpu="host")
    ),
    default_cpu="max",
    command_line_size=2048,
    max_nodes=128,
    debian_architecture="arm64",
    debian_kernel="linux-image-arm64",
    debian_qemu="qemu-system-arm",
    rpm_qemu="qemu-system-aarch64-core",
    base_page=4 * KIB,
    ram_start=GIB,
    kvm_machine_options=("gic-version=host",),
)

# TCG implements none of these mitigations and QEMU refuses to start while they are asked for
_PSERIES_TCG = ("cap-cfpc=broken", "cap-sbbc=broken", "cap-ibs=broken")

_PPC64LE = Board(
    architecture="ppc64le",
    qemu="qemu-system-ppc64",
    # the small firmware halves the time to the kernel's first line; SLOF takes seconds under TCG
    machine="pseries,x-vof=on",
    # before QEMU 9.1 (82676f1fc4) a tlbie does not wait for other processors: with a thread of its own one of them goes
    # on writing to a page that has moved meanwhile, and what it wrote is lost
    tcg_options=("thread=single",),
    console="hvc0",
    serial=("-device", "spapr-vty,chardev=console"),
    second_port=("-device", "spapr-vty,chardev=second"),
    second_port_device="/dev/hvc1",
    cpus=_by_name(
        Cpu("power9", "power9", frozenset(), "radix", machine_options=_PSERIES_TCG),
        Cpu(
            "power8",
            "power8",
            frozenset(),
            "hash",
            # without it the hash page table offers the guest no page larger than 64 KiB
            machine_options=(*_PSERIES_TCG, "cap-hpt-max-page-size=16M"),
        ),
    ),
    default_cpu="power9",
    command_line_size=2048,
    max_nodes=128,
    debian_architecture="ppc64el",
    debian_kernel="linux-image-powerpc64le",
    debian_qemu="qemu-system-ppc",
    rpm_qemu="qemu-system-ppc-core",
    base_page=64 * KIB,
)

_S390X = Board(
    architecture="s390x",
    qemu="qemu-system-s390x",
    machine="s390-ccw-virtio",
    console="ttysclp0",
    early_console="earlyprintk",
    serial=("-device", "sclpconsole,chardev=console"),
    # a second console of SCLP works by lines: virtio alone
    virtio_bus="ccw",
    cpus=_by_name(
        # TCG has no EDAT: no huge pages at all. KVM may have it, so it is not the same machine.
        Cpu("max", "max", frozenset(), "s390x")
    ),
    default_cpu="max",
    command_line_size=4096,
    max_nodes=1,
    debian_architecture="s390x",
    debian_kernel="linux-image-s390x",
    debian_qemu="qemu-system-misc",
    rpm_qemu="qemu-system-s390x-core",
    base_page=4 * KIB,
)

BOARDS: Mapping[str, Board] = {board.architecture: board for board in (_X86_64, _AARCH64, _PPC64LE, _S390X)}


def find_board(architecture: str) -> Board:
    """Return the board of ``architecture`` (what ``uname -m`` prints); InputError lists the known ones."""
    try:
        return BOARDS[architecture]
    except KeyError:
        raise InputError(f"architecture {architecture!r}: expected one of {', '.join(BOARDS)}") from None


def find_cpu(board: Board, name: str | None) -> Cpu:
    """Return CPU model ``name`` of ``board``, its default one for None; InputError lists the known ones.

    Other CPU models of QEMU are not accepted: which page sizes they have is not known here.
    """
    try:
        return board.cpus[name or board.default_cpu]
    except KeyError:
        known = ", ".join(board.cpus)
        raise InputError(f"CPU {name!r} of {board.architecture}: expected one of {known}") from None
