"""The boot parameters of transparent huge pages, and what the switches are that none of them sets.

Sources: Documentation/admin-guide/mm/transhuge.rst; setup_transparent_hugepage(), setup_thp_anon() and hugepage_init()
in mm/huge_memory.c; setup_transparent_hugepage_shmem(), setup_transparent_hugepage_tmpfs() and setup_thp_shmem() in
mm/shmem.c; khugepaged_init() in mm/khugepaged.c.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hugepage_qa.oracle.boot.cstring import memparse
from hugepage_qa.parameters import Parameter

GLOBAL_POLICIES = ("always", "madvise", "never")
ANON_POLICIES = ("always", "inherit", "madvise", "never")
SHMEM_SIZE_POLICIES = ("always", "inherit", "within_size", "advise", "never")
SHMEM_POLICIES = ("always", "within_size", "advise", "never", "deny", "force")


@dataclass(frozen=True)
class Choice:
    """The outcome of a parameter that takes one word: the value in force (None: not set), and what the log says."""

    value: str | None
    messages: tuple[str, ...] = ()


@dataclass(frozen=True)
class SizePolicies:
    """The outcome of thp_anon= or thp_shmem=: a policy for each size in bytes, or None where none was valid."""

    policies: Mapping[int, str] | None
    messages: tuple[str, ...] = ()


def choose(words: Sequence[Parameter], name: str, allowed: Sequence[str]) -> Choice:
    """Return the value that ``name=`` has in the end: the last valid one; others are warned about."""
    value, messages = None, []
    for word in words:
        if word.canonical != name or word.value is None:
            continue
        if word.value in allowed:
            value = word.value
        else:
            messages.append(f"{name}= cannot parse, ignored")
    return Choice(value, tuple(messages))


def set_sizes(
    words: Sequence[Parameter], name: str, sizes: Sequence[int], policies: Sequence[str], base_page: int
) -> SizePolicies:
    """Return what all valid ``name=`` together set for ``sizes``: later ones add to earlier ones.

    A parameter with any error in it is ignored as a whole.
    """
    chosen: dict[int, str] | None = None
    messages = []
    for word in words:
        if word.canonical != name or word.value is None:
            continue
        try:
            update = _parse_list(word.value, sizes, policies, base_page)
        except _BadListError:
            messages.append(f"{name}={word.value}: error parsing string, ignoring setting")
            continue
        chosen = (chosen or dict.fromkeys(sizes, "never")) | update
    return SizePolicies(chosen, tuple(messages))


class _BadListError(Exception):
    """A list of sizes and policies that the kernel refuses."""


def _parse_list(text: str, sizes: Sequence[int], policies: Sequence[str], base_page: int) -> dict[int, str]:
    update: dict[int, str] = {}
    for entry in text.split(";"):
        ranges, colon, policy = entry.partition(":")
        if not colon:
            raise _BadListError
        for one in ranges.split(","):
            first, dash, last = one.partition("-")
            low = _parse_size(first, sizes, base_page)
            high = _parse_size(last, sizes, base_page) if dash else low
            if low > high or policy not in policies:
                raise _BadListError
            update |= {size: policy for size in sizes if low <= size <= high}
    return update


def _parse_size(text: str, sizes: Sequence[int], base_page: int) -> int:
    """Return the THP size that ``text`` names, as get_order_from_str() does: what follows the number is ignored."""
    size, _ = memparse(text)
    if size == 0 or size & (size - 1):
        raise _BadListError
    # get_order() makes one base page of everything smaller
    size = max(size, base_page)
    if size not in sizes:
        raise _BadListError
    return size


def default_switches(pages: int, *, small: bool) -> Mapping[str, int | str]:
    """Return file below the transparent_hugepage directory -> its value.

    ``pages`` is how many base pages a PMD-sized one has. A ``small`` machine has less than 512 MiB.
    """
    on = 0 if small else 1
    return {
        "defrag": "never" if small else "madvise",
        "use_zero_page": on,
        "shrink_underused": 1,
        "khugepaged/defrag": on,
        "khugepaged/max_ptes_none": pages - 1,
        "khugepaged/max_ptes_swap": pages // 8,
        "khugepaged/max_ptes_shared": pages // 2,
        "khugepaged/pages_to_scan": pages * 8,
        "khugepaged/scan_sleep_millisecs": 10_000,
        "khugepaged/alloc_sleep_millisecs": 60_000,
    }
