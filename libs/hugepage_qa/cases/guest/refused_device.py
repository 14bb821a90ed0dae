"""Memory devices that no guest can have: what each is told that one which is taken is not, and why it is refused.

What must come of it is worked out from the words alone (QEMU hw/mem/pc-dimm.c, hw/mem/memory-device.c, hw/mem/nvdimm.c,
hw/virtio/virtio-mem.c; libvirt src/conf/domain_validate.c virDomainMemoryDefValidate(), src/qemu/qemu_domain.c
qemuDomainDefValidateMemoryHotplug()). Sizes are in bytes.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from hugepage_qa.cases.guest.refusal import Meaning
from hugepage_qa.qemu.guest.guest_description import DeviceKind
from hugepage_qa.sizes import KIB, MIB

#: a cell that no guest of ours has
_NO_CELL = 9
#: the least that a label area can have (QEMU include/hw/mem/nvdimm.h MIN_NAMESPACE_LABEL_SIZE)
_LEAST_LABEL = 128 * KIB
_BASE_PAGE = 4 * KIB


@dataclass(frozen=True)
class RefusedDevice:
    """A device of one kind that is refused for ``meaning``, ``what`` says in short why.

    ``device`` and ``backend`` are properties that QEMU is told beside or instead of what it is told of a device that it
    takes; ``elements`` are below libvirt's <memory>, path -> text, attributes, or None for one that is left out. A
    driver that is told nothing else knows no such thing. ``needs_neighbour`` is one that is wrong only beside another,
    and pages that are ``kept`` are free only when QEMU has ended, so that it is not plugged in.
    """

    what: str
    kind: DeviceKind
    meaning: Meaning
    device: Mapping[str, Any] = field(default_factory=dict)
    backend: Mapping[str, Any] = field(default_factory=dict)
    elements: Mapping[str, str | Mapping[str, str] | None] = field(default_factory=dict)
    needs_neighbour: bool = False
    kept: bool = False

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.what}"

    @property
    def is_of_qemu(self) -> bool:
        """Whether QEMU can be told so."""
        return bool(self.device or self.backend)

    @property
    def is_of_libvirt(self) -> bool:
        """Whether libvirt can be told so."""
        return bool(self.elements)

    def for_monitor(self, document: str) -> str:
        """Return what the monitor of QEMU takes for this device instead of ``document``, one that it takes."""
        taken = json.loads(document)
        return json.dumps({"backend": taken["backend"] | self.backend, "device": taken["device"] | self.device})

    def for_libvirt(self, xml: str) -> str:
        """Return the <memory> of this device instead of ``xml``, one that libvirt takes."""
        memory = ElementTree.fromstring(xml)  # noqa: S314 - our own
        for path, content in self.elements.items():
            _put(memory, path, content)
        return ElementTree.tostring(memory, encoding="unicode")


def _put(memory: Element, path: str, content: str | Mapping[str, str] | None) -> None:
    place, _slash, name = path.rpartition("/")
    parent = memory.find(place) if place else memory
    if parent is None:
        raise ValueError(f"a memory device of ours has no {place}")
    found = parent.find(name)
    if content is None:
        if found is not None:
            parent.remove(found)
        return
    element = SubElement(parent, name) if found is None else found
    if isinstance(content, str):
        element.text = content
    else:
        element.attrib.update(content)


def every_refused_dimm(page: int, memory: int, neighbour: int, slots: int) -> Iterator[RefusedDevice]:
    """Yield each DIMM of ``memory`` bytes that a guest cannot have beside one in slot 0 at the address ``neighbour``.

    The guest has ``slots`` slots, and its memory is in pages of ``page`` bytes.
    """
    yield from _misplaced_dimms(page, memory, neighbour, slots)
    # libvirt makes it one. QEMU before 8.2 has whole pages for it, refuses the device, and keeps them: it unmaps no
    # more than was asked for, and munmap(2) takes no part of a huge page
    yield RefusedDevice(
        "of a size that is no multiple of the page",
        DeviceKind.DIMM,
        Meaning.MISALIGNED,
        backend={"size": memory + _BASE_PAGE},
        kept=True,
    )
    yield _in_no_cell_of_the_guest(DeviceKind.DIMM)
    yield RefusedDevice("in no cell", DeviceKind.DIMM, Meaning.EXCLUDE_EACH_OTHER, elements={"target/node": None})


def _misplaced_dimms(page: int, memory: int, neighbour: int, slots: int) -> Iterator[RefusedDevice]:
    """Yield each DIMM that is told a slot, or an address, where it cannot be."""

    def put(what: str, meaning: Meaning, told: Mapping[str, int], *, needs_neighbour: bool = False) -> RefusedDevice:
        place = {"type": "dimm", "slot": str(told.get("slot", 1))}
        if "addr" in told:
            place["base"] = hex(told["addr"])
        elements = {"address": place}
        return RefusedDevice(what, DeviceKind.DIMM, meaning, told, elements=elements, needs_neighbour=needs_neighbour)

    yield put("in the slot of another one", Meaning.PLACE_TAKEN, {"slot": 0}, needs_neighbour=True)
    yield put("in a slot that there is not", Meaning.NO_SUCH_PLACE, {"slot": slots})
    yield put("where another one is", Meaning.PLACE_TAKEN, {"addr": neighbour}, needs_neighbour=True)
    # below what the board keeps for such devices, where its own memory is
    yield put("where no device can be", Meaning.NO_SUCH_PLACE, {"addr": page})
    # behind the other one, which is as large
    misaligned = neighbour + memory + _BASE_PAGE
    yield put("at an address that is no multiple of the page", Meaning.MISALIGNED, {"addr": misaligned})


def _in_no_cell_of_the_guest(kind: DeviceKind) -> RefusedDevice:
    told = {"target/node": str(_NO_CELL)}
    return RefusedDevice("in a cell that there is not", kind, Meaning.NO_SUCH_CELL, {"node": _NO_CELL}, elements=told)


def every_refused_virtio_mem(memory: int, block: int) -> Iterator[RefusedDevice]:
    """Yield each virtio-mem device of ``memory`` bytes, in pages of ``block`` bytes, that a guest cannot have."""

    def of_blocks(what: str, of: int) -> RefusedDevice:
        told = {"target/block": str(of // KIB)}
        return RefusedDevice(what, DeviceKind.VIRTIO_MEM, Meaning.BAD_BLOCK, {"block-size": of}, elements=told)

    yield of_blocks("in blocks that are no power of two", 3 * block)
    yield of_blocks("in blocks of a base page", _BASE_PAGE)
    # of 1 MiB or more QEMU takes where they are no smaller than a page
    yield of_blocks("in blocks that are less than a page", max(MIB, block // 2))
    yield RefusedDevice(
        "of no whole number of blocks",
        DeviceKind.VIRTIO_MEM,
        Meaning.BAD_BLOCK,
        {"requested-size": block // 2},
        elements={"target/requested": str(block // 2)},
    )
    # QEMU looks at that only when it is asked for another size later: 7.2 takes such a device
    yield RefusedDevice(
        "with more than it has",
        DeviceKind.VIRTIO_MEM,
        Meaning.MORE_THAN_THE_DEVICE,
        elements={"target/requested": str(memory + block)},
    )
    yield _in_no_cell_of_the_guest(DeviceKind.VIRTIO_MEM)


def every_refused_nvdimm(memory: int) -> Iterator[RefusedDevice]:
    """Yield each NVDIMM of ``memory`` bytes that a guest whose board has NVDIMMs cannot have."""

    def with_label(what: str, label: int) -> RefusedDevice:
        told = {"target/label": "", "target/label/size": str(label // KIB)}
        return RefusedDevice(what, DeviceKind.NVDIMM, Meaning.BAD_LABEL, {"label-size": label}, elements=told)

    yield with_label("with a label that takes all of it", memory)
    yield with_label("with a label that is too small", _LEAST_LABEL // 2)
    yield RefusedDevice("in no file", DeviceKind.NVDIMM, Meaning.EXCLUDE_EACH_OTHER, elements={"source/path": ""})
