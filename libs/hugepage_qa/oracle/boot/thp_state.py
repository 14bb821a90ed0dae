"""What the transparent_hugepage directory, khugepaged and the kernel log must show of the THP parameters."""

from collections.abc import Sequence
from dataclasses import replace

from hugepage_qa.oracle.boot.thp_parameters import (
    ANON_POLICIES,
    GLOBAL_POLICIES,
    SHMEM_POLICIES,
    SHMEM_SIZE_POLICIES,
    SizePolicies,
    choose,
    default_switches,
    set_sizes,
)
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.prediction import Absent, Draft, Exactly, Expected, OneOf
from hugepage_qa.oracle.rules import (
    KHUGEPAGED,
    LOG_WARNING,
    SHMEM_ENABLED,
    THP_ABSENT,
    THP_ANON,
    THP_ENABLED,
    THP_PMD_SIZE,
    THP_SHARED_PTES,
    THP_SHMEM,
    THP_SIZES,
    THP_SMALL_MEMORY,
    THP_SWITCHES,
    THP_UNDERUSED,
    TMPFS_HUGE,
)
from hugepage_qa.parameters import Parameter
from hugepage_qa.sizes import MIB
from hugepage_qa.version import KernelVersion

DIRECTORY = "transparent_hugepage"

#: hugepage_init() switches THP off below this; a machine of exactly 512 MiB manages less
SMALL_MEMORY = 512 * MIB
#: how much of the kernel's own memory may have been freed since hugepage_init() compared
_INIT_MEMORY = 64 * MIB

_OFF_WHERE_SMALL = ("defrag", "use_zero_page", "khugepaged/defrag")
#: those that the first kernels did not have
_RULES_OF_SWITCHES = {"khugepaged/max_ptes_shared": THP_SHARED_PTES, "shrink_underused": THP_UNDERUSED}

#: khugepaged serves every size from here on; before, versions differ in what besides the PMD size starts it
_EVERY_SIZE = KernelVersion(7, 2)

#: policies that a tmpfs mount can have; "deny" and "force" are for the internal mount only
_TMPFS_POLICIES = ("always", "within_size", "advise", "never")


def expect_thp(draft: Draft) -> None:
    """Add what follows from transparent_hugepage= and thp_anon=."""
    if not has_thp(draft):
        draft.expect(f"{DIRECTORY}/enabled", Absent(), THP_ABSENT)
        draft.expect_messages(choose(draft.words, "transparent_hugepage", GLOBAL_POLICIES).messages, LOG_WARNING)
        draft.expect_messages(_anon(draft).messages, LOG_WARNING)
        return
    choice = choose(draft.words, "transparent_hugepage", GLOBAL_POLICIES)
    anon = _anon(draft)
    draft.expect_messages((*choice.messages, *anon.messages), LOG_WARNING)
    draft.expect(f"{DIRECTORY}/hpage_pmd_size", Exactly(draft.machine.mmu.pmd), THP_PMD_SIZE)
    enabled = _expect_enabled(draft, choice.value)
    _expect_switches(draft)
    _expect_sizes(draft, anon)
    _expect_khugepaged(draft, enabled, anon)


def expect_shmem(draft: Draft) -> None:
    """Add what follows from transparent_hugepage_shmem=, thp_shmem= and transparent_hugepage_tmpfs=."""
    machine = draft.machine
    sizes = _shmem_sizes(draft, draft.words)
    draft.expect_messages(sizes.messages, LOG_WARNING)
    shmem_policies = SHMEM_POLICIES if has_thp(draft) else ("never", "deny")
    if draft.values("transparent_hugepage_shmem"):
        _expect_shmem_enabled(draft, shmem_policies)
    tmpfs_policies = _TMPFS_POLICIES if has_thp(draft) else ("never",)
    tmpfs = choose(draft.words, "transparent_hugepage_tmpfs", tmpfs_policies)
    draft.expect_messages(tmpfs.messages, LOG_WARNING)
    if not has_thp(draft):
        return
    if tmpfs.value is not None:
        draft.expect("tmpfs/huge", Exactly(tmpfs.value), TMPFS_HUGE)
    policies = sizes.policies or {machine.mmu.pmd: "inherit"}
    for size in machine.mmu.shmem_thp_sizes():
        subject = f"{DIRECTORY}/hugepages-{size // 1024}kB/shmem_enabled"
        draft.expect(subject, Exactly(policies.get(size, "never")), THP_SHMEM)


def has_thp(draft: Draft) -> bool:
    """Tell whether the kernel and CPU have transparent huge pages at all."""
    if not draft.machine.supports_huge_pages or not draft.machine.mmu.has_thp:
        return False
    return draft.machine.is_configured("TRANSPARENT_HUGEPAGE") is not False


def small_memory(draft: Draft) -> bool | None:
    """Tell whether THP switches are off for want of memory; None where it is too close to call or not known."""
    if not draft.machine.total_ram:
        return None
    if draft.machine.total_ram < SMALL_MEMORY:
        return True
    return None if draft.machine.total_ram < SMALL_MEMORY + _INIT_MEMORY else False


def _anon(draft: Draft) -> SizePolicies:
    mmu = draft.machine.mmu
    return set_sizes(draft.words, "thp_anon", mmu.anonymous_thp_sizes(), ANON_POLICIES, mmu.base_page)


def _shmem_sizes(draft: Draft, words: Sequence[Parameter]) -> SizePolicies:
    mmu = draft.machine.mmu
    return set_sizes(words, "thp_shmem", mmu.shmem_thp_sizes(), SHMEM_SIZE_POLICIES, mmu.base_page)


def _expect_enabled(draft: Draft, chosen: str | None) -> str | None:
    """Expect the global switch; return its value where it is certain."""
    subject = f"{DIRECTORY}/enabled"
    small = small_memory(draft)
    if small:
        draft.expect(subject, Exactly("never"), THP_SMALL_MEMORY)
        return None
    value = chosen or _configured_default(draft)
    if small is None and value != "never":
        draft.leave_open(subject, "memory is too close to 512 MiB, below which THP is off")
        return None
    expected: Expected = Exactly(value) if value is not None else OneOf(GLOBAL_POLICIES)
    draft.expect(subject, expected, THP_ENABLED)
    return value


def _expect_switches(draft: Draft) -> None:
    """Expect all that no parameter sets as the kernel starts with it."""
    small = small_memory(draft)
    mmu = draft.machine.mmu
    for name, value in default_switches(mmu.pmd // mmu.base_page, small=bool(small)).items():
        subject = f"{DIRECTORY}/{name}"
        if small is None and name in _OFF_WHERE_SMALL:
            draft.leave_open(subject, "memory is too close to 512 MiB, below which THP is off")
        else:
            draft.expect(subject, Exactly(value), _RULES_OF_SWITCHES.get(name, THP_SWITCHES))


def _configured_default(draft: Draft) -> str | None:
    """Return what the kernel was built with; None where that is not known."""
    for policy in GLOBAL_POLICIES:
        if draft.machine.is_configured(f"TRANSPARENT_HUGEPAGE_{policy.upper()}"):
            return policy
    return None


def _expect_sizes(draft: Draft, anon: SizePolicies) -> None:
    mmu = draft.machine.mmu
    policies = anon.policies or {mmu.pmd: "inherit"}
    rule = THP_ANON if THP_ANON.holds_for(draft.machine.version) else THP_SIZES
    for size in mmu.anonymous_thp_sizes():
        subject = f"{DIRECTORY}/hugepages-{size // 1024}kB/enabled"
        draft.expect(subject, Exactly(policies.get(size, "never")), rule)


def _expect_khugepaged(draft: Draft, enabled: str | None, anon: SizePolicies) -> None:
    """Judge khugepaged where kernels agree: not before 7.2 on sizes below the PMD, and never on shmem."""
    if enabled is None:
        return
    pmd = draft.machine.mmu.pmd
    policies = anon.policies or {pmd: "inherit"}
    active = {size for size, policy in policies.items() if (enabled if policy == "inherit" else policy) != "never"}
    if pmd in active or (draft.machine.version >= _EVERY_SIZE and (active or enabled != "never")):
        draft.expect("process/khugepaged", Exactly("running"), KHUGEPAGED)
        return
    shmem_given = draft.values("thp_shmem") or draft.values("transparent_hugepage_shmem")
    shmem_default = not any(
        draft.machine.is_configured(f"TRANSPARENT_HUGEPAGE_SHMEM_HUGE_{policy}")
        for policy in ("ALWAYS", "WITHIN_SIZE", "ADVISE")
    )
    if enabled == "never" and not active and not shmem_given and shmem_default:
        if draft.machine.interfaces.get("hugetext"):
            draft.leave_open("process/khugepaged", "hugetext starts khugepaged, too")
        else:
            draft.expect("process/khugepaged", Exactly("absent"), KHUGEPAGED)
        return
    draft.leave_open("process/khugepaged", "kernels differ in which sizes and mounts start khugepaged")


def _expect_shmem_enabled(draft: Draft, allowed: tuple[str, ...]) -> None:
    """Expect the last valid policy, or what the known issues make of it."""
    given = {value for value in draft.values("transparent_hugepage_shmem") if value in allowed}
    lost = {"deny": Quirk.SHMEM_DENY_LOST, "force": Quirk.SHMEM_FORCE_REFUSED}
    draft.quirks |= {lost[value] for value in given & set(lost)}
    choice = choose(_without_refused_force(draft), "transparent_hugepage_shmem", allowed)
    draft.expect_messages(choice.messages, LOG_WARNING)
    if choice.value is None or not has_thp(draft):
        return
    value = "never" if lost.get(choice.value) in draft.follow else choice.value
    draft.expect(f"{DIRECTORY}/shmem_enabled", Exactly(value), SHMEM_ENABLED)


def _without_refused_force(draft: Draft) -> list[Parameter]:
    """Return the words with an empty value, which is refused, in place of ``force`` where the known issue refuses it.

    shmem_parse_huge() takes it once thp_shmem= has made the PMD size the only one that inherits; it is lost later.
    """
    words = list(draft.words)
    if Quirk.SHMEM_FORCE_REFUSED not in draft.follow:
        return words
    for index, word in enumerate(words):
        if word.value != "force":
            continue
        sizes = _shmem_sizes(draft, words[:index]).policies or {}
        if [size for size, policy in sizes.items() if policy == "inherit"] != [draft.machine.mmu.pmd]:
            words[index] = replace(word, value="")
    return words
