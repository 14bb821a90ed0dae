"""What a test of the avocado-vt provider does: one variant of its configuration, judged as all cases on guests are."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hugepage_qa.errors import InputError
from hugepage_qa.guest.case import GuestAct, with_guests
from hugepage_qa.guest.description import Access, Source
from hugepage_qa.guest.machine import LIBVIRT, QEMU
from hugepage_qa.live.case import Area, Case, Sizes
from hugepage_qa.live.host import Host
from hugepage_qa.live.judge import LiveJudgement, judge
from hugepage_qa.live.live import Live
from hugepage_qa.live.pool_view import read_pool_view
from hugepage_qa.machine.marks import RUN
from hugepage_qa.machine.protection import protected_machine
from hugepage_qa.model.rules import Rule
from hugepage_qa.plugins.case_test import conclude
from hugepage_qa.plugins.guest_test import machine_with_guests
from hugepage_qa.report.whiteboard import CaseRecorder
from hugepage_qa.sizes import format_size, parse_size
from hugepage_qa.verdict import Verdict

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
        with _protection():
            cases.add(_judge(Area(f"vt/{driver}"), _case(test, rule, with_guests(act, driver)), size))
    except InputError as error:
        test.error(str(error))
    test.whiteboard = cases.text
    conclude(test, cases)


def _judge(area: Area, case: Case, size: int) -> LiveJudgement:
    with machine_with_guests() as machine:
        host = Host(machine)
        judgement = judge(area, case, host, size) if size in read_pool_view(host).pools else None
    if judgement is None:
        name, page = f"/{area.name}/{case.name}", format_size(size)
        return LiveJudgement(f"{name}/{page}", Verdict.SKIP, f"this machine has no huge pages of {page}", seconds=0)
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


def _protection() -> AbstractContextManager[object]:
    return nullcontext() if RUN in os.environ else protected_machine("a test of the avocado-vt provider")
