"""From what a machine shows to what a prediction depends on: CPU, memory, kernel, never a value of a huge page file."""

import re
from collections.abc import Mapping

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.facts import Facts
from hugepage_qa.oracle.architecture import Machine, Node, find_mmu
from hugepage_qa.oracle.boot.unknown_parameters import PARAMETERS
from hugepage_qa.parameters import canonical_name
from hugepage_qa.sizes import Span

#: the log also repeats words where it shows the command line and the environment of init
_REFUSAL = re.compile(
    r"cannot parse|error parsing|invalid for parameter"
    # the handlers of 5.14 and the next versions
    r"|^HugeTLB: (?:unsupported|Invalid|.*, ignoring)"
)


def describe(facts: Facts, config: Mapping[str, str] | None = None) -> Machine:
    """Return the machine that ``facts`` come from; ``config`` is the kernel's configuration where it is known.

    Raises InputError where the facts do not say what machine it is.
    """
    if facts.architecture is None:
        raise InputError("/proc/sys/kernel/arch: not captured, the architecture is unknown")
    if facts.cpu.base_page_size is None:
        raise InputError("/proc/self/smaps: not captured, the size of a base page is unknown")
    nodes = tuple(_node(facts, number) for number in sorted(facts.nodes.online or (0,)))
    return Machine(
        architecture=facts.architecture,
        mmu=find_mmu(facts.architecture, facts.cpu.base_page_size, facts.cpu.mmu.lower() if facts.cpu.mmu else None),
        features=facts.cpu.features,
        version=facts.version,
        nodes=nodes,
        occupied=_occupied(facts),
        cpus=facts.cpu.count,
        total_ram=facts.meminfo.get("MemTotal", 0),
        config=config,
        unknown_words=unknown_words(facts),
        interfaces={
            "numa": bool(facts.nodes.online),
            "hugetext": "transparent_hugepage/hugetext_enabled" in facts.observations(),
            "hugetext_pad_threshold": "transparent_hugepage/hugetext_pad_threshold" in facts.observations(),
            "kvm": bool(facts.kvm),
            "hugetlb": bool(facts.pools),
            "transparent_hugepage": facts.thp is not None,
            "cma": "CmaTotal" in facts.meminfo,
            "hugetlb_optimize_vmemmap": "hugetlb_optimize_vmemmap" in facts.vm,
        },
    )


def unknown_words(facts: Facts) -> tuple[str, ...]:
    """Return the words that the kernel called unknown although it did not complain about their values.

    A parameter whose value the kernel refuses is complained about and then, since its handler reports failure,
    passed to init like an unknown one (obsolete_checksetup() in init/main.c).
    """
    return tuple(word for word in facts.unknown_parameters if not _was_refused(word.partition("=")[0], facts))


def boot_observations(facts: Facts) -> dict[str, int | str]:
    """Return the observations of ``facts`` and, as ``unknown/<name>``, the parameters that the kernel does not know."""
    unknown = {f"unknown/{canonical_name(word)}": "named" for word in unknown_words(facts)}
    return facts.observations() | unknown


def _was_refused(name: str, facts: Facts) -> bool:
    canonical = name.replace("-", "_")
    if canonical not in PARAMETERS:
        return False
    named = re.compile(rf"\b{canonical}(?:=| parameter)")
    return any(named.search(line.text) and _REFUSAL.search(line.text) for line in facts.log)


def _node(facts: Facts, number: int) -> Node:
    page = facts.cpu.base_page_size or 0
    zones = [zone for zone in facts.zones if zone.node == number]
    return Node(
        number,
        _spans(facts, number),
        present=sum(zone.present for zone in zones) * page,
        managed=sum(zone.managed for zone in zones) * page,
    )


def _spans(facts: Facts, number: int) -> tuple[Span, ...]:
    """Return where the memory of a node lies: as logged at boot, else as its zones span it."""
    ranges = facts.early_ranges.get(number)
    if ranges is not None:
        return ranges
    if facts.early_ranges:
        return ()
    page = facts.cpu.base_page_size or 0
    return tuple(
        Span(zone.start_pfn * page, (zone.start_pfn + zone.spanned) * page)
        for zone in facts.zones
        if zone.node == number and zone.start_pfn is not None and zone.present
    )


def _occupied(facts: Facts) -> tuple[Span, ...]:
    """Return where the kernel image and its initramfs lie."""
    kernel = facts.memory_map.kernel.values() if facts.memory_map else ()
    return (*kernel, *facts.initrd)
