"""Switches of transparent huge pages that a file of the system sets after the boot: what a machine must show then."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from hugepage_qa.kernel.facts import Facts
from hugepage_qa.model.compare import is_met
from hugepage_qa.model.prediction import Exactly, Expectation, Prediction
from hugepage_qa.model.rules import Rule

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
