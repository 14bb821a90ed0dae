"""One boot of the machine under test: were the arguments there, and is the machine as they and its files say?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hugepage_qa.cases.boot.boot_judge import check_examples, judge_facts, verdict_on
from hugepage_qa.cases.reboot.reboot_case import RebootCase
from hugepage_qa.cases.reboot.run_time_settings import Persisted, after_sysctl
from hugepage_qa.cases.result import Verdict
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.facts import Facts
from hugepage_qa.machine.boot_loader.loader import ArgumentsLost
from hugepage_qa.machine.describe import describe
from hugepage_qa.oracle.boot.unknown_parameters import PARAMETERS
from hugepage_qa.oracle.compare import Difference, is_met
from hugepage_qa.oracle.prediction import Exactly, Expectation, Prediction
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.parameters import canonical_name

#: switch, value -> the files of the system that set it so
FindSettings = Callable[[str, str], Sequence[str]]

SET_BY_FILE = Rule(
    "thp-set-by-file",
    "a switch is as the kernel sets it at boot, or as a file of the system does later",
    "tmpfiles.d(5); tuned.conf(5); systemd.service(5); udev(7)",
)

_DIRECTORY = "transparent_hugepage/"
#: what follows from the switch that is set
_FOLLOWS = {f"{_DIRECTORY}enabled": "process/khugepaged"}


def files_that_set(subject: str, found: str, find_settings: FindSettings) -> Sequence[str]:
    """Return the files that account for the value ``found`` of a fact; none for what is no switch of THP."""
    return find_settings(subject.removeprefix(_DIRECTORY), found) if subject.startswith(_DIRECTORY) else ()


def after_files(prediction: Prediction, facts: Facts, find_settings: FindSettings) -> Prediction:
    """Return ``prediction`` for the moment after services have started: with the values that files account for.

    Each of them is told in a remark.
    """
    observations = facts.observations()
    changed: dict[str, Expectation] = {}
    remarks = []
    for one in prediction.expectations:
        found = observations.get(one.subject)
        if found is None or is_met(one, observations):
            continue
        if files := files_that_set(one.subject, str(found), find_settings):
            changed[one.subject] = Expectation(one.subject, Exactly(found), SET_BY_FILE)
            switch = one.subject.removeprefix(_DIRECTORY)
            remarks.append(f"{switch} is {found} and not {one.expected} by {', '.join(files)}")
    follows = {_FOLLOWS[subject] for subject in changed if subject in _FOLLOWS}
    kept = [changed.get(one.subject, one) for one in prediction.expectations if one.subject not in follows]
    return replace(prediction, expectations=tuple(kept), remarks=(*prediction.remarks, *remarks))


# what changes by itself, or says how busy the machine is
_VOLATILE = frozenset(
    {
        *("AnonHugePages", "ShmemHugePages", "ShmemPmdMapped", "FileHugePages", "FilePmdMapped"),
        *("CmaFree", "MemTotal", "MemFree", "pages_collapsed", "full_scans"),
    }
)


def judge_baseline(
    facts: Facts,
    config: Mapping[str, str] | None,
    persisted: Persisted | None,
    find_settings: FindSettings,
    arguments: Sequence[str],
) -> tuple[Verdict, str]:
    """Judge the machine before any change; ``arguments`` are those of the entry that boots next.

    One that is not as its arguments and files such as sysctl.d say is an error: something else sets huge pages there,
    and the cases would find that and not the kernel.
    """
    booted = booted_words(facts)
    if _huge_page_words(arguments) != _huge_page_words(booted):
        return Verdict.ERROR, f"booted with {' '.join(booted)!r}, boots next with {' '.join(arguments)!r}: reboot first"
    verdict, reason = _judge(facts, config, persisted, find_settings, None)
    if verdict is Verdict.FAIL:
        return (
            Verdict.ERROR,
            f"the machine is not as its kernel arguments and files say, before any change: {reason}",
        )
    return verdict, reason


def judge_case(
    case: RebootCase,
    facts: Facts,
    config: Mapping[str, str] | None,
    persisted: Persisted | None,
    find_settings: FindSettings,
    tool: str,
) -> tuple[Verdict, str]:
    """Judge the machine after the boot for ``case``; ``tool`` is what has put the arguments into the boot loader."""
    booted = booted_words(facts)
    # in order and without a gap
    starts = range(len(booted) + 1)
    if not any(booted[start : start + len(case.words)] == case.words for start in starts):
        lost = ArgumentsLost(tool, "lost", case.words, booted)
        return Verdict.FAIL, str(lost).replace("the entry that boots next has", "the machine was booted with")
    return _judge(facts, config, persisted, find_settings, case)


def compare_machines(before: Mapping[str, int | str], after: Mapping[str, int | str]) -> list[str]:
    """Return one line for every observation that is not as it was."""
    subjects = sorted(before.keys() | after.keys())
    return [
        f"{subject}: {before.get(subject, 'nothing')} before all cases, {after.get(subject, 'nothing')} after them"
        for subject in subjects
        if before.get(subject) != after.get(subject)
    ]


def stable_observations(facts: Facts) -> dict[str, int | str]:
    """Return the observations that are the same after every boot with the same arguments."""
    return {
        subject: value for subject, value in facts.observations().items() if subject.rpartition("/")[2] not in _VOLATILE
    }


def booted_words(facts: Facts) -> tuple[str, ...]:
    """Return the arguments that the kernel was booted with."""
    return tuple(str(parameter) for parameter in facts.parameters)


def _huge_page_words(words: Sequence[str]) -> list[str]:
    return [word for word in words if canonical_name(word) in PARAMETERS]


def _judge(
    facts: Facts,
    config: Mapping[str, str] | None,
    persisted: Persisted | None,
    find_settings: FindSettings,
    case: RebootCase | None,
) -> tuple[Verdict, str]:
    try:
        machine = describe(facts, config)
    except InputError as error:
        return Verdict.ERROR, f"the machine cannot be read: {error}"

    def examples(found: Facts) -> list[Difference]:
        # what the documents say is of the words alone, not of what the machine's own sysctl.d makes of them
        of_the_case = case is not None and (persisted is None or case.persisted is not None)
        differences = check_examples(case.boot, found) if case and of_the_case else []
        return [one for one in differences if not files_that_set(one.subject, one.found, find_settings)]

    def later(prediction: Prediction) -> Prediction:
        if persisted:
            prediction = after_sysctl(prediction, persisted.pages, machine.total_ram)
        return after_files(prediction, facts, find_settings)

    prediction, differences, known = judge_facts(facts.command_line, facts, machine, examples, later)
    # what it leaves open of the machine's own parameters is not of the case
    names = [canonical_name(word) for word in (case.words if case else ())]
    unjudged = [one for one in prediction.unjudged if one.subject not in PARAMETERS or one.subject in names]
    return verdict_on(differences, known, replace(prediction, unjudged=tuple(unjudged)))
