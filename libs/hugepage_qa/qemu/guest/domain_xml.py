"""A description as the XML of a libvirt domain (libvirt.org/formatdomain.html)."""

from collections.abc import Sequence
from uuid import NAMESPACE_URL, uuid5
from xml.etree.ElementTree import Element, SubElement, tostring

from hugepage_qa.qemu.accelerator import TCG
from hugepage_qa.qemu.guest.file_server import SANDBOX, TAG
from hugepage_qa.qemu.guest.guest_description import (
    SLOTS,
    Access,
    Allocation,
    DeviceKind,
    GuestDescription,
    MemoryDevice,
    OnCrash,
    Source,
)
from hugepage_qa.qemu.guest.guest_site import Site

_QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"
#: what tells of a panic, by the architecture of the guest
_PANIC_MODELS = {"x86_64": "isa", "aarch64": "pvpanic", "ppc64le": "pseries", "s390x": "s390"}


def domain_xml(guest: GuestDescription, site: Site) -> str:
    """Return the domain: direct kernel boot, a serial console, nothing else that takes memory."""
    domain = Element("domain", {"type": "qemu" if site.accelerator == TCG else site.accelerator, "xmlns:qemu": _QEMU})
    _text(domain, "name", guest.name)
    # of the name: a definition with another one would not replace it
    _text(domain, "uuid", str(uuid5(NAMESPACE_URL, guest.name)))
    if guest.max_memory is not None:
        _text(domain, "maxMemory", str(guest.max_memory), unit="b", slots=str(SLOTS))
    _text(domain, "memory", str(guest.memory), unit="b")
    _add_backing(domain, guest)
    _add_node_tuning(domain, guest)
    _text(domain, "vcpu", str(len(guest.cells)))
    _add_boot(domain, guest, site)
    _add_cpu(domain, guest, site)
    _text(domain, "on_poweroff", "destroy")
    _text(domain, "on_reboot", "restart" if guest.comes_up_again else "destroy")
    _text(domain, "on_crash", (guest.on_crash or OnCrash.DESTROY).value)
    _add_devices(domain, guest, site)
    _add_command_line(domain, site)
    _take_messages_from(domain, [name for has, name in ((guest.has_peer, "net0"), (guest.shares_files, "fs0")) if has])
    return tostring(domain, encoding="unicode")


def _add_command_line(domain: Element, site: Site) -> None:
    """Add what libvirt has no words for, or what it would say another way."""
    command_line = SubElement(domain, "qemu:commandline")
    if site.accelerator == TCG:
        # of two QEMU takes the second. With libvirt's a guest of x86_64 copies and clears pages by bytes, or by words,
        # each of them a step of the emulator (qemu/boards.py); model and stepping can only be said with a model's name
        for word in ("-cpu", site.cpu):
            SubElement(command_line, "qemu:arg", value=word)
    for name, value in site.environment.items():
        SubElement(command_line, "qemu:env", name=name, value=value)


def with_tuning(definition: str, *elements: str) -> str:
    """Return a definition with ``elements`` such as numatune, which have their place behind its memoryBacking."""
    return definition.replace("</memoryBacking>", f"</memoryBacking>{''.join(elements)}")


def _take_messages_from(domain: Element, names: Sequence[str]) -> None:
    """Have the devices ``names`` no message-signalled interrupts, with which QEMU 7.2 crashes (qemu_command.py)."""
    if names:
        override = SubElement(domain, "qemu:override")
        for name in names:
            frontend = SubElement(SubElement(override, "qemu:device", alias=name), "qemu:frontend")
            SubElement(frontend, "qemu:property", name="vectors", type="unsigned", value="0")


def memory_device_xml(guest: GuestDescription, device: MemoryDevice, site: Site) -> str:
    """Return a memory device, to be plugged in or out."""
    return tostring(_memory_device(guest, device, site), encoding="unicode")


def _memory_device(guest: GuestDescription, device: MemoryDevice, site: Site) -> Element:
    memory = Element("memory", model=device.kind.value)
    if device.access is not None:
        memory.set("access", device.access.value)
    if device.discard is not None:
        memory.set("discard", "yes" if device.discard else "no")
    if device.kind is DeviceKind.NVDIMM:
        _text(SubElement(memory, "source"), "path", site.nvdimm(guest.name, device.name, device.page))
    elif device.page is not None:
        source = SubElement(memory, "source")
        _text(source, "pagesize", str(device.page // 1024), unit="KiB")
        if device.node is not None:
            _text(source, "nodemask", str(device.node))
    target = SubElement(memory, "target")
    _text(target, "size", str(device.memory), unit="b")
    _text(target, "node", str(device.cell))
    if device.kind is DeviceKind.VIRTIO_MEM:
        # a block is at least a page of the host
        _text(target, "block", str((device.page or 0) // 1024), unit="KiB")
        _text(target, "requested", str(device.requested), unit="b")
    return memory


def _add_backing(domain: Element, guest: GuestDescription) -> None:
    backing = SubElement(domain, "memoryBacking")
    is_huge = any(cell.page for cell in guest.cells)
    if is_huge:
        pages = SubElement(backing, "hugepages")
        for number, cell in enumerate(guest.cells):
            if cell.page is not None:
                page = SubElement(pages, "page", size=str(cell.page // 1024), unit="KiB")
                if guest.has_topology:
                    page.set("nodeset", str(number))
    if guest.locked:
        SubElement(backing, "locked")
    if guest.source is not Source.ANONYMOUS or not is_huge:
        SubElement(backing, "source", type=guest.source.value)
    # with it ordinary memory would come from a file on a disk
    if is_huge or guest.access is Access.SHARED:
        SubElement(backing, "access", mode=guest.access.value)
    # libvirt takes neither source nor allocation for huge pages where they are what it does anyway
    if guest.allocation is Allocation.ON_DEMAND:
        SubElement(backing, "allocation", mode=guest.allocation.value)
    elif guest.threads is not None:
        SubElement(backing, "allocation", mode=guest.allocation.value, threads=str(guest.threads))
    elif not is_huge:
        SubElement(backing, "allocation", mode=guest.allocation.value)
    if guest.discard:
        SubElement(backing, "discard")


def _add_node_tuning(domain: Element, guest: GuestDescription) -> None:
    bound = {number: cell.node for number, cell in enumerate(guest.cells) if cell.node is not None}
    if bound:
        tuning = SubElement(domain, "numatune")
        for number, node in bound.items():
            SubElement(tuning, "memnode", cellid=str(number), mode="strict", nodeset=str(node))


def _add_boot(domain: Element, guest: GuestDescription, site: Site) -> None:
    system = SubElement(domain, "os")
    _text(system, "type", "hvm", arch=site.architecture, machine=site.machine.partition(",")[0])
    _text(system, "kernel", site.kernel)
    _text(system, "initrd", site.initramfs)
    _text(system, "cmdline", f"{guest.words} {site.words}".strip())
    if site.architecture in ("x86_64", "aarch64"):
        SubElement(SubElement(domain, "features"), "acpi")


def _add_cpu(domain: Element, guest: GuestDescription, site: Site) -> None:
    cpu = SubElement(domain, "cpu", mode="maximum" if site.accelerator == TCG else "host-passthrough")
    if guest.has_topology:
        numa = SubElement(cpu, "numa")
        for number, cell in enumerate(guest.cells):
            SubElement(numa, "cell", id=str(number), cpus=str(number), memory=str(cell.memory), unit="b")


def _add_devices(domain: Element, guest: GuestDescription, site: Site) -> None:
    devices = SubElement(domain, "devices")
    _text(devices, "emulator", site.emulator)
    serial = SubElement(devices, "serial", type="unix")
    SubElement(serial, "source", mode="bind", path=site.console(guest.name))
    SubElement(serial, "log", file=site.log(guest.name), append="off")
    balloon = SubElement(devices, "memballoon", model="virtio" if guest.balloon else "none")
    if guest.reports_free_pages:
        balloon.set("freePageReporting", "on")
    if guest.on_crash is not None:
        SubElement(devices, "panic", model=_PANIC_MODELS[site.architecture])
    devices.extend(_memory_device(guest, device, site) for device in guest.devices)
    if guest.shares_files:
        files = SubElement(devices, "filesystem", type="mount", accessmode="passthrough")
        SubElement(files, "driver", type="virtiofs")
        SubElement(SubElement(files, "binary", path=site.virtiofsd), "sandbox", mode=SANDBOX)
        SubElement(files, "source", dir=site.shared(guest.name))
        SubElement(files, "target", dir=TAG)
    if guest.has_disk:
        disk = SubElement(devices, "disk", type="file", device="disk")
        SubElement(disk, "driver", name="qemu", type="raw", cache="none")
        SubElement(disk, "source", file=site.disk(guest.name))
        SubElement(disk, "target", dev="vda", bus="virtio")
        SubElement(disk, "readonly")
    if guest.has_peer:
        interface = SubElement(devices, "interface", type="vhostuser")
        SubElement(interface, "source", type="unix", path=site.peer(guest.name), mode="client")
        SubElement(interface, "model", type="virtio")


def _text(parent: Element, tag: str, text: str, **attributes: str) -> None:
    SubElement(parent, tag, attributes).text = text
