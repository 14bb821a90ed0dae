"""Memory devices that are wrong in one thing, as QEMU and libvirt are told of them."""

import json
from collections import Counter
from xml.etree import ElementTree

import pytest

from hugepage_qa.cases.guest.refusal import Meaning
from hugepage_qa.cases.guest.refused_device import (
    RefusedDevice,
    every_refused_dimm,
    every_refused_nvdimm,
    every_refused_virtio_mem,
)
from hugepage_qa.qemu.guest.domain_xml import memory_device_xml
from hugepage_qa.qemu.guest.guest_description import Cell, DeviceKind, GuestDescription, MemoryDevice
from hugepage_qa.qemu.guest.guest_site import Site
from hugepage_qa.qemu.guest.qemu_command import memory_device
from hugepage_qa.sizes import GIB, MIB

PAGE = 2 * MIB
NEIGHBOUR = 4 * GIB
GUEST = GuestDescription("guest", (Cell(128 * PAGE, PAGE),), max_memory=GIB)
TAKEN = {
    DeviceKind.DIMM: MemoryDevice("dimm1", DeviceKind.DIMM, 128 * MIB, PAGE),
    DeviceKind.VIRTIO_MEM: MemoryDevice("virtio0", DeviceKind.VIRTIO_MEM, 4 * PAGE, PAGE, requested=PAGE),
    DeviceKind.NVDIMM: MemoryDevice("nvdimm0", DeviceKind.NVDIMM, 128 * MIB, None),
}
EVERY = [
    *every_refused_dimm(PAGE, 128 * MIB, NEIGHBOUR, 4),
    *every_refused_virtio_mem(4 * PAGE, PAGE),
    *every_refused_nvdimm(128 * MIB),
]


def test_every_device_is_there_once_and_is_told_apart() -> None:
    assert len({str(one) for one in EVERY}) == len(EVERY)
    assert Counter(one.kind for one in EVERY) == {
        DeviceKind.DIMM: 8,
        DeviceKind.VIRTIO_MEM: 6,
        DeviceKind.NVDIMM: 3,
    }
    assert all(one.is_of_qemu or one.is_of_libvirt for one in EVERY)


@pytest.mark.parametrize("refused", EVERY, ids=str)
def test_a_device_is_wrong_in_one_thing_to_each_driver(refused: RefusedDevice, site: Site) -> None:
    device = TAKEN[refused.kind]
    taken = json.loads(memory_device(GUEST, device, site))
    told = json.loads(refused.for_monitor(json.dumps(taken)))
    changes = [part for part in ("backend", "device") if told[part] != taken[part]]
    assert len(changes) == refused.is_of_qemu
    xml = memory_device_xml(GUEST, device, site)
    assert (refused.for_libvirt(xml) != xml) == refused.is_of_libvirt


def elements(refused: RefusedDevice, site: Site) -> ElementTree.Element:
    xml = memory_device_xml(GUEST, TAKEN[refused.kind], site)
    return ElementTree.fromstring(refused.for_libvirt(xml))  # noqa: S314 - our own


def named(what: str) -> RefusedDevice:
    [found] = [one for one in EVERY if str(one) == what]
    return found


def test_what_libvirt_is_told(site: Site) -> None:
    taken = elements(named("dimm: where another one is"), site).find("address")
    assert taken is not None
    assert taken.attrib == {"type": "dimm", "slot": "1", "base": "0x100000000"}
    assert elements(named("dimm: in no cell"), site).find("target/node") is None
    block = elements(named("virtio-mem: in blocks that are no power of two"), site)
    assert block.findtext("target/block") == "6144"
    label = elements(named("nvdimm: with a label that is too small"), site)
    assert label.findtext("target/label/size") == "64"


def test_a_device_next_to_none_cannot_take_the_place_of_another_one() -> None:
    """From the start there is none beside it: it would be taken."""
    assert {one.meaning for one in EVERY if one.needs_neighbour} == {Meaning.PLACE_TAKEN}
    assert {one.needs_neighbour for one in EVERY if one.meaning is Meaning.PLACE_TAKEN} == {True}
