"""``hugepage-qa lab``: whole systems under test, up, reachable, down."""

import os
import time
from pathlib import Path

import click

from hugepage_qa.cache import cache_directory
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.system.machine_registry import Registry
from hugepage_qa.qemu.system.platforms import PLATFORMS
from hugepage_qa.qemu.system.system_launch import SystemOptions, bring_up, parse_nodes
from hugepage_qa.qemu.system.system_machine import DEADLINE, SystemMachine
from hugepage_qa.sizes import format_size

_DEADLINE = click.option(
    "--deadline",
    type=click.FloatRange(1),
    default=DEADLINE,
    show_default=True,
    metavar="SECONDS",
    help="Until ssh must answer.",
)


def _say(line: str) -> None:
    click.echo(line, err=True)


@click.group(epilog="Example: hugepage-qa lab up --memory 4G --nodes 2; hugepage-qa lab ssh; hugepage-qa lab down")
def lab() -> None:
    """Whole systems under test in QEMU, with a real boot loader: up, ssh, reboot, down."""


@lab.command(epilog="Example: hugepage-qa lab up --memory 4G --nodes 2 --append 'hugepagesz=1G hugepages=1'")
@click.option("--memory", metavar="4G", help="Memory of all NUMA nodes together.  [default: 4G]")
@click.option("--nodes", metavar="2 | 3G,1G", help="Number of NUMA nodes, or the memory of each.  [default: 1]")
@click.option("--cpus", type=click.IntRange(1, 64), default=2, show_default=True)
@click.option(
    "--kernel",
    type=click.Path(path_type=Path),
    help="Kernel image, booted directly, or kernel package, installed; default: the distribution's.",
)
@click.option("--append", "words", default="", metavar="WORDS", help="Further kernel arguments.")
@click.option("--arch", "architecture", type=click.Choice(tuple(PLATFORMS)), help="Default: the host's.")
@click.option("--name", help="Default: lab1, lab2, ...")
@_DEADLINE
def up(
    memory: str | None,
    nodes: str | None,
    cpus: int,
    kernel: Path | None,
    words: str,
    architecture: str | None,
    name: str | None,
    deadline: float,
) -> None:
    """Start a machine, wait until it answers over ssh, and leave it running.

    The first one builds an image, which takes some minutes; the next start from the cache.
    """
    started = time.monotonic()
    options = SystemOptions(
        parse_nodes(memory, nodes), cpus, kernel, words, architecture or SystemOptions.architecture, name
    )
    machine = bring_up(cache_directory(), options, deadline=deadline, report=_say)
    _say(f"machine {machine.record.name} is up after {time.monotonic() - started:.0f} s: {_describe(machine)}")
    _say(f"serial log: {machine.serial_log}")
    _say(f"reach it: hugepage-qa lab ssh {machine.record.name}, end it: hugepage-qa lab down {machine.record.name}")
    click.echo(machine.record.name)


@lab.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("name", required=False)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def ssh(name: str | None, command: tuple[str, ...]) -> None:
    """Log into machine NAME, or run COMMAND in it; NAME can be left out while there is one machine and no COMMAND.

    COMMAND goes to the machine's shell as ssh hands it over; its exit code is ours.
    """
    machine = _running(name)
    # as a word of the command the shell there would refuse it
    command = command[1:] if command[:1] == ("--",) else command
    words = machine.shell.command_line(command, terminal=not command)
    os.execv(words[0], words)  # noqa: S606 - no shell is wanted on this side


@lab.command()
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="All machines.")
def down(name: str | None, everything: bool) -> None:
    """End machine NAME and remove its disk; NAME can be left out while there is one machine."""
    registry = Registry(cache_directory())
    if everything and name:
        raise click.UsageError("NAME and --all: expected one of them")
    for one in registry.names() if everything else [registry.one_name(name)]:
        ran = registry.drop(one)
        _say(f"machine {one} is gone{'' if ran else ', its QEMU had died before'}")


@lab.command("list")
def list_machines() -> None:
    """List the machines, also those whose QEMU has died."""
    registry = Registry(cache_directory())
    for name in registry.names():
        try:
            machine = registry.find(name)
        except InputError as error:
            click.echo(f"{name}: {error}")
            continue
        state = "running" if machine.running else "QEMU has died, lab power-on or lab down"
        click.echo(f"{name}: {state}: {_describe(machine)}")


@lab.command()
@click.argument("name", required=False)
@click.option("--hard", is_flag=True, help="Press the reset button instead of asking the system.")
@_DEADLINE
def reboot(name: str | None, hard: bool, deadline: float) -> None:
    """Reboot machine NAME and wait until it is up again."""
    machine = _running(name)
    started = time.monotonic()
    machine.reset(deadline) if hard else machine.reboot(deadline)
    _say(f"machine {machine.record.name} is up again after {time.monotonic() - started:.0f} s")


@lab.command("power-cut")
@click.argument("name", required=False)
def power_cut(name: str | None) -> None:
    """Take the power from machine NAME: what it had not written to its disk is lost."""
    machine = _running(name)
    machine.power_cut()
    _say(f"machine {machine.record.name} is off: hugepage-qa lab power-on {machine.record.name}")


@lab.command("power-on")
@click.argument("name", required=False)
@_DEADLINE
def power_on(name: str | None, deadline: float) -> None:
    """Start machine NAME on its disk again and wait until it is up."""
    machine = Registry(cache_directory()).find(name)
    started = time.monotonic()
    machine.power_on(deadline)
    _say(f"machine {machine.record.name} is up again after {time.monotonic() - started:.0f} s")


def _running(name: str | None) -> SystemMachine:
    machine = Registry(cache_directory()).find(name)
    machine.require_running()
    return machine


def _describe(machine: SystemMachine) -> str:
    record = machine.record
    nodes = ",".join(map(format_size, record.memory))
    words = f", {record.words}" if record.words else ""
    return f"{record.architecture} ({record.accelerator}), memory {nodes}, {record.cpus} CPUs, {record.kernel}{words}"
