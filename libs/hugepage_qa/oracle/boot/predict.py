"""The oracle for boot parameters: a command line and a machine in, what the machine must show out.

The parameters of one file each are here: kvm.hpage= of s390x, hugetlb_free_vmemmap= (HVO, mm/hugetlb_vmemmap.c), and
hugetext= of Alibaba's kernels, for which the presence of its files decides, never the version.
"""

from collections.abc import Callable, Sequence

from hugepage_qa.oracle.architecture import Machine
from hugepage_qa.oracle.boot.boot_pools import expect_pools
from hugepage_qa.oracle.boot.cstring import kstrtobool, kstrtoul
from hugepage_qa.oracle.boot.hugetlb_parameters import EARLY_PARAMETERS
from hugepage_qa.oracle.boot.movable_zone import expect_movable_zone
from hugepage_qa.oracle.boot.thp_state import DIRECTORY, expect_shmem, expect_thp, small_memory
from hugepage_qa.oracle.boot.unknown_parameters import PARAMETERS, is_known, lookalikes
from hugepage_qa.oracle.known_issues import KNOWN_ISSUES, Quirk
from hugepage_qa.oracle.prediction import Absent, Draft, Exactly, Prediction
from hugepage_qa.oracle.program_text import accept_parameters, possible_generations
from hugepage_qa.oracle.rules import HUGETEXT, KNOWN_WORD, KVM_HPAGE, LOG_WARNING, UNKNOWN_WORD, VMEMMAP
from hugepage_qa.parameters import Parameter, parse_parameters


def expect_modules(draft: Draft) -> None:
    """Add what follows from kvm.hpage=."""
    values = [value for value in draft.values("kvm.hpage") if value is not None]
    if not values:
        return
    if draft.machine.architecture != "s390x":
        draft.remarks.append("kvm.hpage= is a parameter of s390x only; it has no effect here")
    elif not draft.machine.interfaces.get("kvm"):
        draft.leave_open("kvm/hpage", "the kvm module is not loaded")
    else:
        number = kstrtoul(values[-1])
        if number is None:
            draft.leave_open("kvm/hpage", f"kvm.hpage={values[-1]} is no number")
        else:
            draft.expect("kvm/hpage", Exactly(number), KVM_HPAGE)


NAME = "hugetlb_free_vmemmap"


def expect_vmemmap(draft: Draft) -> None:
    """Add what follows from hugetlb_free_vmemmap=."""
    given = [_read(draft, word) for word in draft.words if word.canonical == NAME]
    draft.expect_messages([message for _, message in given if message], LOG_WARNING)
    values = [value for value, _ in given if value is not None]
    is_possible = any(draft.machine.mmu.freeable_struct_pages(size) for size in draft.machine.sizes)
    if not draft.machine.is_configured("HUGETLB_PAGE_OPTIMIZE_VMEMMAP") or not is_possible:
        return
    default = bool(draft.machine.is_configured("HUGETLB_PAGE_OPTIMIZE_VMEMMAP_DEFAULT_ON"))
    draft.expect("vm/hugetlb_optimize_vmemmap", Exactly(int(values[-1] if values else default)), VMEMMAP)


def _read(draft: Draft, word: Parameter) -> tuple[bool | None, str]:
    """Return the value, and what the log says where there is none."""
    early = draft.machine.version >= EARLY_PARAMETERS
    if word.value is None and not early:
        # a boolean core_param may stand without a value
        return True, ""
    value = kstrtobool(word.value)
    if value is not None:
        return value, ""
    # the name as it was typed, with - or _
    complaint = (
        f"Malformed early option '{word.name}'" if early else f"`{word.value}' invalid for parameter `{word.name}'"
    )
    return None, complaint


_SUBJECT = f"{DIRECTORY}/hugetext_enabled"
_REFUSED = "hugetext= cannot parse, ignored"


def expect_hugetext(draft: Draft) -> None:
    """Add what follows from hugetext=."""
    values = [value for value in draft.values("hugetext") if value is not None]
    if not values:
        return
    if not (draft.machine.is_configured("HUGETEXT") or draft.machine.interfaces.get("hugetext")):
        draft.leave_open("hugetext", "the kernel has no hugetext_enabled file")
        return
    has_threshold = draft.machine.interfaces.get("hugetext_pad_threshold", False)
    generations = possible_generations(has_threshold=has_threshold)
    outcomes = {accept_parameters(values, generation) for generation in generations}
    if len(outcomes) > 1:
        draft.leave_open(_SUBJECT, "a kernel without hugetext_pad_threshold may take 0 and 1 only")
        draft.tolerate(f"huge_memory: {_REFUSED}")
        return
    mode, refused = outcomes.pop()
    draft.expect_messages([_REFUSED] * refused, LOG_WARNING)
    _expect_mode(draft, mode)


def _expect_mode(draft: Draft, mode: int | None) -> None:
    small = small_memory(draft)
    if small:
        draft.expect(_SUBJECT, Exactly(0), HUGETEXT)
    elif small is None:
        draft.leave_open(_SUBJECT, "memory is too close to 512 MiB, below which the value is lost")
    elif mode is None:
        draft.leave_open(_SUBJECT, "the default differs between kernels (0 or 3)")
    else:
        draft.expect(_SUBJECT, Exactly(mode), HUGETEXT)


_AREAS: Sequence[Callable[[Draft], None]] = (
    expect_pools,
    expect_thp,
    expect_shmem,
    expect_vmemmap,
    expect_hugetext,
    expect_modules,
    expect_movable_zone,
)


def predict(command_line: str, machine: Machine, quirks: frozenset[Quirk] = frozenset()) -> Prediction:
    """Return what ``machine`` must show after it booted with ``command_line``.

    Without ``quirks`` the prediction is what the documents say; with them it follows those known issues.
    ``Prediction.quirks`` names the issues that make a difference to this command line on this machine.
    """
    words = [
        word
        for word in parse_parameters(command_line)
        if word.canonical not in PARAMETERS or is_known(word.canonical, machine)
    ]
    draft = Draft(machine, tuple(words), quirks)
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
        draft.remarks.append(f"{word}: no such parameter, {meant}= is meant? It has no effect")
        if "." not in word.name:
            draft.expect(f"unknown/{word.canonical}", Exactly("named"), UNKNOWN_WORD)
