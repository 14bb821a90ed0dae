"""A description as arguments of QEMU, and memory devices as what its monitor takes."""

import json
from dataclasses import replace
from typing import Any

from hugepage_qa.qemu.guest.file_server import TAG
from hugepage_qa.qemu.guest.guest_description import (
    SLOTS,
    Access,
    Allocation,
    Cell,
    DeviceKind,
    GuestDescription,
    MemoryDevice,
    OnCrash,
    Source,
)
from hugepage_qa.qemu.guest.guest_site import Site

# machines on whose root bus nothing can be plugged in
_PCI_EXPRESS = ("q35", "virt")
_PORT = "port0"
#: what tells QEMU of a panic, by the architecture of the guest; the firmware of others does without a device
_PANIC_DEVICES = {"x86_64": "pvpanic", "aarch64": "pvpanic-pci"}
#: QEMU's words for what it then does; none leaves the guest to its kernel, which reboots
_ON_PANIC = {OnCrash.DESTROY: "shutdown", OnCrash.RESTART: "none", OnCrash.PRESERVE: "pause"}
_DRIVERS = {DeviceKind.DIMM: "pc-dimm", DeviceKind.VIRTIO_MEM: "virtio-mem-pci", DeviceKind.NVDIMM: "nvdimm"}

#: QEMU 7.2 crashes when it masks the message-signalled interrupt of a vhost-user device without KVM
_NO_MESSAGES = "vectors=0"


def qemu_arguments(guest: GuestDescription, site: Site) -> list[str]:
    """Return the arguments: direct kernel boot, a serial console, nothing else that takes memory.

    Raises KeyError where ``site`` has no hugetlbfs for a page size.
    """
    # nobody has to be there to read what the log keeps
    console = f"socket,id=console,path={site.console(guest.name)},server=on,wait=off,logfile={site.log(guest.name)}"
    balloon = f"virtio-balloon-pci,id=balloon{',free-page-reporting=on' if guest.reports_free_pages else ''}"
    has_port = guest.max_memory is not None and site.machine.startswith(_PCI_EXPRESS)
    plugged = [json.loads(memory_device(guest, device, site)) for device in guest.devices]
    return [
        *("-name", f"guest={guest.name}", "-nodefaults", "-no-user-config", "-display", "none"),
        *(() if guest.comes_up_again else ("-no-reboot",)),
        *_on_crash(guest, site),
        *("-accel", site.accelerator, "-cpu", site.cpu, "-smp", str(len(guest.cells))),
        *_memory(guest, site),
        *("-overcommit", f"mem-lock={'on' if guest.locked else 'off'}"),
        *("-chardev", console),
        *("-serial", "chardev:console"),
        *(("-device", balloon) if guest.balloon else ()),
        *(_peer(guest, site) if guest.has_peer else ()),
        *(_shared_files(guest, site) if guest.shares_files else ()),
        *(_disk(guest, site) if guest.has_disk else ()),
        *("-kernel", site.kernel, "-initrd", site.initramfs),
        *("-append", f"{guest.words} {site.words}".strip()),
        *(("-device", f"pcie-root-port,id={_PORT}") if has_port else ()),
        *(
            word
            for one in plugged
            for word in ("-object", json.dumps(one["backend"]), "-device", json.dumps(one["device"]))
        ),
    ]


def memory_device(guest: GuestDescription, device: MemoryDevice, site: Site) -> str:
    """Return a memory device of ``guest`` for the monitor: its backend and itself, in JSON."""
    node = guest.cells[device.cell].node if device.node is None else device.node
    itself_in = replace(
        guest,
        access=device.access or guest.access,
        discard=guest.discard if device.discard is None else device.discard,
    )
    backend = _backend(f"memory-{device.name}", Cell(device.memory, device.page, node), itself_in, site)
    itself: dict[str, Any] = {
        "driver": _DRIVERS[device.kind],
        "id": device.name,
        "memdev": backend["id"],
        "node": device.cell,
    }
    if device.kind is DeviceKind.NVDIMM:
        backend |= {
            "qom-type": "memory-backend-file",
            "mem-path": site.nvdimm(guest.name, device.name, device.page),
            "share": True,
        }
    if device.kind is DeviceKind.VIRTIO_MEM:
        if site.machine.startswith(_PCI_EXPRESS):
            itself["bus"] = _PORT
        # its pages come as the guest asks for them
        backend |= {"prealloc": False, "reserve": False}
        itself |= {"requested-size": device.requested, "prealloc": True}
    return json.dumps({"backend": backend, "device": itself})


def _on_crash(guest: GuestDescription, site: Site) -> list[str]:
    if guest.on_crash is None:
        return []
    device = _PANIC_DEVICES.get(site.architecture)
    return ["-action", f"panic={_ON_PANIC[guest.on_crash]}", *(("-device", device) if device else ())]


def _peer(guest: GuestDescription, site: Site) -> tuple[str, ...]:
    """Return a network device that the process behind a socket serves."""
    socket = f"socket,id=peer,path={site.peer(guest.name)}"
    device = f"virtio-net-pci,netdev=peer-net,romfile=,{_NO_MESSAGES}"
    return ("-chardev", socket, "-netdev", "vhost-user,id=peer-net,chardev=peer", "-device", device)


def _shared_files(guest: GuestDescription, site: Site) -> tuple[str, ...]:
    """Return a file system that virtiofsd serves."""
    device = f"vhost-user-fs-pci,chardev=files,tag={TAG},{_NO_MESSAGES}"
    return ("-chardev", f"socket,id=files,path={site.file_server(guest.name)}", "-device", device)


def _disk(guest: GuestDescription, site: Site) -> tuple[str, ...]:
    """Return a disk that is read past the page cache."""
    drive = f"if=none,id=disk,file={site.disk(guest.name)},format=raw,cache=none,readonly=on"
    return ("-drive", drive, "-device", "virtio-blk-pci,drive=disk")


def _memory(guest: GuestDescription, site: Site) -> list[str]:
    backends = [_backend(f"memory{number}", cell, guest, site) for number, cell in enumerate(guest.cells)]
    words = [word for backend in backends for word in ("-object", json.dumps(backend))]
    if not guest.has_topology:
        machine = f"{site.machine},memory-backend={backends[0]['id']}"
        return [*words, "-machine", machine, "-m", f"size={guest.memory}B"]
    size = f"size={guest.memory}B"
    if guest.max_memory is not None:
        size += f",slots={SLOTS},maxmem={guest.max_memory}B"
    cells = [f"node,nodeid={number},cpus={number},memdev={one['id']}" for number, one in enumerate(backends)]
    has_nvdimm = any(device.kind is DeviceKind.NVDIMM for device in guest.devices)
    machine = f"{site.machine},nvdimm=on" if has_nvdimm else site.machine
    return ["-machine", machine, "-m", size, *words, *(word for cell in cells for word in ("-numa", cell))]


def _backend(name: str, cell: Cell, guest: GuestDescription, site: Site) -> dict[str, Any]:
    """Return the memory backend of ``cell``: a file in hugetlbfs, or a memfd of huge pages."""
    backend: dict[str, Any] = {
        "qom-type": f"memory-backend-{_kind(cell, guest)}",
        "id": name,
        "size": cell.memory,
        "share": guest.access is Access.SHARED,
        "prealloc": guest.allocation is Allocation.IMMEDIATE,
    }
    if guest.threads is not None:
        backend["prealloc-threads"] = guest.threads
    if cell.node is not None:
        backend |= {"host-nodes": [cell.node], "policy": "bind"}
    if backend["qom-type"] == "memory-backend-file":
        backend |= {"mem-path": site.mounts[cell.page or 0], "discard-data": guest.discard}
    elif guest.source is Source.MEMFD and cell.page is not None:
        backend |= {"hugetlb": True, "hugetlbsize": cell.page}
    return backend


def _kind(cell: Cell, guest: GuestDescription) -> str:
    if guest.source is Source.MEMFD:
        return "memfd"
    # QEMU has huge pages only in files: libvirt's anonymous source is one, too
    return "ram" if cell.page is None else "file"
