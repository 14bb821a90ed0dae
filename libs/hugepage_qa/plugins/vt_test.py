"""What a test of the avocado-vt provider does: one variant of its configuration, judged as all cases on guests are.

It speaks to the serial console of a guest by a shell session of aexpect.
"""

import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol, TypeVar

import aexpect

from hugepage_qa.cases.case import Area, Case, Sizes
from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.cases.guest.guest_machine import LIBVIRT, QEMU
from hugepage_qa.cases.guest.guests import GuestAct, with_guests
from hugepage_qa.cases.judge import judge
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.pool_view import read_pool_view
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.errors import InputError
from hugepage_qa.machine.host import Host
from hugepage_qa.machine.protection import protected_machine
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.plugins.avocado_test import conclude
from hugepage_qa.plugins.guest_test import machine_with_guests
from hugepage_qa.process.marks import RUN
from hugepage_qa.qemu.guest.driver import GuestError
from hugepage_qa.qemu.guest.guest_description import Access, Source
from hugepage_qa.report.case_recorder import CaseRecorder
from hugepage_qa.sizes import format_size, parse_size

_Choice = TypeVar("_Choice")

_DRIVERS = {name: name for name in (QEMU, LIBVIRT)}
_SOURCES = {source.value: source for source in Source}
_ACCESSES = {access.value: access for access in Access}

#: with one of them avocado-vt sets the pool up, and empties it at the end (virttest HugePageConfig.cleanup())
_RESETS_THE_POOL = ("setup_hugepages", "hugepage")


class VtTest(Protocol):
    """What is used of avocado-vt's test object."""

    name: Any
    outputdir: str
    whiteboard: str

    def error(self, message: str) -> None:
        """End the test: it broke."""

    def fail(self, message: str) -> None:
        """End the test: what it tests did wrong."""

    def cancel(self, message: str) -> None:
        """End the test: it cannot be run here."""


def choose(params: Mapping[str, str], name: str, choices: Mapping[str, _Choice]) -> _Choice:
    """Return the choice that the parameter ``name`` names. Raises InputError for none, and for what is none."""
    value = params.get(name, "")
    if value not in choices:
        raise InputError(f"{name} = {value}: expected one of {', '.join(choices)}")
    return choices[value]


def read_backing(params: Mapping[str, str]) -> dict[str, Any]:
    """Return where the memory of the variant's guest comes from, as options of ``Guests.new``. Raises InputError."""
    return {
        "source": choose(params, "guest_source", _SOURCES),
        "access": choose(params, "guest_access", _ACCESSES),
    }


def run_variant(test: VtTest, params: Mapping[str, str], rule: Rule, act: GuestAct) -> None:
    """Judge ``act`` by ``rule`` with the driver and the page size that ``params`` name, and end ``test`` accordingly.

    The machine is put back: by the run that started avocado-vt, or here where nobody else does.
    """
    cases = CaseRecorder(Path(test.outputdir))
    try:
        _refuse_pool_setup(params)
        driver, size = choose(params, "guest_driver", _DRIVERS), parse_size(params.get("page_size", ""))
        protect = nullcontext() if RUN in os.environ else protected_machine("a test of the avocado-vt provider")
        with protect:
            cases.add(_judge(Area(f"vt/{driver}"), _case(test, rule, with_guests(act, driver)), size))
    except InputError as error:
        test.error(str(error))
    test.whiteboard = cases.text
    conclude(test, cases)


def _judge(area: Area, case: Case, size: int) -> Result:
    with machine_with_guests() as machine:
        host = Host(machine)
        judgement = judge(area, case, host, size) if size in read_pool_view(host).pools else None
    if judgement is None:
        name, page = f"/{area.name}/{case.name}", format_size(size)
        return Result(f"{name}/{page}", Verdict.SKIP, (f"this machine has no huge pages of {page}",))
    return judgement


def _case(test: VtTest, rule: Rule, act: Callable[[Live], None]) -> Case:
    """Return the case ``refuse.half.memfd`` for the test ``hugepage_qa.hugepages.refuse.half.memfd.page_2M``."""
    words = str(getattr(test.name, "name", test.name)).split(".")
    own = [word for word in words if word not in ("hugepage_qa", "hugepages") and not word.startswith("page_")]
    return Case(".".join(own), rule, act, pages=0, nodes=1, sizes=Sizes.EACH)


def _refuse_pool_setup(params: Mapping[str, str]) -> None:
    for name in _RESETS_THE_POOL:
        if params.get(name) == "yes":
            raise InputError(f"{name} = yes: avocado-vt would set nr_hugepages to 0 at the end; leave it out")


# the guest's shell has no prompt: one that prints it edits the lines that it reads, too. Quotes keep the prompt out of
# the echo of this line
_PROMPT = "@prompt "
_SHELL = "while echo -n '@pro''mpt '; read -r line; do eval \"$line\"; status=$?; done"
_SECONDS = 60.0
# between the end of a console and that of its guest
_END_SECONDS = 10.0


@contextmanager
def console_shell(guest: Guest) -> Iterator[Callable[[str], str]]:
    """Yield what runs a command in a booted guest, through its console, and returns what it printed.

    Both raise GuestError when a command fails or the guest has ended, InputError when one that is there does not answer
    within a minute: a guest that is emulated on a busy machine is slow.
    """
    with aexpect.ShellSession(
        f"nc -U {shlex.quote(guest.console)}", prompt=f"{_PROMPT}$", status_test_command="echo $status"
    ) as session:
        session.sendline(_SHELL)

        def run(command: str) -> str:
            try:
                return str(session.cmd(command, timeout=_SECONDS)).replace("\r\n", "\n")
            except aexpect.ShellCmdError as error:
                raise GuestError(str(error)) from error
            except aexpect.ShellError as error:
                raise _no_answer(guest, error) from error

        try:
            session.read_up_to_prompt(timeout=_SECONDS)
        except aexpect.ExpectError as error:
            raise _no_answer(guest, error) from error
        yield run


def _no_answer(guest: Guest, error: Exception) -> Exception:
    if guest.has_ended(_END_SECONDS):
        return GuestError(f"{guest.name} has ended by itself: {error}")
    return InputError(f"console of {guest.name}: {error}")
