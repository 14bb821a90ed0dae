"""One boot of the machine under test: were the arguments there, and is the machine as they say?"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.facts import Facts
from hugepage_qa.machine.boot_loader import ArgumentsLost
from hugepage_qa.machine.describe import describe
from hugepage_qa.matrix.judge import check_examples, decide, judge_facts
from hugepage_qa.model.compare import Difference
from hugepage_qa.model.prediction import Prediction
from hugepage_qa.model.unknown import PARAMETERS
from hugepage_qa.reboot.case import RebootCase
from hugepage_qa.reboot.persisted import Persisted, after_sysctl
from hugepage_qa.reboot.set_by_file import FindSettings, after_files, files_that_set
from hugepage_qa.verdict import Verdict

# what changes by itself, or says how busy the machine is
_VOLATILE = frozenset(
    {
        *("AnonHugePages", "ShmemHugePages", "ShmemPmdMapped", "FileHugePages", "FilePmdMapped"),
        *("CmaFree", "MemTotal", "pages_collapsed", "full_scans"),
    }
)

Judged = tuple[Verdict, str]


def judge_baseline(
    facts: Facts,
    config: Mapping[str, str] | None,
    persisted: Persisted | None,
    find_settings: FindSettings,
    arguments: Sequence[str],
) -> Judged:
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
) -> Judged:
    """Judge the machine after the boot for ``case``; ``tool`` is what has put the arguments into the boot loader."""
    if not is_run(case.words, booted_words(facts)):
        lost = ArgumentsLost(tool, "lost", case.words, booted_words(facts))
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


def is_run(words: Sequence[str], whole: Sequence[str]) -> bool:
    """Tell whether ``words`` stand in ``whole`` in order and without a gap."""
    return any(tuple(whole[start : start + len(words)]) == tuple(words) for start in range(len(whole) + 1))


def _huge_page_words(words: Sequence[str]) -> list[str]:
    return [word for word in words if _name(word) in PARAMETERS]


def _judge(
    facts: Facts,
    config: Mapping[str, str] | None,
    persisted: Persisted | None,
    find_settings: FindSettings,
    case: RebootCase | None,
) -> Judged:
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
    words = case.words if case else ()
    return decide(differences, known, _about(words, prediction))


def _about(words: Sequence[str], prediction: Prediction) -> Prediction:
    """Return ``prediction`` without what it leaves open of the machine's own parameters."""
    names = [_name(word) for word in words]
    unjudged = [one for one in prediction.unjudged if one.subject not in PARAMETERS or one.subject in names]
    return replace(prediction, unjudged=tuple(unjudged))


def _name(word: str) -> str:
    return word.partition("=")[0].replace("-", "_")
