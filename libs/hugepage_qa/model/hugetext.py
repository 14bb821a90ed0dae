"""hugetext=: code huge pages of Alibaba's kernels. Presence of hugetext_enabled decides, never the version."""

from hugepage_qa.model.cstring import kstrtoul
from hugepage_qa.model.draft import Draft
from hugepage_qa.model.prediction import Exactly
from hugepage_qa.model.rules import HUGETEXT, LOG_WARNING
from hugepage_qa.model.thp_state import DIRECTORY, small_memory

_HIGHEST = 3
_SUBJECT = f"{DIRECTORY}/hugetext_enabled"


def expect(draft: Draft) -> None:
    """Add what follows from hugetext=."""
    values = [value for value in draft.values("hugetext") if value is not None]
    if not values:
        return
    if not (draft.machine.is_configured("HUGETEXT") or draft.machine.interfaces.get("hugetext")):
        draft.leave_open("hugetext", "the kernel has no hugetext_enabled file")
        return
    numbers = [kstrtoul(value) for value in values]
    refused = [number for number in numbers if number is None]
    draft.expect_messages(["hugetext= cannot parse, ignored"] * len(refused), LOG_WARNING)
    valid = [number for number in numbers if number is not None and number <= _HIGHEST]
    small = small_memory(draft)
    if small:
        draft.expect(_SUBJECT, Exactly(0), HUGETEXT)
    elif small is None:
        draft.leave_open(_SUBJECT, "memory is too close to 512 MiB, below which the value is lost")
    elif valid:
        draft.expect(_SUBJECT, Exactly(valid[-1]), HUGETEXT)
    else:
        draft.leave_open(_SUBJECT, "the default differs between kernels (0 or 3)")
