"""What a guest is, as far as huge pages are concerned, and what it must take of each pool; sizes in bytes.

What it must take is computed from its description: never read from a running one.
"""

import enum
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hugepage_qa.errors import InputError
from hugepage_qa.sizes import format_size

#: for memory devices, in a guest with a max_memory
SLOTS = 4

_NAME = re.compile(r"[a-z][a-z0-9-]{0,40}")


class Source(enum.Enum):
    """Where the memory comes from (libvirt: memoryBacking/source)."""

    ANONYMOUS = "anonymous"
    FILE = "file"
    MEMFD = "memfd"


class Access(enum.Enum):
    """How QEMU maps it (memoryBacking/access)."""

    PRIVATE = "private"
    SHARED = "shared"


class Allocation(enum.Enum):
    """When the pages are taken: all at the start, or each when the guest touches it (memoryBacking/allocation)."""

    IMMEDIATE = "immediate"
    ON_DEMAND = "ondemand"


class DeviceKind(enum.Enum):
    """Memory that a guest has besides that of its cells, from its start on or plugged in while it runs."""

    DIMM = "dimm"
    VIRTIO_MEM = "virtio-mem"
    #: whose content stays in a file
    NVDIMM = "nvdimm"


class OnCrash(enum.Enum):
    """What becomes of a guest whose kernel panics, which a device of it tells (libvirt: on_crash)."""

    DESTROY = "destroy"
    RESTART = "restart"
    PRESERVE = "preserve"


@dataclass(frozen=True)
class Cell:
    """A NUMA cell of the guest: ``memory`` bytes in pages of ``page`` bytes of the host, None for ordinary pages.

    ``node`` is the host's node that they must come from (libvirt: numatune/memnode, strict), None for any.
    """

    memory: int
    page: int | None
    node: int | None = None

    def __post_init__(self) -> None:
        """Raises InputError for what can be no cell."""
        _check_memory(self.memory, self.page)
        if self.node is not None and self.node < 0:
            raise InputError(f"node {self.node}: expected the number of a NUMA node, 0 or more")


@dataclass(frozen=True)
class MemoryDevice:
    """Memory of the cell ``cell`` in a device; a virtio-mem device has ``requested`` bytes of it.

    An NVDIMM without a ``page`` is in an ordinary file, with one in a file of hugetlbfs that stays when the guest ends.
    """

    name: str
    kind: DeviceKind
    memory: int
    page: int | None
    cell: int = 0
    requested: int = 0
    #: what it has another way than its guest: the host's node, how it is mapped, and whether its content is discarded
    node: int | None = None
    access: Access | None = None
    discard: bool | None = None

    def __post_init__(self) -> None:
        """Raises InputError for what can be no device."""
        _check_name("memory device", self.name)
        _check_memory(self.memory, self.page)
        if not 0 <= self.requested <= self.memory:
            raise InputError(f"requested {self.requested} bytes: expected at most the {self.memory} of the device")


@dataclass(frozen=True)
class GuestDescription:
    """A guest. ``max_memory`` bytes, with devices that are plugged in later, need a cell each to be plugged into."""

    name: str
    cells: tuple[Cell, ...]
    source: Source = Source.ANONYMOUS
    access: Access = Access.PRIVATE
    allocation: Allocation = Allocation.IMMEDIATE
    #: that touch the pages at the start; None leaves it to QEMU
    threads: int | None = None
    #: whether it is all locked in memory (mlockall(2))
    locked: bool = False
    #: whether what is in the pages need not be kept at the end
    discard: bool = False
    max_memory: int | None = None
    balloon: bool = False
    #: whether its balloon tells the host which of its pages are free
    reports_free_pages: bool = False
    #: whether it boots again in the same QEMU when it is reset or reboots; else it ends
    reboots: bool = False
    #: None without the device that tells: its kernel reboots by itself
    on_crash: OnCrash | None = None
    #: whether it has a network device that another process serves, which has the guest's memory for that (vhost-user)
    has_peer: bool = False
    #: whether it has a file system that virtiofsd serves, which has the guest's memory for that
    shares_files: bool = False
    #: whether it has a disk, which QEMU reads past the page cache (cache=none): with O_DIRECT, into the guest's pages
    has_disk: bool = False
    #: further words for the guest's kernel
    words: str = ""
    devices: tuple[MemoryDevice, ...] = ()

    def __post_init__(self) -> None:
        """Raises InputError for what can be no guest."""
        _check_name("guest", self.name)
        if not self.cells:
            raise InputError(f"guest {self.name}: expected memory, found no NUMA cell")
        if self.threads is not None and (self.threads < 1 or self.allocation is Allocation.ON_DEMAND):
            raise InputError(f"guest {self.name}: threads allocate immediately, expected 1 or more of them")
        whole = self.memory + sum(device.memory for device in self.devices)
        if self.max_memory is not None and self.max_memory < whole:
            raise InputError(f"guest {self.name}: max_memory {self.max_memory}: expected at least its memory, {whole}")
        if self.reports_free_pages and not self.balloon:
            raise InputError(f"guest {self.name}: free pages are reported through a balloon, found none")
        if (self.has_peer or self.shares_files) and self.access is not Access.SHARED:
            raise InputError(f"guest {self.name}: another process has its memory, expected shared memory")
        if self.devices and self.max_memory is None:
            raise InputError(f"guest {self.name}: memory devices need a max_memory")

    @property
    def memory(self) -> int:
        """Bytes that it starts with, without its memory devices."""
        return sum(cell.memory for cell in self.cells)

    @property
    def comes_up_again(self) -> bool:
        """Whether QEMU goes on when it is reset, which a restart after a crash is, too."""
        return self.reboots or self.on_crash is OnCrash.RESTART

    @property
    def seen_inside(self) -> str | None:
        """All of it that a guest can see, on which its kernel boots the same way; None for one that boots by itself.

        That is one whose memory has to come as its kernel touches it, or that has more than memory and a balloon.
        """
        is_taken_at_once = self.allocation is Allocation.IMMEDIATE and all(cell.page for cell in self.cells)
        if not is_taken_at_once or self.devices or self.has_peer or self.shares_files or self.has_disk:
            return None
        cells = [cell.memory for cell in self.cells] if self.has_topology else self.memory
        tells_of_panics = self.on_crash is not None
        balloon = [self.balloon, self.reports_free_pages]
        return json.dumps([self.name, cells, self.max_memory, balloon, tells_of_panics, self.words])

    @property
    def has_topology(self) -> bool:
        """Whether the cells have to be spelled out to it: one cell on any node is no topology."""
        return len(self.cells) > 1 or self.max_memory is not None or self.cells[0].node is not None


def _check_memory(memory: int, page: int | None) -> None:
    if memory <= 0:
        raise InputError(f"memory of {memory} bytes: expected more than 0, for example 1G")
    if page is None:
        return
    if page <= 0 or page & (page - 1):
        raise InputError(f"page size {page}: expected a power of two, for example 2M, or none for ordinary pages")
    if page % 1024:
        raise InputError(f"page size {format_size(page)}: expected whole KiB")


def _check_name(what: str, name: str) -> None:
    # it becomes part of paths and of QEMU's options
    if not _NAME.fullmatch(name):
        raise InputError(f"{what} {name!r}: expected a name of small letters, digits and -, for example guest-1")


@dataclass(frozen=True, order=True)
class Pool:
    """Huge pages of ``size`` bytes on ``node``; None for those of any node."""

    size: int
    node: int | None = None


def pages_needed(guest: GuestDescription) -> Mapping[Pool, int]:
    """Return the pages that ``guest`` takes at its start, all its cells together, of each pool.

    QEMU takes whole pages for each cell (file_ram_alloc() in system/physmem.c rounds up), and none for itself: its
    firmware, video memory and heap are ordinary pages.
    """
    need = Counter(pages_of_cells(guest.cells))
    for device in guest.devices:
        if device.page is not None:
            node = guest.cells[device.cell].node if device.node is None else device.node
            need[Pool(device.page, node)] += device_pages(device)
    return need


def pages_of_cells(cells: Iterable[Cell]) -> Mapping[Pool, int]:
    """Return the pages that ``cells`` take of each pool."""
    need: Counter[Pool] = Counter()
    for cell in cells:
        if cell.page is not None:
            need[Pool(cell.page, cell.node)] += whole_pages(cell.memory, cell.page)
    return need


def device_pages(device: MemoryDevice) -> int:
    """Return the pages that a memory device takes when it is plugged in, not counting what the guest adds later."""
    if device.page is None or device.requested:
        return 0
    return whole_pages(device.memory, device.page)


def whole_pages(memory: int, page: int) -> int:
    """Return how many pages of ``page`` bytes hold ``memory`` bytes."""
    return -(-memory // page)
