"""hugetext=: code huge pages of Alibaba's kernels. Presence of its files decides, never the version."""

from hugepage_qa.model.draft import Draft
from hugepage_qa.model.prediction import Exactly
from hugepage_qa.model.rules import HUGETEXT, LOG_WARNING
from hugepage_qa.model.text.writes import accept_parameters, possible_generations
from hugepage_qa.model.thp_state import DIRECTORY, small_memory

_SUBJECT = f"{DIRECTORY}/hugetext_enabled"
_REFUSED = "hugetext= cannot parse, ignored"


def expect(draft: Draft) -> None:
    """Add what follows from hugetext=."""
    values = [value for value in draft.values("hugetext") if value is not None]
    if not values:
        return
    if not (draft.machine.is_configured("HUGETEXT") or draft.machine.interfaces.get("hugetext")):
        draft.leave_open("hugetext", "the kernel has no hugetext_enabled file")
        return
    has_threshold = draft.machine.interfaces.get("hugetext_pad_threshold", False)
    generations = possible_generations(has_enabled=True, has_threshold=has_threshold)
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
