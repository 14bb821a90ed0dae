"""What a libvirt domain that somebody else wrote takes of the pools of its host (libvirt.org/formatdomain.html).

It is a file, or one that the daemon of this machine knows, which is asked read-only.

Nothing of the text is trusted: it is limited in size, has no DOCTYPE and so no entities, and its numbers are checked.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from xml.parsers import expat

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.guest.guest_description import Cell
from hugepage_qa.qemu.guest.guest_site import NotHere
from hugepage_qa.qemu.guest.libvirt_host import import_libvirt
from hugepage_qa.sizes import KIB, MIB

#: bytes; a domain with hundreds of devices has a tenth of it
LONGEST = MIB
_LONGEST_NAME = 255
#: characters of a wrong value that an error shows
_SHOWN = 60
_MOST_NODES = 1024

#: a number of bytes is a decimal with a unit apart (virScaleInteger() of libvirt): KB is 1000, K and KiB are 1024
_NUMBER = re.compile(r"\s*([0-9]{1,18})\s*", re.ASCII)
_UNIT = re.compile(r"(?:b|bytes|(?P<prefix>[kmgtpe])(?P<kind>ib|b)?)", re.IGNORECASE)
_PREFIXES = "kmgtpe"

#: models of memory devices that are in files or devices of their own, never in a pool of huge pages
_OF_THEIR_OWN = ("nvdimm", "virtio-pmem", "sgx-epc")


@dataclass(frozen=True)
class WantedGuest:
    """A guest: what it calls itself, and its memory, that of devices which it starts with included.

    ``in_files`` tells whether its huge pages come from files in hugetlbfs, which has to be mounted then. ``remarks``
    are what a plan cannot hold.
    """

    name: str
    cells: tuple[Cell, ...]
    in_files: bool = True
    remarks: tuple[str, ...] = ()


def read_domain(text: bytes, default_page: Callable[[], int]) -> WantedGuest:
    """Return the guest that the domain XML ``text`` describes.

    ``default_page`` tells the size in bytes of huge pages of which no size is said, for which the host's default is
    taken. Raises InputError for what is no domain, and for what libvirt would refuse to define.
    """
    domain = _parse(text)
    name = (domain.findtext("name") or "").strip()
    if not name or not name.isprintable() or len(name) > _LONGEST_NAME:
        raise InputError(f"name {_shown(name)}: expected the name of a domain")
    reader = _Reader(domain, default_page)
    source = domain.find("./memoryBacking/source")
    in_files = source is None or source.get("type") != "memfd"
    return WantedGuest(name, tuple(reader.cells()), in_files, tuple(reader.remarks))


def _parse(text: bytes) -> Element:
    if len(text) > LONGEST:
        raise InputError(f"more than {LONGEST} bytes: expected the XML of one domain, as of virsh dumpxml")
    checker = expat.ParserCreate()
    checker.StartDoctypeDeclHandler = _refuse_doctype
    try:
        checker.Parse(text, True)
        root = ElementTree.fromstring(text)  # noqa: S314 - without a DOCTYPE there are no entities
    except (expat.ExpatError, ElementTree.ParseError, ValueError, LookupError) as error:
        raise InputError(f"not XML: {error}") from error
    if root.tag != "domain":
        raise InputError(f"{_shown(root.tag)}: expected the XML of a domain, as of virsh dumpxml")
    return root


def _refuse_doctype(*_: object) -> None:
    raise InputError("it has a DOCTYPE, as no domain of libvirt has: entities are not read")


class _Reader:
    """Reads one domain; ``remarks`` come together meanwhile."""

    def __init__(self, domain: Element, default_page: Callable[[], int]) -> None:
        self._domain = domain
        self._default_page = default_page
        self._devices = domain.findall("./devices/memory")
        self._bindings = self._read_bindings()
        self.remarks: list[str] = []

    def cells(self) -> Iterator[Cell]:
        """Yield the memory of each NUMA cell, and of each device that takes some of a pool at the start."""
        memory = self._memory_of_cells()
        self._page_sizes(len(memory))
        for number, size in memory.items():
            yield Cell(size, self._page(number), self._node(number))
        for device in self._devices:
            if (cell := self._of_device(device)) is not None:
                yield cell

    def _memory_of_cells(self) -> Mapping[int, int]:
        """Return the bytes of each NUMA cell of the guest, of a guest without any as cell 0."""
        cells = self._domain.findall("./cpu/numa/cell")
        if not cells:
            whole = _memory(self._domain, "memory")
            # it counts what is in devices, too
            left = whole - sum(_memory(device, "./target/size") for device in self._devices)
            if left <= 0:
                raise InputError(f"memory of {whole} bytes: expected more than that of its memory devices")
            return {0: left}
        found: dict[int, int] = {}
        for position, cell in enumerate(cells):
            number = _integer(cell.get("id", str(position)), "id of a NUMA cell")
            found[number] = _size(cell.get("memory", ""), cell.get("unit", "KiB"), f"memory of NUMA cell {number}")
        if sorted(found) != list(range(len(cells))):
            raise InputError(f"NUMA cells {', '.join(map(str, sorted(found)))}: expected each of 0 to {len(cells) - 1}")
        return dict(sorted(found.items()))

    def _page_sizes(self, cells: int) -> None:
        """Have the size of pages for each cell, and for cells that no page names."""
        self._sizes: dict[int, int] = {}
        self._other_size: int | None = None
        backing = self._domain.find("./memoryBacking/hugepages")
        if backing is None:
            return
        pages = backing.findall("page")
        if not pages:
            self._other_size = self._default_page()
        for page in pages:
            size = _size(page.get("size", ""), page.get("unit", "KiB"), "size of a huge page")
            nodes = page.get("nodeset")
            if nodes is None:
                self._other_size = size
                continue
            for number in sorted(_node_set(nodes)):
                if number >= cells:
                    raise InputError(f"libvirt refuses it: hugepages: node {number} not found: it has {cells} of them")
                self._sizes.setdefault(number, size)

    def _page(self, cell: int) -> int | None:
        """Return the bytes of a page of the host for ``cell``; None is an ordinary page, whatever size that has."""
        size = self._sizes.get(cell, self._other_size)
        # libvirt takes the size of the base page for no huge pages; larger base pages exist where 4K pages do not
        return None if size == 4 * KIB else size

    def _read_bindings(self) -> Mapping[int | None, frozenset[int]]:
        """Return the nodes of the host that each cell is bound to, None those of cells that are not named."""
        found: dict[int | None, frozenset[int]] = {}
        for place in ("memory", "memnode"):
            for element in self._domain.findall(f"./numatune/{place}"):
                cell = None if place == "memory" else _integer(element.get("cellid", ""), "cellid of a memnode")
                nodes = element.get("nodeset")
                if nodes is not None and element.get("mode", "strict") in ("strict", "restrictive"):
                    found[cell] = _node_set(nodes)
        return found

    def _node(self, cell: int) -> int | None:
        return self._only(self._bindings.get(cell, self._bindings.get(None)), f"cell {cell}")

    def _only(self, nodes: frozenset[int] | None, what: str) -> int | None:
        """Return the node of the host that it is bound to, None where it is bound to none or may choose."""
        if nodes is None or len(nodes) == 1:
            return next(iter(nodes or ()), None)
        names = ", ".join(map(str, sorted(nodes)))
        self.remarks.append(f"{what} is bound to nodes {names}: how many pages of each it takes is not known before")
        return None

    def _of_device(self, device: Element) -> Cell | None:
        """Return what a memory device takes at the start; of virtio-mem that is what is requested of it."""
        model = device.get("model", "")
        if model in _OF_THEIR_OWN:
            return None
        if model not in ("dimm", "virtio-mem"):
            known = ", ".join((*_OF_THEIR_OWN, "dimm", "virtio-mem"))
            raise InputError(f"memory device {_shown(model)}: expected one of {known}")
        path = "./target/size" if model == "dimm" else "./target/requested"
        memory = _memory(device, path) if device.find(path) is not None or model == "dimm" else 0
        if not memory:
            return None
        cell = _integer(device.findtext("./target/node", "0"), "node of a memory device")
        size = device.find("./source/pagesize")
        page = self._page(cell) if size is None else _memory(device, "./source/pagesize")
        mask = device.findtext("./source/nodemask")
        node = self._node(cell) if mask is None else self._only(_node_set(mask), f"a {model}")
        return Cell(memory, None if page == 4 * KIB else page, node)


def _shown(text: str) -> str:
    return repr(text[:_SHOWN])


def _memory(element: Element, path: str) -> int:
    found = element.find(path)
    if found is None:
        raise InputError(f"no <{path.rpartition('/')[2]}> in <{element.tag}>: expected its size")
    return _size(found.text or "", found.get("unit", "KiB"), f"<{found.tag}>")


def _size(text: str, unit: str, what: str) -> int:
    """Return bytes. Raises InputError for what is no size."""
    number, scale = _NUMBER.fullmatch(text), _UNIT.fullmatch(unit)
    if number is None or scale is None:
        raise InputError(f"{what}: {_shown(text)} {_shown(unit)}: expected a whole number and a unit")
    if scale["prefix"] is None:
        return int(number[1])
    base = 1000 if (scale["kind"] or "").lower() == "b" else KIB
    return int(number[1]) * int(base ** (1 + _PREFIXES.index(scale["prefix"].lower())))


def _integer(text: str, what: str) -> int:
    found = _NUMBER.fullmatch(text)
    if found is None or int(found[1]) >= _MOST_NODES:
        raise InputError(f"{what}: {_shown(text)}: expected a number below {_MOST_NODES}")
    return int(found[1])


def _node_set(text: str) -> frozenset[int]:
    """Return the numbers of ``0-3,^2,8``. Raises InputError for another form, and for none at all."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().removeprefix("^").partition("-")
        low = _integer(first, "nodeset")
        numbers = range(low, (_integer(last, "nodeset") if dash else low) + 1)
        if part.strip().startswith("^"):
            found.difference_update(numbers)
        else:
            found.update(numbers)
    if not found:
        raise InputError(f"nodeset {_shown(text)}: expected at least one node")
    return frozenset(found)


@dataclass(frozen=True)
class DefinedDomain:
    """A domain: what it is from its next start on, and whether it runs."""

    xml: bytes
    is_running: bool


def defined_domain(name: str) -> DefinedDomain:
    """Return the domain ``name`` of the daemon that runs here, which LIBVIRT_DEFAULT_URI may name.

    Raises InputError without libvirt, without such a domain, and where the daemon does not answer.
    """
    try:
        libvirt = import_libvirt()
    except NotHere as error:
        raise InputError(f"--domain {name}: {error}") from error
    connection: Any = None
    try:
        connection = libvirt.openReadOnly(None)
        domain = connection.lookupByName(name)
        return DefinedDomain(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE).encode(), bool(domain.isActive()))
    except libvirt.libvirtError as error:
        raise InputError(f"--domain {name}: {error}") from error
    finally:
        if connection is not None:
            connection.close()
