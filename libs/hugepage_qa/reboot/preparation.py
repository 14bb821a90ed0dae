"""What is done before the reboot for a case, and what of it is taken back after."""

from dataclasses import dataclass

from hugepage_qa.machine.boot_loader import ArgumentsLost
from hugepage_qa.machine.journal import Journal
from hugepage_qa.reboot.case import RebootCase
from hugepage_qa.reboot.judge import Judged
from hugepage_qa.reboot.machine import MachineUnderTest
from hugepage_qa.reboot.persisted import OWN_FILE
from hugepage_qa.verdict import Verdict


@dataclass(frozen=True)
class Preparation:
    """``judged`` is None when the machine is ready for the reboot, else how the case ends without one.

    ``summary`` and ``log`` are evidence that was found on the way.
    """

    judged: Judged | None = None
    summary: str = ""
    log: str = ""


def prepare(machine: MachineUnderTest, journal: Journal, case: RebootCase) -> Preparation:
    """Make ``machine`` ready to boot for ``case``; what that changes is in ``journal`` before. Raises InputError."""
    if case.why_not:
        return Preparation((Verdict.SKIP, case.why_not))
    summary, log = "", ""
    if case.at_run_time is not None:
        reservation = machine.reserve_at_run_time(case.at_run_time.pages, case.at_run_time.size)
        summary, log = reservation.summary, reservation.log
        if differences := reservation.differences():
            return Preparation((Verdict.FAIL, "; ".join(map(str, differences))), summary, log)
    judged = _persist(machine, journal, case) or _add_words(machine, journal, case)
    return Preparation(judged, summary, log)


def take_back(machine: MachineUnderTest, case: RebootCase) -> None:
    """Remove what was set up for ``case``. Raises ArgumentsLost, InputError."""
    machine.persist(None)
    machine.boot_loader().remove(case.words)


def _persist(machine: MachineUnderTest, journal: Journal, case: RebootCase) -> Judged | None:
    if case.persisted is None:
        return None
    if not machine.applies_sysctl:
        return Verdict.SKIP, "no systemd: nothing is known to apply sysctl.d at boot"
    journal.keep_file(OWN_FILE)
    machine.persist(case.persisted)
    winner = machine.persisted()
    if winner is None or winner.path.name != OWN_FILE.name:
        machine.persist(None)
        return Verdict.SKIP, f"{winner.path if winner else OWN_FILE.parent} sets vm.nr_hugepages after {OWN_FILE}"
    return None


def _add_words(machine: MachineUnderTest, journal: Journal, case: RebootCase) -> Judged | None:
    loader = machine.boot_loader()
    for path in loader.configuration:
        journal.keep_file(path)
    journal.keep_arguments(loader.name, loader.arguments())
    try:
        loader.add(case.words)
    except ArgumentsLost as lost:
        machine.persist(None)
        return Verdict.FAIL, str(lost)
    return None
