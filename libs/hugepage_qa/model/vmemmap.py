"""hugetlb_free_vmemmap=: freeing the struct pages of hugetlb pages (HVO). Source: mm/hugetlb_vmemmap.c."""

from hugepage_qa.model.cstring import kstrtobool
from hugepage_qa.model.draft import Draft
from hugepage_qa.model.hugetlb import EARLY_PARAMETERS
from hugepage_qa.model.prediction import Exactly
from hugepage_qa.model.rules import LOG_WARNING, VMEMMAP
from hugepage_qa.parameters import Parameter

NAME = "hugetlb_free_vmemmap"
_STRUCT_PAGE = 64


def expect(draft: Draft) -> None:
    """Add what follows from hugetlb_free_vmemmap=."""
    given = [_read(draft, word) for word in draft.words if word.canonical == NAME]
    draft.expect_messages([message for _, message in given if message], LOG_WARNING)
    values = [value for value, _ in given if value is not None]
    configured = draft.machine.is_configured("HUGETLB_PAGE_OPTIMIZE_VMEMMAP")
    if not configured or not _is_possible(draft):
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


def _is_possible(draft: Draft) -> bool:
    """Tell whether the struct pages of any hugetlb page fill more than one base page."""
    base = draft.machine.mmu.base_page
    return any(size // base * _STRUCT_PAGE > base for size in draft.machine.sizes)
