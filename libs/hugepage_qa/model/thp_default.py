"""What the switches of transparent huge pages that no parameter sets are when the kernel has booted.

Sources: transparent_hugepage_flags and hugepage_init() in mm/huge_memory.c; khugepaged_init() in mm/khugepaged.c;
Documentation/admin-guide/mm/transhuge.rst.
"""

from collections.abc import Mapping


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
