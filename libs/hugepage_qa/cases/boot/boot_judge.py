"""One case: boot it, predict it, compare, decide."""

import re
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, combinations
from threading import Lock

from hugepage_qa.cases.boot.boot_case import BootCase
from hugepage_qa.cases.result import Result, Verdict, because
from hugepage_qa.cases.verdicts import BY_THE_EMULATOR, decide, try_again
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.facts import Facts, read_facts
from hugepage_qa.machine.describe import boot_observations, describe
from hugepage_qa.oracle.architecture import Machine
from hugepage_qa.oracle.boot.predict import possible_deviations, predict
from hugepage_qa.oracle.boot.unknown_parameters import PARAMETERS, is_known
from hugepage_qa.oracle.compare import Difference, compare
from hugepage_qa.oracle.known_issues import KNOWN_ISSUES, Quirk
from hugepage_qa.oracle.prediction import Prediction, Unjudged
from hugepage_qa.oracle.rules import SURVIVES, Rule
from hugepage_qa.qemu.installed_emulator import NotOffered
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.lost_machine import Loss, MachineLost
from hugepage_qa.qemu.nominal import nominal_machine
from hugepage_qa.qemu.probe_machine import Boot, Lab
from hugepage_qa.qemu.virtual_machine import VirtualMachine

_OUT_OF_MEMORY = re.compile(r"deadlocked on memory|[Oo]ut of memory|page allocation failure|no killable processes")
_CRASH = re.compile(r"BUG: |\bOops\b|Unable to handle kernel")
#: the part of its deadline that a machine gets which is asked for all of its memory
_PATIENCE_WITHOUT_MEMORY = 0.25


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
    kernel: KernelImage
    append: str = ""
    _controls: dict[tuple[object, ...], bool] = field(default_factory=dict)
    _asked: Mapping[str, str] | None = None
    _lock: Lock = field(default_factory=Lock)

    def judge(self, case: BootCase) -> BootResult:
        """Boot ``case`` and judge it. Raises InputError where the machine cannot be started at all."""
        words = f"{case.words} {self.append}".strip()
        unjudged = BootResult(case.name, Verdict.SKIP, case=case, command_line=words)
        if lacking := self._lacking(case, words):
            return replace(unjudged, reasons=tuple(lacking))
        began = time.monotonic()
        may_exhaust = predict(words, self._nominal(case)).may_exhaust_memory
        try:
            # some wait for ever for the memory that they gave away: that is seen soon, and says nothing
            patience = _PATIENCE_WITHOUT_MEMORY if may_exhaust else 1.0
            boot, before = self._boot(case, words, (Loss.HUNG, Loss.GARBLED) if may_exhaust else (), patience)
        except NotOffered as error:
            return replace(unjudged, reasons=(str(error),))
        except MachineLost as lost:
            result = self._judge_lost(replace(unjudged, evidence=lost.serial), lost, may_exhaust)
        else:
            result = self._judge_boot(replace(unjudged, evidence=boot.serial), boot)
            if before:
                reasons = (*result.reasons, f"booted again after: {before}")
                result = replace(result, reasons=reasons, evidence=f"{before.serial}\n{result.evidence}")
        return replace(result, seconds=time.monotonic() - began)

    def _boot(
        self, case: BootCase, words: str, at_once: Collection[Loss] = (), patience: float = 1.0
    ) -> tuple[Boot, MachineLost | None]:
        """Boot the machine of ``case`` with ``words``; even a panic is theirs only when it comes again."""
        machine = VirtualMachine(self.kernel, case.cpu, case.memory, words, case.cpus)
        return try_again(partial(self.lab.boot, machine, patience), at_once)

    def _judge_boot(self, result: BootResult, boot: Boot) -> BootResult:
        try:
            facts = read_facts(boot.tree)
            machine = describe(facts, self.kernel.config)
        except InputError as error:
            return replace(result, verdict=Verdict.ERROR, reasons=(f"the capture cannot be read: {error}",))
        case, words = result.case, result.command_line
        if not facts.command_line.endswith(words):
            reason = f"the kernel was booted with {facts.command_line!r}, which does not end with {words!r}"
            return replace(result, verdict=Verdict.ERROR, reasons=(reason,))
        prediction, differences, known = judge_facts(words, facts, machine, lambda found: check_examples(case, found))
        verdict, reason = verdict_on(differences, known, prediction)
        return replace(
            result,
            verdict=verdict,
            reasons=because(reason),
            differences=tuple(differences),
            known=known,
            remarks=prediction.remarks,
            facts=facts,
            prediction=prediction,
        )

    def _judge_lost(self, result: BootResult, lost: MachineLost, may_exhaust: bool) -> BootResult:
        """Judge a boot that was lost: the kernel's fault only if it does without the words."""
        if lost.loss in BY_THE_EMULATOR:
            return replace(result, verdict=Verdict.ERROR, reasons=(str(lost),))
        try:
            boots_without_words = self._boots_without_words(result.case)
        except MachineLost as control:
            reason = f"{lost}; without the words under test it was lost, too: {control}"
            return replace(result, verdict=Verdict.ERROR, reasons=(reason,))
        if not boots_without_words:
            return replace(result, verdict=Verdict.ERROR, reasons=(f"{lost}; so it does without the words under test",))
        if may_exhaust and not _CRASH.search(lost.serial):
            if _OUT_OF_MEMORY.search(lost.serial):
                return replace(result, verdict=Verdict.PASS, reasons=(f"asked for all memory: {lost}",))
            if lost.loss is not Loss.PANICKED:
                return replace(result, reasons=(f"asked for all memory, not decided: {lost}",))
        found = f"{lost}; without the words under test this kernel boots"
        difference = Difference("boot", SURVIVES, "powered off", found)
        return replace(result, verdict=Verdict.FAIL, reasons=(str(difference),), differences=(difference,))

    def _boots_without_words(self, case: BootCase) -> bool:
        """Tell whether the same machine boots without the words under test; the kernel is tried once.

        Raises MachineLost where the host or the emulator is in the way.
        """
        key = (case.cpu, case.memory, case.cpus)
        with self._lock:
            if key not in self._controls:
                try:
                    self._boot(case, self.append)
                    self._controls[key] = True
                except MachineLost as lost:
                    if lost.loss in BY_THE_EMULATOR:
                        raise
                    self._controls[key] = False
            return self._controls[key]

    def _lacking(self, case: BootCase, words: str) -> list[str]:
        """Return which parameters of ``words`` this kernel does not know, so that no machine boots to learn it."""
        machine = self._nominal(case)
        names = [item.subject for item in _unknown_parameters(words, machine)]
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
                self._asked = {}
                with suppress(MachineLost, InputError):
                    boot, _ = self._boot(case, words)
                    machine = describe(read_facts(boot.tree), self.kernel.config)
                    self._asked = {one.subject: one.reason for one in _unknown_parameters(words, machine)}
            return self._asked

    def _nominal(self, case: BootCase) -> Machine:
        return nominal_machine(self.kernel, case.cpu, case.memory)


def _unknown_parameters(words: str, machine: Machine) -> list[Unjudged]:
    return [item for item in predict(words, machine).unjudged if item.subject in PARAMETERS]


def judge_facts(
    words: str,
    facts: Facts,
    machine: Machine,
    examples: Callable[[Facts], list[Difference]],
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
    # what the source says is of kernels that read hugepages= as the model does
    literal = [] if any(one.subject == "hugepages" for one in documented.unjudged) else examples(facts)
    # an issue can only explain what differs in the model's eyes, too
    explainable = {difference.subject for difference in modelled}
    if modelled and all(difference.subject in explainable for difference in literal):
        for quirks in _subsets(possible_deviations(words, machine)):
            prediction = later(predict(words, machine, frozenset(quirks)))
            if not compare(prediction, observations, log):
                return prediction, [], quirks
    return documented, modelled + literal, ()


def verdict_on(differences: list[Difference], known: tuple[Quirk, ...], prediction: Prediction) -> tuple[Verdict, str]:
    """Return the verdict on what ``judge_facts`` has found, and why in one line."""
    more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
    return decide(
        found="".join(f"{one}{more}" for one in differences[:1]),
        known="; ".join(KNOWN_ISSUES[quirk].summary for quirk in known),
        lacking="; ".join(f"{one.subject}: {one.reason}" for one in prediction.unjudged if one.subject in PARAMETERS),
        passed="; ".join(prediction.remarks),
    )


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


def _subsets(quirks: frozenset[Quirk]) -> list[tuple[Quirk, ...]]:
    """Return the non-empty subsets, smallest first, each by name: a distribution may have mended one issue alone."""
    ordered = sorted(quirks, key=lambda quirk: quirk.value)
    sizes = range(1, len(ordered) + 1)
    return list(chain.from_iterable(combinations(ordered, size) for size in sizes))
