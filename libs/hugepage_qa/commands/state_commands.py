"""``hugepage-qa state``: save the machine under test, show what has changed, and put it back."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from hugepage_qa.cases.result import ExitCode
from hugepage_qa.errors import InputError
from hugepage_qa.machine.boot_loader.find_loader import find_boot_loader
from hugepage_qa.machine.journal import Journal, find_journal, read_boot_id
from hugepage_qa.machine.protection import StopSignals, new_record, require_root
from hugepage_qa.machine.restore import restore
from hugepage_qa.machine.resume import install_unit, leave_for_its_run, remove_unit
from hugepage_qa.machine.run_lock import hold_run_lock, read_holder
from hugepage_qa.machine.saved_state import MachineState, Record
from hugepage_qa.machine.snapshot import Snapshot, differences

_ROOT = Path("/")


@click.group(epilog="Example: hugepage-qa state save; echo 64 > /proc/sys/vm/nr_hugepages; hugepage-qa state restore")
def state() -> None:
    """Save the huge page settings of this machine, and put them back.

    Runs that change the machine do both by themselves. The commands are for changes by hand, and for a machine on
    which a run was killed. The journal is /var/lib/hugepage-qa/journal.json, or in $HUGEPAGE_QA_STATE.
    """


@state.command(epilog="Example: hugepage-qa state save")
def save() -> None:
    """Save pools, THP, sysctls, mounts and cgroups as they are now. Needs root."""
    require_root("state save")
    with StopSignals(), hold_run_lock(_ROOT) as holder:
        journal = find_journal(_ROOT)
        if (record := journal.read()) is not None:
            raise InputError(
                f"journal {journal.path}: {_title(record)} is saved already: expected none, restore it first"
            )
        journal.begin(new_record("saved by hand", holder, _ROOT))
    click.echo(f"saved to {journal.path}")


@state.command(name="restore", epilog="Example: hugepage-qa state restore")
@click.option("--boot", is_flag=True, help="Leave a machine alone whose run goes on after a reboot: for systemd.")
def restore_command(boot: bool) -> None:
    """Put the machine back to what was saved, and say what that took. Needs root.

    Exit code: 0 it is as saved, 1 something could not be put back and stays in the journal, 3 the input is wrong.
    """
    require_root("state restore")
    with StopSignals(), hold_run_lock(_ROOT):
        journal = find_journal(_ROOT)
        record = journal.read()
        if record is None:
            click.echo(f"nothing is saved in {journal.path}: there is nothing to put back")
            return
        if boot and leave_for_its_run(journal, _ROOT):
            click.echo(f"left alone: {_title(record)} goes on after this boot")
            return
        restoration = restore(journal, record, find_boot_loader, _ROOT)
    for line in (*restoration.repairs, *restoration.notices):
        click.echo(str(line))
    if restoration.unrestored:
        click.echo(f"what was not put back stays in {journal.path}: try again, or reboot and remove it")
        sys.exit(ExitCode.BAD)
    click.echo(f"the machine is as run {record.run_id} found it")


@state.command(epilog="Example: hugepage-qa state show --json")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(as_json: bool) -> None:
    """Show who changes the machine, what is saved, and what is different now.

    Without root it shows what it can. The JSON object has the keys holder, journal (the path), saved (the journal's
    content or null), now (the machine), changes (lines), and unknown (lines on what could not be read).
    """
    overview = _look(find_journal(_ROOT))
    if as_json:
        click.echo(json.dumps(asdict(overview) | {"changes": overview.changes}, indent=2))
        return
    for line in overview.lines():
        click.echo(line)


@state.command(name="install-unit", epilog="Example: hugepage-qa state install-unit")
def install_command() -> None:
    """Have systemd put the machine back at boot when a run was cut off by a crash or a power cut. Needs root."""
    require_root("state install-unit")
    click.echo(f"installed {install_unit(_ROOT)}: it works from the next boot on")


@state.command(name="remove-unit", epilog="Example: hugepage-qa state remove-unit")
def remove_command() -> None:
    """Remove what install-unit installed. Needs root."""
    require_root("state remove-unit")
    click.echo(f"removed {remove_unit(_ROOT)}")


def _title(record: Record) -> str:
    return f"run {record.run_id} ({record.purpose}; {record.holder})"


@dataclass(frozen=True)
class _Overview:
    """Who changes the machine, what its journal holds, how it is now, and what could not be read."""

    holder: str | None
    journal: str
    saved: Record | None
    now: MachineState
    unknown: tuple[str, ...]

    @property
    def changes(self) -> list[str]:
        """One line for each value that is not as saved; a boot has reset them."""
        if self.saved is None or self.saved.boot_id != read_boot_id(_ROOT):
            return []
        return differences(Snapshot(self.saved.state.values()), Snapshot(self.now.values()))

    def lines(self) -> Iterator[str]:
        """The same for people."""
        if self.holder or not self.unknown:
            yield f"in use by {self.holder or 'nobody'}"
        yield from (f"not known: {line}" for line in self.unknown)
        if self.saved is None:
            if not self.unknown:
                yield f"nothing is saved in {self.journal}"
            yield from (f"  {subject}: {value}" for subject, value in self.now.values().items())
            return
        yield f"saved in {self.journal} by {_title(self.saved)}"
        yield from _persistent(self.saved)
        if self.saved.boot_id != read_boot_id(_ROOT):
            yield "the machine was booted since: its pools and knobs are those of the boot"
        elif not self.changes:
            yield "the machine is as saved"
        yield from (f"  {line}" for line in self.changes)


def _persistent(record: Record) -> Iterator[str]:
    if record.expected_reboot is not None:
        yield "its run goes on after a reboot"
    for file in record.files:
        yield f"  file {file.path}: to be put back to {file}"
    if record.arguments is not None:
        words = " ".join(record.arguments.arguments)
        yield f"  kernel arguments ({record.arguments.loader}): to be put back to {words}"


def _look(journal: Journal) -> _Overview:
    unknown = []
    holder = saved = None
    try:
        holder = read_holder(_ROOT)
    except OSError as error:
        unknown.append(f"who changes the machine ({error.strerror})")
    try:
        saved = journal.read()
    except InputError as error:
        unknown.append(str(error))
    return _Overview(holder, str(journal.path), saved, MachineState.read(_ROOT), tuple(unknown))
