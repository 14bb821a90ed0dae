#!/usr/bin/env python3
"""QEMU of this machine with no more than RHEL's /usr/libexec/qemu-kvm has on x86_64: it refuses all else as that does.

RHEL=9 (the default) is 9.8, RHEL=10 is 10.2; RHEL_ACCELERATORS=kvm is one that was built without TCG. What they have is
from the files of the package: machine types and CPUs of its patches (SOURCES/0010; old CPUs are deprecated, not gone),
devices of x86_64-rh-devices.mak and rh-virtio.mak, --enable-tcg of qemu-kvm.spec; and from what "-machine help" prints
on Rocky Linux 9.8. Of 10 it has the machine types that are known, and no other.

The real QEMU, which RHEL_REAL names where it is hidden, has no machine type of RHEL: its own q35 or pc stands for it.
Monitors are its own, but for that of a machine without anything, which is how libvirt asks what there is: machine types
and devices are RHEL's there, too.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

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
#: of a device of virtio
_KIND = re.compile(r"-(?:non-)?transitional$")
_EMULATOR = "qemu-system-x86_64"
_REAL = os.environ.get("RHEL_REAL") or shutil.which(_EMULATOR, path="/usr/bin:/usr/local/bin") or _EMULATOR
_RELEASE = os.environ.get("RHEL", "9")
_ACCELERATORS = os.environ.get("RHEL_ACCELERATORS", "tcg kvm").split()
_HELP = 2
#: until a client of the monitor is there
_SECONDS = 60.0
_PIECE = 65536


def main() -> None:
    """Be RHEL's QEMU."""
    arguments = sys.argv[1:]
    if len(arguments) == _HELP and arguments[1] == "help":
        sys.stdout.writelines(f"{line}\n" for line in help_of(arguments[0]))
        return
    given = [translate(option, value) for option, value in zip(["", *arguments], arguments, strict=False)]
    if "-qmp" in given and any(value.startswith("none,") for value in given):
        given = with_monitor(given, {"query-machines": machine_types, "qom-list-types": without_missing_devices})
    os.execv(_REAL, ["qemu-kvm", *given])  # noqa: S606 - no shell is wanted


def machines() -> dict[str, str]:
    """Return machine type of RHEL -> that of the real QEMU, in the order of its help."""
    types = {f"pc-q35-rhel{version}": "q35" for version in _Q35[_RELEASE]}
    i440fx = {"pc": "pc", "pc-i440fx-rhel7.6.0": "pc"} if _RELEASE == "9" else {}
    return {**i440fx, "q35": "q35", **types, "none": "none"}


def aliases() -> dict[str, str]:
    """Return name of a machine type -> what RHEL calls it, too."""
    return {"pc-i440fx-rhel7.6.0": "pc", f"pc-q35-rhel{_Q35[_RELEASE][0]}": "q35"}


def help_of(option: str) -> list[str]:
    """Return the lines that RHEL's has on an option."""
    if option == "-machine":
        newest = f" (alias of pc-q35-rhel{_Q35[_RELEASE][0]})"
        return ["Supported machines are:", *(f"{name:20} RHEL{newest if name == 'q35' else ''}" for name in machines())]
    if option == "-accel":
        return ["Accelerators supported in QEMU binary:", *_ACCELERATORS]
    said = real_help(option)
    return [line for line in said if option == "-cpu" or (line.startswith("name") and has_device(line.split('"')[1]))]


def real_help(option: str) -> list[str]:
    """Return the lines that the real one has on an option."""
    return subprocess.run([_REAL, option, "help"], capture_output=True, text=True, check=True).stdout.splitlines()


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
    if option == "-device":
        device = json.loads(value)["driver"] if value.startswith("{") else name
        if not has_device(device):
            sys.exit(f"qemu-kvm: -device {value}: '{device}' is not a valid device model name")
    return value


def machine_types(real: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the answer of query-machines, of which ``real`` is that of the real one."""
    by_name = {name: one for one in real for name in (one["name"], one.get("alias"))}
    own = ("name", "alias", "is-default")
    told = {name: by_name[like] for name, like in machines().items() if name not in aliases().values()}
    return [
        {key: value for key, value in one.items() if key not in own}
        | {"name": name}
        | ({"alias": aliases()[name]} if name in aliases() else {})
        for name, one in told.items()
    ]


def without_missing_devices(real: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the answer of qom-list-types, of which ``real`` is that of the real one; it has all CPUs."""
    devices = [line.split('"')[1] for line in real_help("-device") if line.startswith("name")]
    missing = {name for name in devices if not (has_part(name) or name.endswith("-cpu"))}
    return [one for one in real if one["name"] not in missing]


def has_part(name: str) -> bool:
    """Tell whether RHEL's has the device, or it is what a device of virtio consists of, or another kind of that."""
    itself = _KIND.sub("", name)
    return has_device(itself) or has_device(f"{itself.removesuffix('-device')}-pci")


Answers = Mapping[str, Callable[[Any], Any]]


def with_monitor(arguments: list[str], answers: Answers) -> list[str]:
    """Listen where ``arguments`` have the monitor, and return those with which the real one listens beside it.

    ``answers`` is command -> what is answered for what the real one answers. Who listens ends with the real one.
    """
    place = arguments.index("-qmp") + 1
    path, comma, options = arguments[place].removeprefix("unix:").partition(",")
    real = f"{path}.real"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen()
    if os.fork() == 0:
        # whoever started QEMU waits for the end of what it says
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(null, standard)
        with suppress(OSError):
            pass_on(listener, real, answers)
        os._exit(0)
    return [*arguments[:place], f"unix:{real}{comma}{options}", *arguments[place + 1 :]]


def pass_on(listener: socket.socket, path: str, answers: Answers) -> None:
    """Hand on what one client asks the monitor at ``path``, and what that answers."""
    listener.settimeout(_SECONDS)
    client, _ = listener.accept()
    client.settimeout(None)
    with client, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as real:
        real.connect(path)
        os.unlink(path)  # noqa: PTH108 - a name, and no more
        asked: dict[Any, str] = {}
        threading.Thread(target=ask, args=(client, real, asked), daemon=True).start()
        with real.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                said = json.loads(line)
                command = asked.pop(said.get("id"), "")
                if command in answers and "return" in said:
                    said["return"] = answers[command](said["return"])
                client.sendall(f"{json.dumps(said)}\r\n".encode())


def ask(client: socket.socket, real: socket.socket, asked: dict[Any, str]) -> None:
    """Hand on what the client asks, with line ends or without, and keep by its id which command it was."""
    text = ""
    with suppress(OSError):
        while piece := client.recv(_PIECE):
            text += piece.decode()
            while text := text.lstrip():
                try:
                    command, end = json.JSONDecoder().raw_decode(text)
                except json.JSONDecodeError:
                    break
                asked[command.get("id")] = command.get("execute", "")
                real.sendall(text[:end].encode())
                text = text[end:]
        real.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main()
