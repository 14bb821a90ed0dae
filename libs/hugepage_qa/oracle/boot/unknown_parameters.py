"""Which parameters a kernel knows, and words that look like one but are none."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from hugepage_qa.oracle.architecture import Machine
from hugepage_qa.oracle.rules import KNOWN_WORD
from hugepage_qa.parameters import Parameter, canonical_name
from hugepage_qa.version import KernelVersion


@dataclass(frozen=True)
class KernelParameter:
    """A huge page parameter: the first version that has it, and the configuration option that it needs."""

    name: str
    since: KernelVersion
    option: str


_ALWAYS = KernelVersion(2, 6)

PARAMETERS = {
    parameter.name: parameter
    for parameter in (
        KernelParameter("hugepages", _ALWAYS, "HUGETLB_PAGE"),
        KernelParameter("hugepagesz", _ALWAYS, "HUGETLB_PAGE"),
        KernelParameter("default_hugepagesz", _ALWAYS, "HUGETLB_PAGE"),
        KernelParameter("hugetlb_cma", KernelVersion(5, 7), "CMA"),
        KernelParameter("hugetlb_cma_only", KernelVersion(6, 15), "CMA"),
        KernelParameter("hugetlb_free_vmemmap", KernelVersion(5, 14), "HUGETLB_PAGE_OPTIMIZE_VMEMMAP"),
        KernelParameter("hugepage_alloc_threads", KernelVersion(6, 15), "HUGETLB_PAGE"),
        KernelParameter("transparent_hugepage", _ALWAYS, "TRANSPARENT_HUGEPAGE"),
        KernelParameter("thp_anon", KernelVersion(6, 12), "TRANSPARENT_HUGEPAGE"),
        KernelParameter("thp_shmem", KernelVersion(6, 13), "TRANSPARENT_HUGEPAGE"),
        KernelParameter("transparent_hugepage_shmem", KernelVersion(6, 13), "TRANSPARENT_HUGEPAGE"),
        KernelParameter("transparent_hugepage_tmpfs", KernelVersion(6, 14), "TRANSPARENT_HUGEPAGE"),
        KernelParameter("hugetext", KernelVersion(4, 19), "HUGETEXT"),
    )
}

#: of CONFIG_HUGETEXT only Alibaba's kernels know, so the version says nothing
_VENDOR_ONLY = frozenset({"hugetext"})

#: module parameters are never called unknown: the kernel cannot tell what a later module takes
MODULE_PARAMETERS = frozenset({"kvm.hpage", "kvm.hpage_2g"})

#: option -> what a machine shows that has it
_SHOWN_AS = {
    "HUGETLB_PAGE": "hugetlb",
    "CMA": "cma",
    "HUGETLB_PAGE_OPTIMIZE_VMEMMAP": "hugetlb_optimize_vmemmap",
    "TRANSPARENT_HUGEPAGE": "transparent_hugepage",
}

_SIMILARITY = 0.8


def is_known(name: str, machine: Machine) -> bool | None:
    """Tell whether the kernel of ``machine`` takes the huge page parameter ``name``; None where nothing tells.

    What the kernel's files and its log say goes before configuration and version: distributions backport parameters.
    """
    parameter = PARAMETERS[name]
    if name in _VENDOR_ONLY and machine.interfaces.get(name):
        return True
    configured = machine.is_configured(parameter.option)
    if configured is None and machine.interfaces.get(_SHOWN_AS.get(parameter.option, "")):
        configured = True
    if configured is False:
        return False
    in_version = name not in _VENDOR_ONLY and machine.version >= parameter.since
    # the log names unknown words since 5.14
    if machine.unknown_words is None or not KNOWN_WORD.holds_for(machine.version):
        return True if in_version else (None if name in _VENDOR_ONLY and configured else False)
    called_unknown = any(canonical_name(word) == name for word in machine.unknown_words)
    if not called_unknown:
        return True
    # a valid parameter that its kernel documents and is configured for must not be unknown: leave that to the judge
    return None if not in_version or configured is None else True


def lookalikes(words: Sequence[Parameter]) -> list[tuple[Parameter, str]]:
    """Return the words that are no huge page parameter but look like one, each with the name that may be meant."""
    names = [*PARAMETERS, *MODULE_PARAMETERS]
    found = []
    for word in words:
        if word.canonical in names:
            continue
        close = difflib.get_close_matches(word.canonical, names, n=1, cutoff=_SIMILARITY)
        if close:
            found.append((word, close[0]))
    return found
