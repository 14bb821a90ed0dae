#!/usr/bin/env python3
"""QEMU of this machine with no more than RHEL's /usr/libexec/qemu-kvm has on x86_64: it refuses all else as that does.

RHEL=9 (the default) is 9.8, RHEL=10 is 10.2; RHEL_ACCELERATORS=kvm is one that was built without TCG. What they have is
from the files of the package: machine types and CPUs of its patches (SOURCES/0010; old CPUs are deprecated, not gone),
devices of x86_64-rh-devices.mak and rh-virtio.mak, --enable-tcg of qemu-kvm.spec; and from what "-machine help" prints
on Rocky Linux 9.8. Of 10 it has the machine types that are known, and no other.

The real QEMU has no machine type of RHEL: its own q35 or pc stands for it. Monitors are not filtered: what libvirt asks
them is answered by the real one.
"""

import os
import re
import shutil
import subprocess
import sys

_Q35 = {
    "9": ["9.8.0", "9.6.0", "9.4.0", "9.2.0", "9.0.0", "8.6.0", "8.5.0", "8.4.0", "8.3.0", "8.2.0", "8.1.0", "8.0.0"],
    "10": ["10.2.0", "10.0.0"],
}
_DEVICES = re.compile(
    r"isa-serial|pci-serial(-[24]x)?|pc-dimm|nvdimm|pcie-root-port|ioh3420|pci-bridge|pcie-pci-bridge|pxb(-pcie|-cxl)?"
    r"|x3130-upstream|xio3130-downstream|cxl-(rp|type3)|virtio-(mem|balloon|blk|net|rng|scsi|serial|gpu|iommu)-pci"
    r"|virtio-(keyboard|mouse|tablet|input-host)-pci|virtio-vga|virtconsole|virtserialport|vhost-(scsi|vsock)-pci"
    r"|vhost-user-(fs|vsock|blk)-pci|scsi-(hd|cd|block|generic)|ide-(cd|hd)|ich9-(ahci|intel-hda)|e1000e?|rtl8139"
    r"|VGA|secondary-vga|bochs-display|qemu-xhci|usb-(hub|kbd|mouse|tablet|storage|host|redir)|vfio-pci|edu|pvpanic"
    r"|vmgenid|vmcoreinfo|i6300esb|tpm-(crb|tis)|intel-iommu|(host|max)-x86_64-cpu"
)
_REAL = shutil.which("qemu-system-x86_64", path="/usr/bin:/usr/local/bin") or "qemu-system-x86_64"
_RELEASE = os.environ.get("RHEL", "9")
_ACCELERATORS = os.environ.get("RHEL_ACCELERATORS", "tcg kvm").split()
_HELP = 2


def main() -> None:
    """Be RHEL's QEMU."""
    arguments = sys.argv[1:]
    if len(arguments) == _HELP and arguments[1] == "help":
        sys.stdout.writelines(f"{line}\n" for line in help_of(arguments[0]))
        return
    given = [translate(option, value) for option, value in zip(["", *arguments], arguments, strict=False)]
    os.execv(_REAL, ["qemu-kvm", *given])  # noqa: S606 - no shell is wanted


def machines() -> dict[str, str]:
    """Return machine type of RHEL -> that of the real QEMU, in the order of its help."""
    types = {f"pc-q35-rhel{version}": "q35" for version in _Q35[_RELEASE]}
    i440fx = {"pc": "pc", "pc-i440fx-rhel7.6.0": "pc"} if _RELEASE == "9" else {}
    return {**i440fx, "q35": "q35", **types, "none": "none"}


def help_of(option: str) -> list[str]:
    """Return the lines that RHEL's has on an option."""
    if option == "-machine":
        newest = f" (alias of pc-q35-rhel{_Q35[_RELEASE][0]})"
        return ["Supported machines are:", *(f"{name:20} RHEL{newest if name == 'q35' else ''}" for name in machines())]
    if option == "-accel":
        return ["Accelerators supported in QEMU binary:", *_ACCELERATORS]
    said = subprocess.run([_REAL, option, "help"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in said if option == "-cpu" or (line.startswith("name") and has_device(line.split('"')[1]))]


def has_device(name: str) -> bool:
    """Tell whether RHEL's has the device."""
    return _DEVICES.fullmatch(name) is not None


def translate(option: str, value: str) -> str:
    """Return what the real QEMU takes for ``value``; ends where RHEL's does."""
    name, comma, rest = value.partition(",")
    if option in ("-machine", "-M") and "=" not in name:
        if name not in machines():
            sys.exit("qemu-kvm: unsupported machine type\nUse -machine help to list supported machines")
        return machines()[name] + comma + rest
    if option == "-accel" and name not in _ACCELERATORS:
        sys.exit(f"qemu-kvm: -accel {value}: invalid accelerator {name}")
    if option == "-device" and not value.startswith("{") and not has_device(name):
        sys.exit(f"qemu-kvm: -device {value}: '{name}' is not a valid device model name")
    return value


if __name__ == "__main__":
    main()
