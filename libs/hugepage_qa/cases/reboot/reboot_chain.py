"""The chain of reboots: each start judges the boot that it finds, sets up the next one and asks for it.

tmt runs a test from its start again after a reboot. So nothing but the state file and the journal of the machine goes
from one start to the next.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.cases.reboot.reboot_case import RebootCase, load_cases
from hugepage_qa.cases.reboot.reboot_judge import compare_machines, judge_baseline, judge_case, stable_observations
from hugepage_qa.cases.reboot.reboot_machine import MachineUnderTest
from hugepage_qa.cases.reboot.reboot_state import Baseline, ChainState, StateFile, new_token
from hugepage_qa.cases.reboot.run_time_settings import OWN_FILE
from hugepage_qa.cases.result import Result, Verdict, because
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.facts import Facts
from hugepage_qa.machine.boot_loader.loader import ArgumentsLost
from hugepage_qa.machine.describe import describe
from hugepage_qa.machine.journal import Journal
from hugepage_qa.machine.protection import Protection
from hugepage_qa.oracle.compare import told


@dataclass(frozen=True)
class Preparation:
    """``judged`` is None when the machine is ready for the reboot, else how the case ends without one.

    ``summary`` and ``log`` are evidence that was found on the way.
    """

    judged: tuple[Verdict, str] | None = None
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
            return Preparation((Verdict.FAIL, told(differences)), summary, log)
    judged = _persist(machine, journal, case) or _add_words(machine, journal, case)
    return Preparation(judged, summary, log)


def _persist(machine: MachineUnderTest, journal: Journal, case: RebootCase) -> tuple[Verdict, str] | None:
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


def _add_words(machine: MachineUnderTest, journal: Journal, case: RebootCase) -> tuple[Verdict, str] | None:
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


BASELINE = "/reboot/baseline"
PUT_BACK = "/reboot/put-back"

_NOT_RUN = "not run: the chain of reboots ended before"
_NO_EVIDENCE = {"summary": "", "log": ""}


class Chain:
    """All reboot cases on one machine; ``data`` is the directory that stays from boot to boot."""

    def __init__(
        self,
        machine: MachineUnderTest,
        data: Path,
        report: Callable[[Sequence[Result]], None],
        say: Callable[[str], None],
    ) -> None:
        """``report`` takes the results as they would be if the chain ended now; ``say`` lines for people."""
        self._machine = machine
        self._file = StateFile(data)
        self._logs = data
        self._report = report
        self._say = say

    def start(self, boot: int, names: Sequence[str] = ()) -> bool:
        """Do what is to be done in boot number ``boot``, counted from 0; tell whether a reboot was asked for.

        ``names`` chooses cases, by default all. Raises InputError when the chain cannot go on; the machine is put
        back then.
        """
        chain = self._continue(boot) if boot else None
        if chain is None:
            chain, asked = self._run(new_token(), None, names)
        elif chain.running == PUT_BACK:
            self._compare(chain)
            asked = False
        else:
            chain, asked = self._run(chain.token, chain, names)
        self._report(_results(chain))
        return asked

    def _run(self, token: str, chain: ChainState | None, names: Sequence[str]) -> tuple[ChainState, bool]:
        """Judge this boot and set up the next one, on a machine that is put back if there is none."""
        with self._machine.protect(token) as protection:
            # what a killed run has left is put back by now
            facts, log = self._machine.read()
            if chain is None:
                chain = self._begin(token, facts, names)
                goes_on = self._judge_baseline(chain, facts, log)
            else:
                goes_on = self._arrive(chain, protection, facts, log)
            asked = goes_on and self._set_up_next(chain, protection, facts)
        if goes_on and not asked:
            asked = self._reboot_for_comparison(chain, protection)
        return chain, asked

    # --- the first and the last boot ---

    def _begin(self, token: str, facts: Facts, names: Sequence[str]) -> ChainState:
        if self._file.path.exists():
            raise InputError(
                f"{self._file.path}: of another chain of reboots, expected none in the first boot: remove it"
            )
        loader = self._machine.boot_loader()
        baseline = Baseline(loader.name, loader.arguments(), facts.command_line, stable_observations(facts))
        chain = ChainState(token, self._machine.boot_id(), facts.meminfo.get("MemTotal", 0), baseline)
        known = [case.name for case in self._cases(chain, facts)]
        if unknown := sorted(set(names) - set(known)):
            raise InputError(f"case {unknown[0]!r}: expected one of {', '.join(known)}")
        chain.waiting = [name for name in known if name in names or not names]
        return chain

    def _judge_baseline(self, chain: ChainState, facts: Facts, log: str) -> bool:
        config = self._machine.kernel_config(facts.release or "")
        settings = (self._machine.persisted(), self._machine.thp_settings)
        verdict, reason = judge_baseline(facts, config, *settings, chain.baseline.arguments)
        self._finish(chain, BASELINE, (verdict, reason), log)
        return verdict is not Verdict.ERROR

    def _reboot_for_comparison(self, chain: ChainState, protection: Protection) -> bool:
        """Have the machine boot as it did before all cases; it is put back."""
        if protection.unrestored:
            reason = "; ".join(map(str, protection.unrestored))
            chain.done.append(Result(PUT_BACK, Verdict.ERROR, (reason,)))
            return False
        self._leave(chain, PUT_BACK)
        self._machine.reboot()
        return True

    def _compare(self, chain: ChainState) -> None:
        """Judge whether the machine is as it was before all cases."""
        facts, log = self._machine.read()
        problems = [] if self._has_rebooted(chain) else ["the machine has not rebooted"]
        loader = self._machine.boot_loader()
        before, after = chain.baseline.arguments, loader.arguments()
        if after != before:
            problems.append(f"{loader.name}: arguments {' '.join(before)!r} before, {' '.join(after)!r} after")
        if facts.command_line != chain.baseline.command_line:
            problems.append(f"booted with {chain.baseline.command_line!r} before, {facts.command_line!r} after")
        problems += compare_machines(chain.baseline.observations, stable_observations(facts))
        verdict = Verdict.FAIL if problems else Verdict.PASS
        self._finish(chain, PUT_BACK, (verdict, "; ".join(problems)), log)

    # --- the boots in between ---

    def _continue(self, boot: int) -> ChainState:
        chain = self._file.load()
        if chain is None:
            raise InputError(f"{self._file.path}: no such file, expected what boot {boot - 1} of the chain wrote")
        if chain.boots != boot:
            raise InputError(f"boot {boot} by TMT_REBOOT_COUNT: expected {chain.boots}, as {self._file.path} says")
        self._report(_results(chain))
        return chain

    def _arrive(self, chain: ChainState, protection: Protection, facts: Facts, log: str) -> bool:
        """Judge the case that this boot is for; tell whether the chain can go on."""
        name = chain.running or ""
        case = next((case for case in self._cases(chain, facts) if case.name == name), None)
        if case is None:
            raise InputError(f"{self._file.path}: case {name!r}: expected one that there is")
        if not self._has_rebooted(chain):
            self._finish(chain, name, (Verdict.ERROR, "tmt-reboot: the machine has not rebooted"), log)
            return False
        if not protection.resumed:
            reason = "the machine was put back before this boot was judged: by another run, or it has booted twice"
            self._finish(chain, name, (Verdict.ERROR, reason), log)
            return False
        self._finish(chain, name, self._judge(chain, case, facts), log)
        # make room for the next case
        try:
            self._machine.persist(None)
            self._machine.boot_loader().remove(case.words)
        except ArgumentsLost as lost:
            chain.done.append(Result(PUT_BACK, Verdict.FAIL, (str(lost),)))
            return False
        return True

    def _judge(self, chain: ChainState, case: RebootCase, facts: Facts) -> tuple[Verdict, str]:
        config = self._machine.kernel_config(facts.release or "")
        settings = (self._machine.persisted(), self._machine.thp_settings)
        verdict, reason = judge_case(case, facts, config, *settings, chain.baseline.loader)
        return verdict, "; ".join(filter(None, (reason, chain.evidence["summary"])))

    def _set_up_next(self, chain: ChainState, protection: Protection, facts: Facts) -> bool:
        """Set up the next case that the machine can run and ask for its reboot; False when there is none left."""
        cases = {case.name: case for case in self._cases(chain, facts)}
        while chain.waiting:
            case = cases[chain.waiting[0]]
            self._say(f"{case.name}: {case.boot.words or 'no kernel arguments'}")
            chain.started = time.time()
            preparation = prepare(self._machine, protection.journal, case)
            chain.waiting.pop(0)
            chain.evidence = {"summary": preparation.summary, "log": preparation.log}
            if preparation.judged is None:
                protection.journal.expect_reboot(chain.token)
                self._leave(chain, case.name)
                self._machine.reboot()
                return True
            self._finish(chain, case.name, preparation.judged)
        return False

    # --- what all boots share ---

    def _cases(self, chain: ChainState, facts: Facts) -> list[RebootCase]:
        machine = describe(facts, self._machine.kernel_config(facts.release or ""))
        return load_cases(machine, " ".join(chain.baseline.arguments), chain.memory)

    def _has_rebooted(self, chain: ChainState) -> bool:
        return self._machine.boot_id() != chain.boot_id

    def _leave(self, chain: ChainState, running: str) -> None:
        """Write down that the next boot is for ``running``."""
        chain.running = running
        chain.boots += 1
        chain.boot_id = self._machine.boot_id()
        self._file.save(chain)
        self._report(_results(chain))

    def _finish(self, chain: ChainState, name: str, judged: tuple[Verdict, str], log: str = "") -> None:
        """Note how ``name`` ended, and keep the evidence of before its boot and the kernel log of it."""
        verdict, reason = judged
        self._say(f"{verdict.value} {name}{f': {reason}' if reason else ''}")
        text = "\n".join(filter(None, (chain.evidence["log"], log)))
        chain.evidence = dict(_NO_EVIDENCE)
        file = f"{len(chain.done):02}-{name.rpartition('/')[2]}.log" if text else None
        if file:
            (self._logs / file).write_text(text, encoding="utf-8", errors="backslashreplace")
        seconds = time.time() - chain.started if chain.started else 0.0
        chain.done.append(Result(name, verdict, because(reason), max(0.0, seconds), logs=(Path(file),) if file else ()))


def _results(chain: ChainState) -> list[Result]:
    """Return all results as they are if nothing more comes."""
    done = {result.name for result in chain.done}
    missing = [name for name in (BASELINE, chain.running, *chain.waiting, PUT_BACK) if name and name not in done]
    return [*chain.done, *(Result(name, Verdict.ERROR, (_NOT_RUN,)) for name in dict.fromkeys(missing))]
