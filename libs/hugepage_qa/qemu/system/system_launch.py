"""From what a user asks for to a machine that answers: kernel, image, directory, key, QEMU, ssh."""

import platform as host
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hugepage_qa.cache import locked, write_atomically
from hugepage_qa.errors import InputError
from hugepage_qa.process.child import run_to_end
from hugepage_qa.qemu.installed_emulator import expect_offered, find_emulator
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.probe_machine import Lab
from hugepage_qa.qemu.system.build_tools import SSH_KEYGEN, TO_BUILD, TO_START, find_firmware, program, require
from hugepage_qa.qemu.system.debian_root import ChosenKernel, choose_kernel, debian_root
from hugepage_qa.qemu.system.machine_registry import Registry, check_name
from hugepage_qa.qemu.system.platforms import Platform, find_platform
from hugepage_qa.qemu.system.secure_shell import ADDRESS
from hugepage_qa.qemu.system.system_arguments import (
    DISK,
    FIRMWARE_VARIABLES,
    INITRAMFS,
    KERNEL,
    DirectBoot,
    Hardware,
    machine_arguments,
)
from hugepage_qa.qemu.system.system_images import SystemImage, check_words, create_overlay, obtain_image, prune
from hugepage_qa.qemu.system.system_machine import DEADLINE, KNOWN_HOSTS, Record, SystemMachine
from hugepage_qa.qemu.system.system_roots import obtain_root
from hugepage_qa.qemu.virtual_machine import VirtualMachine, check_nodes
from hugepage_qa.sizes import GIB, MIB, parse_memory, parse_size


def private_key(cache: Path) -> Path:
    """Return the private key (mode 0600) below ``cache``; its public half has the suffix .pub. It is made once."""
    key = cache / "systems" / "id_ed25519"
    with locked(key.with_name("id_ed25519.lock")):
        if not (key.exists() and key.with_suffix(".pub").exists()):
            key.unlink(missing_ok=True)
            command = [program(SSH_KEYGEN), "-q", "-t", "ed25519", "-N", "", "-C", "hugepage-qa lab", "-f", str(key)]
            done = run_to_end(command)
            if done.returncode != 0:
                raise InputError(f"ssh-keygen cannot make {key}: {done.stderr.strip()}")
    return key


_NODE_DIGITS = 3
_PORT_TRIES = 5
_PORT_TAKEN = "Could not set up host forwarding rule"

Report = Callable[[str], None]


@dataclass(frozen=True)
class SystemOptions:
    """The machine that a user asks for."""

    memory: tuple[int, ...] = (4 * GIB,)
    """Bytes of each NUMA node; 0 is a node without memory."""
    cpus: int = 2
    kernel: Path | None = None
    """A kernel image or package file; None for the distribution's."""
    words: str = ""
    """Kernel arguments besides what the lab needs."""
    architecture: str = host.machine()
    name: str | None = None


def parse_nodes(memory: str | None, nodes: str | None) -> tuple[int, ...]:
    """Return the bytes of each NUMA node from ``memory`` (4G) and ``nodes``: a number, or sizes such as 3G,1G.

    Sizes need no ``memory``; with it their sum has to be the same. A number shares ``memory`` out in whole MiB, the
    first node takes the rest. Raises InputError for anything else.
    """
    if nodes is None or nodes.isdecimal():
        return _share(parse_size(memory or "4G"), nodes or "1")
    sizes = parse_memory(nodes)
    if memory is not None and parse_size(memory) != sum(sizes):
        raise InputError(
            f"memory {memory} and nodes {nodes}: the nodes have {sum(sizes)} bytes together, leave out one"
        )
    return sizes


def _share(memory: int, nodes: str) -> tuple[int, ...]:
    # Python refuses to convert thousands of digits
    count = int(nodes) if len(nodes) <= _NODE_DIGITS else 0
    if count < 1:
        raise InputError(f"{nodes[:20]} NUMA nodes: expected at least one, and not more than the machine can have")
    share = memory // count // MIB * MIB
    if share == 0:
        raise InputError(f"memory of {memory} bytes on {count} NUMA nodes: expected at least 1M for each")
    return (memory - share * (count - 1), *[share] * (count - 1))


def bring_up(cache: Path, options: SystemOptions, *, deadline: float = DEADLINE, report: Report) -> SystemMachine:
    """Build what is not in the cache, start the machine and wait until it answers over ssh.

    It outlives this process. Raises InputError for what cannot be, and when it does not come up; nothing is left then.
    """
    platform = _check(options)
    kernel = choose_kernel(options.kernel, options.architecture)
    key = private_key(cache)
    image, accelerator = _obtain(cache, platform, kernel, options.words, key, report)
    registry = Registry(cache)
    with registry.new_directory(options.name) as directory:
        direct = _fill(directory, platform, image, kernel, options.words)
        record = Record(
            name=directory.name,
            architecture=options.architecture,
            memory=options.memory,
            cpus=options.cpus,
            accelerator=accelerator,
            kernel=f"{kernel.image.release} without boot loader" if kernel.image else image.root.release,
            words=options.words,
            image=image.name,
            key=key,
            port=0,
            command=(),
        )
        machine = _start(registry, record, Hardware(platform, options.memory, options.cpus, accelerator), image, direct)
        machine.wait(deadline)
    # a machine that is being made right now names no image yet: any may be its own
    with suppress(InputError):
        prune(cache, registry.images_in_use())
    return machine


def _check(options: SystemOptions) -> Platform:
    """Return the platform of ``options``; InputError for what can never be brought up on this host."""
    platform = find_platform(options.architecture)
    if options.architecture != host.machine():
        raise InputError(
            f"architecture {options.architecture}: a root can be built on such a host, this is {host.machine()}"
        )
    check_nodes(platform.board, options.memory)
    check_words(platform.board, options.words)
    if options.name is not None:
        check_name(options.name)
    require(platform, [*TO_BUILD, *TO_START])
    return platform


def _obtain(
    cache: Path, platform: Platform, kernel: ChosenKernel, words: str, key: Path, report: Report
) -> tuple[SystemImage, str]:
    """Return the image and the accelerator that boots here; both come from the cache or take their time."""
    public_key = key.with_suffix(".pub").read_text(encoding="utf-8")
    root = obtain_root(cache, debian_root(platform, kernel), public_key, report=report)
    kernel_of_root = KernelImage(root.kernel, platform.board.architecture, root.release, None)
    probe = VirtualMachine(kernel_of_root, platform.board.default_cpu, (GIB,))
    accelerator = Lab(cache, report=report).accelerator(probe)
    # QEMU itself hands a kernel image its arguments
    boot_loader_words = "" if kernel.image else words
    return obtain_image(cache, platform, root, boot_loader_words, accelerator, report=report), accelerator


def _fill(
    directory: Path, platform: Platform, image: SystemImage, kernel: ChosenKernel, words: str
) -> DirectBoot | None:
    """Put disk and firmware, or disk and kernel, into the directory of a new machine."""
    create_overlay(image.disk, "qcow2", directory / DISK)
    if kernel.image is None:
        firmware = find_firmware(platform)
        if firmware:
            shutil.copyfile(firmware.variables, directory / FIRMWARE_VARIABLES)
        return None
    # a copy: the file may be built anew while the machine goes through its reboots
    shutil.copyfile(kernel.image.path, directory / KERNEL)
    initramfs = image.root.initramfs(kernel.image.release)
    if initramfs:
        shutil.copyfile(initramfs, directory / INITRAMFS)
    return DirectBoot(words, initramfs is not None)


def _start(
    registry: Registry, record: Record, hardware: Hardware, image: SystemImage, direct: DirectBoot | None
) -> SystemMachine:
    """Start the machine of ``record`` with its ssh on a free loopback port."""
    firmware = find_firmware(hardware.platform)
    if firmware is None:
        raise InputError("the UEFI firmware has just gone")
    emulator = find_emulator(hardware.platform.board)
    for last in (False,) * (_PORT_TRIES - 1) + (True,):
        with socket.socket() as probe:
            probe.bind((ADDRESS, 0))
            port = int(probe.getsockname()[1])
        arguments = machine_arguments(hardware, record.name, port, firmware.code, direct)
        expect_offered(emulator, arguments)
        machine = registry.keep(replace(record, port=port, command=(emulator, *arguments)))
        known = f"[{ADDRESS}]:{port} {image.root.host_key}\n"
        write_atomically(machine.directory / KNOWN_HOSTS, known.encode())
        try:
            machine.start()
        except InputError as error:
            # another program may have taken the port since we looked
            if last or _PORT_TAKEN not in str(error):
                raise
        else:
            break
    return machine
