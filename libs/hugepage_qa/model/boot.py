"""The oracle for boot parameters: a command line and a machine in, what the machine must show out."""

from collections.abc import Callable, Sequence

from hugepage_qa.model import hugetext, modules, vmemmap
from hugepage_qa.model.draft import Draft
from hugepage_qa.model.known import KNOWN_ISSUES, Quirk
from hugepage_qa.model.machine import Machine
from hugepage_qa.model.pools import expect_pools
from hugepage_qa.model.prediction import Absent, Exactly, Prediction
from hugepage_qa.model.rules import KNOWN_WORD, UNKNOWN_WORD
from hugepage_qa.model.thp_state import expect_shmem, expect_thp
from hugepage_qa.model.unknown import PARAMETERS, is_known, lookalikes
from hugepage_qa.parameters import Parameter, parse_parameters

_AREAS: Sequence[Callable[[Draft], None]] = (
    expect_pools,
    expect_thp,
    expect_shmem,
    vmemmap.expect,
    hugetext.expect,
    modules.expect,
)


def predict(command_line: str, machine: Machine, quirks: frozenset[Quirk] = frozenset()) -> Prediction:
    """Return what ``machine`` must show after it booted with ``command_line``.

    Without ``quirks`` the prediction is what the documents say; with them it follows those known issues.
    ``Prediction.quirks`` names the issues that make a difference to this command line on this machine.
    """
    draft = Draft(machine, _judged_words(command_line, machine), quirks)
    _expect_known_words(draft, command_line)
    for area in _AREAS:
        area(draft)
    return draft.finish(command_line)


def possible_deviations(command_line: str, machine: Machine) -> frozenset[Quirk]:
    """Return the quirks that matter to ``command_line`` and that kernels of the machine's version have.

    Following one issue can make another one matter.
    """
    found: frozenset[Quirk] = frozenset()
    while True:
        quirks = predict(command_line, machine, found).quirks
        more = found | {quirk for quirk in quirks if KNOWN_ISSUES[quirk].applies_to(machine.version)}
        if more == found:
            return found
        found = more


def _judged_words(command_line: str, machine: Machine) -> tuple[Parameter, ...]:
    """Return the huge page parameters that the kernel knows."""
    return tuple(
        word
        for word in parse_parameters(command_line)
        if word.canonical not in PARAMETERS or is_known(word.canonical, machine)
    )


def _expect_known_words(draft: Draft, command_line: str) -> None:
    """Judge which words the kernel calls unknown: those it must know are not among them, misspelt ones are."""
    words = parse_parameters(command_line)
    # the bare word without a value is another matter: most handlers are for "name=" only
    given = [word.canonical for word in words if word.canonical in PARAMETERS and word.value is not None]
    for name in dict.fromkeys(given):
        if is_known(name, draft.machine):
            draft.expect(f"unknown/{name}", Absent(), KNOWN_WORD)
        else:
            draft.leave_open(name, f"kernel {draft.machine.version} does not know this parameter")
    for word, meant in lookalikes(words):
        draft.remark(f"{word}: no such parameter, {meant}= is meant? It has no effect")
        if "." not in word.name:
            draft.expect(f"unknown/{word.canonical}", Exactly("named"), UNKNOWN_WORD)
