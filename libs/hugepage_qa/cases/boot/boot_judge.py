"""One case: boot it, predict it, compare, decide."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from pathlib import Path
from threading import Lock

from hugepage_qa.cases.boot.boot_case import BootCase
from hugepage_qa.cases.result import Result, Verdict, because
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.facts import Facts, read_facts
from hugepage_qa.machine.describe import boot_observations, describe
from hugepage_qa.oracle.architecture import Machine
from hugepage_qa.oracle.boot.predict import possible_deviations, predict
from hugepage_qa.oracle.boot.unknown_parameters import PARAMETERS, is_known
from hugepage_qa.oracle.compare import Difference, compare
from hugepage_qa.oracle.known_issues import KNOWN_ISSUES, Quirk
from hugepage_qa.oracle.prediction import Prediction
from hugepage_qa.oracle.rules import SURVIVES, Rule
from hugepage_qa.qemu.nominal import nominal_machine
from hugepage_qa.qemu.probe_machine import (
    Boot,
    Ending,
    Lab,
    ProbeMachine,
)
from hugepage_qa.version import KernelVersion

_OUT_OF_MEMORY = re.compile(r"deadlocked on memory|[Oo]ut of memory|page allocation failure|no killable processes")
_CRASH = re.compile(r"BUG: |\bOops\b|Unable to handle kernel")
#: how often the same words must end in the same way before that is called their doing: the host may have been busy
_TRIES = 2
#: QEMU 7.2 broke in 5 of 72 boots of Linux 6.12
_TRIES_OF_EMULATION = 5


@dataclass(frozen=True)
class Kernel:
    """The kernel under test: its image, its version, its configuration where that is known, modules of its package."""

    image: Path
    release: str
    config: Mapping[str, str] | None
    modules: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BootResult(Result):
    """What came of one boot; the evidence is its serial log."""

    case: BootCase
    command_line: str
    differences: tuple[Difference, ...] = ()
    known: tuple[Quirk, ...] = ()
    remarks: tuple[str, ...] = ()
    facts: Facts | None = None
    prediction: Prediction | None = None


@dataclass
class Judge:
    """Judges cases of one architecture on probe machines of one lab; can be used by several threads at once."""

    lab: Lab
    kernel: Kernel
    append: str = ""
    _controls: dict[tuple[object, ...], Boot] = field(default_factory=dict)
    _asked: Mapping[str, str] | None = None
    _lock: Lock = field(default_factory=Lock)

    def judge(self, case: BootCase) -> BootResult:
        """Boot ``case`` and judge it. Raises InputError where the machine cannot be started at all."""
        words = f"{case.words} {self.append}".strip()
        if lacking := self._lacking(case, words):
            return BootResult(case.name, Verdict.SKIP, tuple(lacking), case=case, command_line=words)
        tries = 1 if self._may_exhaust(case, words) else _TRIES
        boot, before = self._boot(self._machine(case, words), tries)
        if boot.tree is None or boot.ending is not Ending.POWERED_OFF:
            return self._judge_broken(case, boot, words)
        try:
            facts = read_facts(boot.tree)
            machine = describe(facts, self.kernel.config)
        except InputError as error:
            return _result(case, boot, words, Verdict.ERROR, f"the capture cannot be read: {error}")
        if not facts.command_line.endswith(words):
            reason = f"the kernel was booted with {facts.command_line!r}, which does not end with {words!r}"
            return _result(case, boot, words, Verdict.ERROR, reason)
        judgement = _judge_facts(case, boot, words, facts, machine)
        if before is None:
            return judgement
        tried = f"booted again after: {before.ending.value}: {before.reason}"
        evidence = f"{before.serial}\n{judgement.evidence}"
        return replace(judgement, reasons=(*judgement.reasons, tried), evidence=evidence)

    def _machine(self, case: BootCase, words: str) -> ProbeMachine:
        return ProbeMachine(
            architecture=case.architecture,
            cpu=case.cpu,
            kernel=self.kernel.image,
            memory=case.memory,
            command_line=words,
            cpus=case.cpus,
        )

    def _boot(self, machine: ProbeMachine, tries: int) -> tuple[Boot, Boot | None]:
        """Boot ``machine``, and again where it did not come up; return the last boot and the one before it.

        An emulation that broke says nothing of the kernel, however often.
        """
        most = {
            Ending.HUNG: tries,
            Ending.GARBLED: tries,
            Ending.PANICKED: _TRIES,
            Ending.EMULATION_BROKE: _TRIES_OF_EMULATION,
        }
        endings: Counter[Ending] = Counter()
        before = None
        while True:
            boot = self.lab.boot(machine)
            endings[boot.ending] += 1
            if endings[boot.ending] >= most.get(boot.ending, 1):
                return boot, before
            before = boot

    def _judge_broken(self, case: BootCase, boot: Boot, words: str) -> BootResult:
        """Judge a boot that never got to its init: the kernel's fault only if it does without the words."""
        if boot.ending in (Ending.QEMU_FAILED, Ending.EMULATION_BROKE):
            return _result(case, boot, words, Verdict.ERROR, boot.reason)
        control = self._control(case)
        if control.ending is not Ending.POWERED_OFF:
            reason = f"{boot.ending.value}: {boot.reason}; so it does without the words under test"
            return _result(case, boot, words, Verdict.ERROR, reason)
        if self._may_exhaust(case, words) and not _CRASH.search(boot.serial):
            if _OUT_OF_MEMORY.search(boot.serial):
                return _result(case, boot, words, Verdict.PASS, f"asked for all memory: {boot.reason}")
            if boot.ending is not Ending.PANICKED:
                # arm64 and POWER wait for ever for the memory that they gave away
                return _result(case, boot, words, Verdict.SKIP, f"asked for all memory, not decided: {boot.reason}")
        found = f"{boot.ending.value}: {boot.reason}; without the words under test this kernel boots"
        difference = Difference("boot", SURVIVES, Ending.POWERED_OFF.value, found)
        return replace(_result(case, boot, words, Verdict.FAIL, str(difference)), differences=(difference,))

    def _may_exhaust(self, case: BootCase, words: str) -> bool:
        return predict(words, self._nominal(case)).may_exhaust_memory

    def _control(self, case: BootCase) -> Boot:
        """Return the boot of the same machine without the words under test; it is made once."""
        key = (case.architecture, case.cpu, case.memory, case.cpus)
        with self._lock:
            if key not in self._controls:
                self._controls[key], _ = self._boot(self._machine(case, self.append), _TRIES)
            return self._controls[key]

    def _lacking(self, case: BootCase, words: str) -> list[str]:
        """Return which parameters of ``words`` this kernel does not know, so that no machine boots to learn it."""
        machine = self._nominal(case)
        names = [item.subject for item in predict(words, machine).unjudged if item.subject in PARAMETERS]
        refused = self._refused(case) if names else {}
        return [f"{name}: {refused[name]}" for name in names if name in refused]

    def _refused(self, case: BootCase) -> Mapping[str, str]:
        """Return the parameters that the kernel does not know -> why; empty where it did not boot.

        Distributions backport parameters, so it is asked for all that its version does not promise, in one boot. The
        value 0 sets none of them, or is complained about by a kernel that knows the parameter.
        """
        with self._lock:
            if self._asked is None:
                machine = self._nominal(case)
                names = [name for name in PARAMETERS if not is_known(name, machine)]
                words = " ".join((*(f"{name}=0" for name in names), self.append)).strip()
                boot, _ = self._boot(self._machine(case, words), _TRIES)
                self._asked = _parameters_not_judged(boot, words, self.kernel)
            return self._asked

    def _nominal(self, case: BootCase) -> Machine:
        version = KernelVersion.parse(self.kernel.release)
        return nominal_machine(case.architecture, case.cpu, case.memory, version, self.kernel.config)


def _parameters_not_judged(boot: Boot, words: str, kernel: Kernel) -> Mapping[str, str]:
    if boot.tree is None or boot.ending is not Ending.POWERED_OFF:
        return {}
    try:
        machine = describe(read_facts(boot.tree), kernel.config)
    except InputError:
        return {}
    return {item.subject: item.reason for item in predict(words, machine).unjudged if item.subject in PARAMETERS}


def judge_facts(
    words: str,
    facts: Facts,
    machine: Machine,
    examples: Callable[[Facts], list[Difference]] = lambda _: [],
    later: Callable[[Prediction], Prediction] = lambda prediction: prediction,
) -> tuple[Prediction, list[Difference], tuple[Quirk, ...]]:
    """Compare a machine with its prediction.

    ``later`` makes of the prediction for the boot that for the moment of the facts, where something came between.
    Return the prediction in force, the differences that remain, and the known issues that explain the others.
    """
    observations = boot_observations(facts)
    log = [line.text for line in facts.log]
    documented = later(predict(words, machine))
    modelled = compare(documented, observations, log)
    literal = examples(facts)
    # an issue can only explain what differs in the model's eyes, too
    explainable = {difference.subject for difference in modelled}
    if modelled and all(difference.subject in explainable for difference in literal):
        for quirks in _subsets(possible_deviations(words, machine)):
            prediction = later(predict(words, machine, quirks))
            if not compare(prediction, observations, log):
                return prediction, [], tuple(quirks)
    return documented, modelled + literal, ()


def _judge_facts(case: BootCase, boot: Boot, words: str, facts: Facts, machine: Machine) -> BootResult:
    prediction, differences, known = judge_facts(words, facts, machine, lambda found: check_examples(case, found))
    verdict, reason = decide(differences, known, prediction)
    return BootResult(
        case.name,
        verdict,
        because(reason),
        boot.seconds,
        boot.serial,
        case=case,
        command_line=words,
        differences=tuple(differences),
        known=known,
        remarks=prediction.remarks,
        facts=facts,
        prediction=prediction,
    )


def decide(differences: list[Difference], known: tuple[Quirk, ...], prediction: Prediction) -> tuple[Verdict, str]:
    """Return the verdict on what ``judge_facts`` has found, and why in one line."""
    if differences:
        more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        return Verdict.FAIL, f"{differences[0]}{more}"
    if known:
        return Verdict.KNOWN, "; ".join(KNOWN_ISSUES[quirk].summary for quirk in known)
    not_known = [item for item in prediction.unjudged if item.subject in PARAMETERS]
    if not_known:
        return Verdict.SKIP, "; ".join(f"{item.subject}: {item.reason}" for item in not_known)
    return Verdict.PASS, "; ".join(prediction.remarks)


def check_examples(case: BootCase, facts: Facts) -> list[Difference]:
    """Return where ``facts`` differ from what the source of ``case`` says in so many words."""
    rule = Rule("documented-example", f"what the source of the case says: {case.source}", case.source)
    observations = boot_observations(facts)
    differences = [
        Difference(subject, rule, str(value), str(observations.get(subject, "nothing")))
        for subject, value in case.facts.items()
        if observations.get(subject) != value
    ]
    texts = [line.text for line in facts.log]
    return differences + [
        Difference("kernel log", rule, f"a line with {wanted!r}", "none")
        for wanted in case.log
        if not any(wanted in text for text in texts)
    ]


def _result(case: BootCase, boot: Boot, words: str, verdict: Verdict, reason: str) -> BootResult:
    return BootResult(case.name, verdict, because(reason), boot.seconds, boot.serial, case=case, command_line=words)


def _subsets(quirks: frozenset[Quirk]) -> list[frozenset[Quirk]]:
    """Return the non-empty subsets, smallest first: a distribution may have mended one issue and not another."""
    ordered = sorted(quirks, key=lambda quirk: quirk.value)
    sizes = range(1, len(ordered) + 1)
    return [frozenset(subset) for subset in chain.from_iterable(combinations(ordered, size) for size in sizes)]
