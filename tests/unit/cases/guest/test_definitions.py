"""A description says the same to libvirt and to QEMU."""

import json
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.guest.domain_xml import domain_xml, memory_device_xml
from hugepage_qa.qemu.guest.guest_description import (
    Access,
    Allocation,
    Cell,
    DeviceKind,
    GuestDescription,
    MemoryDevice,
    OnCrash,
    Pool,
    Source,
    pages_needed,
)
from hugepage_qa.qemu.guest.guest_site import Site
from hugepage_qa.qemu.guest.qemu_command import memory_device, qemu_arguments
from hugepage_qa.schema import build
from hugepage_qa.sizes import GIB, MIB

CELL = Cell(GIB, 2 * MIB)
QEMU = "{http://libvirt.org/schemas/domain/qemu/1.0}"


def parse(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)  # noqa: S314 - our own


def backends(guest: GuestDescription, site: Site) -> list[dict[str, Any]]:
    words = qemu_arguments(guest, site)
    return [json.loads(words[index + 1]) for index, word in enumerate(words) if word == "-object"]


def value(guest: GuestDescription, site: Site, option: str) -> str:
    words = qemu_arguments(guest, site)
    return words[words.index(option) + 1]


def domain(guest: GuestDescription, site: Site) -> ElementTree.Element:
    return parse(domain_xml(guest, site))


def attributes(guest: GuestDescription, site: Site, path: str) -> list[dict[str, str]]:
    return [element.attrib for element in domain(guest, site).findall(path)]


def test_one_cell(site: Site) -> None:
    guest = GuestDescription("guest", (CELL,))
    [backend] = backends(guest, site)
    assert backend == {
        "qom-type": "memory-backend-file",
        "id": "memory0",
        "size": GIB,
        "share": False,
        "prealloc": True,
        "mem-path": "/scratch/huge-2M",
        "discard-data": False,
    }
    assert value(guest, site, "-machine") == "q35,memory-backend=memory0"
    assert value(guest, site, "-m") == f"size={GIB}B"
    assert attributes(guest, site, "memoryBacking/hugepages/page") == [{"size": "2048", "unit": "KiB"}]
    assert domain(guest, site).findtext("memory") == str(GIB)
    # libvirt refuses to be told what it does anyway
    assert not attributes(guest, site, "memoryBacking/source")
    assert not attributes(guest, site, "memoryBacking/allocation")


def test_cells_with_sizes_and_nodes_of_their_own(site: Site) -> None:
    guest = GuestDescription("guest", (CELL, Cell(GIB, GIB, 1), Cell(GIB, None)))
    first, second, third = backends(guest, site)
    assert (first["mem-path"], second["mem-path"]) == ("/scratch/huge-2M", "/scratch/huge-1G")
    assert (second["host-nodes"], second["policy"]) == ([1], "bind")
    assert "host-nodes" not in first
    assert third["qom-type"] == "memory-backend-ram"
    assert attributes(guest, site, "memoryBacking/hugepages/page") == [
        {"size": "2048", "unit": "KiB", "nodeset": "0"},
        {"size": "1048576", "unit": "KiB", "nodeset": "1"},
    ]
    assert attributes(guest, site, "numatune/memnode") == [{"cellid": "1", "mode": "strict", "nodeset": "1"}]
    assert [cell["memory"] for cell in attributes(guest, site, "cpu/numa/cell")] == [str(GIB)] * 3


def test_memfd_shared_and_locked(site: Site) -> None:
    guest = GuestDescription("guest", (CELL,), source=Source.MEMFD, access=Access.SHARED, locked=True)
    [backend] = backends(guest, site)
    assert (backend["qom-type"], backend["hugetlb"], backend["hugetlbsize"], backend["share"]) == (
        "memory-backend-memfd",
        True,
        2 * MIB,
        True,
    )
    assert value(guest, site, "-overcommit") == "mem-lock=on"
    assert attributes(guest, site, "memoryBacking/source") == [{"type": "memfd"}]
    assert attributes(guest, site, "memoryBacking/access") == [{"mode": "shared"}]
    assert attributes(guest, site, "memoryBacking/locked") == [{}]


def test_allocation(site: Site) -> None:
    later = GuestDescription("guest", (CELL,), allocation=Allocation.ON_DEMAND, discard=True)
    assert (backends(later, site)[0]["prealloc"], backends(later, site)[0]["discard-data"]) == (False, True)
    assert attributes(later, site, "memoryBacking/allocation") == [{"mode": "ondemand"}]
    assert attributes(later, site, "memoryBacking/discard") == [{}]
    threads = GuestDescription("guest", (CELL,), threads=4)
    assert backends(threads, site)[0]["prealloc-threads"] == 4
    assert attributes(threads, site, "memoryBacking/allocation") == [{"mode": "immediate", "threads": "4"}]


def test_memory_devices(site: Site) -> None:
    guest = GuestDescription("guest", (Cell(GIB, 2 * MIB, 1),), max_memory=8 * GIB)
    dimm = MemoryDevice("dimm0", DeviceKind.DIMM, GIB, GIB)
    document = json.loads(memory_device(guest, dimm, site))
    assert document["backend"]["mem-path"] == "/scratch/huge-1G"
    assert document["backend"]["host-nodes"] == [1]
    assert document["device"] == {"driver": "pc-dimm", "id": "dimm0", "memdev": "memory-dimm0", "node": 0}
    element = parse(memory_device_xml(guest, dimm, site))
    assert (element.get("model"), element.findtext("source/pagesize"), element.findtext("target/size")) == (
        "dimm",
        str(MIB),
        str(GIB),
    )
    assert f"slots=4,maxmem={8 * GIB}B" in value(guest, site, "-m")
    assert domain(guest, site).findtext("maxMemory") == str(8 * GIB)


def test_a_virtio_mem_device_takes_nothing_by_itself(site: Site) -> None:
    guest = GuestDescription("guest", (CELL,), max_memory=8 * GIB)
    device = MemoryDevice("virtio0", DeviceKind.VIRTIO_MEM, GIB, 2 * MIB, requested=4 * MIB)
    document = json.loads(memory_device(guest, device, site))
    assert (document["backend"]["prealloc"], document["backend"]["reserve"]) == (False, False)
    assert document["device"]["requested-size"] == 4 * MIB
    element = parse(memory_device_xml(guest, device, site))
    assert element.findtext("target/requested") == str(4 * MIB)
    assert element.findtext("target/block") == "2048"


def test_devices_that_are_there_from_the_start(site: Site) -> None:
    dimm = MemoryDevice("dimm0", DeviceKind.DIMM, GIB, GIB)
    guest = GuestDescription("guest", (CELL,), max_memory=2 * GIB, devices=(dimm,))
    assert backends(guest, site)[1]["id"] == "memory-dimm0"
    assert attributes(guest, site, "devices/memory") == [{"model": "dimm"}]


def test_a_memory_device_is_what_it_says_and_not_what_its_guest_does(site: Site) -> None:
    guest = GuestDescription("guest", (CELL,), access=Access.SHARED, discard=True, max_memory=2 * GIB)
    dimm = MemoryDevice("dimm0", DeviceKind.DIMM, GIB, 2 * MIB, node=1, access=Access.PRIVATE, discard=False)
    backend = json.loads(memory_device(guest, dimm, site))["backend"]
    assert (backend["share"], backend["discard-data"]) == (False, False)
    assert (backend["host-nodes"], backend["policy"]) == ([1], "bind")
    element = parse(memory_device_xml(guest, dimm, site))
    assert element.attrib == {"model": "dimm", "access": "private", "discard": "no"}
    assert element.findtext("source/nodemask") == "1"


def test_an_nvdimm_is_in_a_file_that_stays(site: Site) -> None:
    beside = MemoryDevice("nvdimm0", DeviceKind.NVDIMM, GIB, None)
    huge = MemoryDevice("nvdimm0", DeviceKind.NVDIMM, GIB, 2 * MIB)
    for device, path in (
        (beside, "/scratch/guests/guest-nvdimm0.nvdimm"),
        (huge, "/scratch/huge-2M/guest-nvdimm0.nvdimm"),
    ):
        guest = GuestDescription("guest", (CELL,), max_memory=2 * GIB, devices=(device,))
        backend = backends(guest, site)[1]
        assert (backend["qom-type"], backend["mem-path"], backend["share"]) == ("memory-backend-file", path, True)
        assert value(guest, site, "-machine") == "q35,nvdimm=on"
        assert domain(guest, site).findtext("devices/memory/source/path") == path
    assert pages_needed(GuestDescription("guest", (CELL,), max_memory=2 * GIB, devices=(beside,))) == {
        Pool(2 * MIB): 512
    }
    assert pages_needed(GuestDescription("guest", (CELL,), max_memory=2 * GIB, devices=(huge,))) == {
        Pool(2 * MIB): 1024
    }


def test_a_process_that_has_the_memory_is_connected(site: Site) -> None:
    guest = GuestDescription("guest", (CELL,), access=Access.SHARED, has_peer=True)
    assert "socket,id=peer,path=/scratch/guests/guest.peer" in qemu_arguments(guest, site)
    [source] = attributes(guest, site, "devices/interface/source")
    assert source == {"type": "unix", "path": "/scratch/guests/guest.peer", "mode": "client"}
    with pytest.raises(InputError, match="expected shared memory"):
        GuestDescription("guest", (CELL,), has_peer=True)


def test_files_are_shared_through_the_memory(site: Site) -> None:
    guest = GuestDescription("guest", (CELL,), access=Access.SHARED, shares_files=True)
    assert "socket,id=files,path=/scratch/guests/guest.virtiofsd" in qemu_arguments(guest, site)
    assert value(guest, site, "-device") == "vhost-user-fs-pci,chardev=files,tag=shared,vectors=0"
    assert attributes(guest, site, "devices/filesystem/source") == [{"dir": "/scratch/guests/guest.shared"}]
    assert attributes(guest, site, "devices/filesystem/target") == [{"dir": "shared"}]
    assert attributes(guest, site, "devices/filesystem/binary") == [{"path": "/usr/libexec/virtiofsd"}]
    assert attributes(guest, site, f"{QEMU}override/{QEMU}device") == [{"alias": "fs0"}]
    with pytest.raises(InputError, match="expected shared memory"):
        GuestDescription("guest", (CELL,), shares_files=True)


def test_a_disk_is_read_past_the_page_cache(site: Site) -> None:
    guest = GuestDescription("guest", (CELL,), has_disk=True)
    assert value(guest, site, "-drive").split(",")[2:5] == [
        "file=/scratch/guests/guest.disk",
        "format=raw",
        "cache=none",
    ]
    assert attributes(guest, site, "devices/disk/driver") == [{"name": "qemu", "type": "raw", "cache": "none"}]
    assert attributes(guest, site, "devices/disk/source") == [{"file": "/scratch/guests/guest.disk"}]


def test_what_every_guest_is_started_with(site: Site) -> None:
    guest = GuestDescription("guest", (CELL,), words="hugepages=4")
    assert value(guest, site, "-append") == f"hugepages=4 {site.words}"
    found = domain(guest, site)
    assert found.findtext("os/cmdline") == f"hugepages=4 {site.words}"
    assert found.findtext("devices/emulator") == site.emulator
    mark = found.find(f"{QEMU}commandline/{QEMU}env")
    assert mark is not None
    assert mark.attrib == {"name": "HUGEPAGE_QA_RUN", "value": "0123"}
    # else QEMU starts the guest again that we wait to end
    assert "-no-reboot" in qemu_arguments(guest, site)
    assert found.findtext("on_reboot") == found.findtext("on_crash") == "destroy"


def test_what_becomes_of_a_guest_that_reboots_or_crashes(site: Site) -> None:
    reboots = GuestDescription("guest", (CELL,), reboots=True)
    assert "-no-reboot" not in qemu_arguments(reboots, site)
    assert domain(reboots, site).findtext("on_reboot") == "restart"
    assert not attributes(reboots, site, "devices/panic")
    actions = {OnCrash.DESTROY: "panic=shutdown", OnCrash.RESTART: "panic=none", OnCrash.PRESERVE: "panic=pause"}
    for on_crash, action in actions.items():
        guest = GuestDescription("guest", (CELL,), on_crash=on_crash)
        assert (value(guest, site, "-action"), value(guest, site, "-device")) == (action, "pvpanic")
        assert ("-no-reboot" in qemu_arguments(guest, site)) is (on_crash is not OnCrash.RESTART)
        assert domain(guest, site).findtext("on_crash") == on_crash.value
        # libvirt restarts it by a reset, at which a guest ends that may not reboot
        assert domain(guest, site).findtext("on_reboot") == ("restart" if on_crash is OnCrash.RESTART else "destroy")
        assert attributes(guest, site, "devices/panic") == [{"model": "isa"}]


def test_ordinary_memory_is_anonymous_and_taken_at_the_start(site: Site) -> None:
    guest = GuestDescription("guest", (Cell(GIB, None),))
    assert (backends(guest, site)[0]["qom-type"], backends(guest, site)[0]["prealloc"]) == ("memory-backend-ram", True)
    assert attributes(guest, site, "memoryBacking/source") == [{"type": "anonymous"}]
    assert attributes(guest, site, "memoryBacking/allocation") == [{"mode": "immediate"}]
    assert not attributes(guest, site, "memoryBacking/hugepages")


def test_balloons(site: Site) -> None:
    without, with_one = GuestDescription("guest", (CELL,)), GuestDescription("guest", (CELL,), balloon=True)
    reporting = GuestDescription("guest", (CELL,), balloon=True, reports_free_pages=True)
    assert not any("balloon" in word for word in qemu_arguments(without, site))
    assert "virtio-balloon-pci,id=balloon" in qemu_arguments(with_one, site)
    assert "virtio-balloon-pci,id=balloon,free-page-reporting=on" in qemu_arguments(reporting, site)
    found = [attributes(guest, site, "devices/memballoon") for guest in (without, with_one, reporting)]
    assert found == [[{"model": "none"}], [{"model": "virtio"}], [{"model": "virtio", "freePageReporting": "on"}]]


def test_a_definition_replaces_the_one_before(site: Site) -> None:
    first, second = (domain(GuestDescription("guest", (Cell(size, None),)), site) for size in (GIB, 2 * GIB))
    assert first.findtext("uuid") == second.findtext("uuid")
    assert first.findtext("uuid") != domain(GuestDescription("other", (CELL,)), site).findtext("uuid")


def test_a_site_survives_its_record(site: Site) -> None:
    assert build(Site, json.loads(json.dumps(asdict(site)))) == site
