"""What the switches of transparent huge pages are as long as nobody has changed them since the kernel booted.

Sources: transparent_hugepage_flags, hugepage_init() and setup_transparent_hugepage() in mm/huge_memory.c;
khugepaged_init() in mm/khugepaged.c; Documentation/admin-guide/mm/transhuge.rst.
"""

from collections.abc import Mapping

from hugepage_qa.model.thp import GLOBAL_POLICIES, choose
from hugepage_qa.parameters import parse_parameters


def own_values(command_line: str, configured: str | None, *, pages: int, small: bool) -> Mapping[str, str]:
    """Return file below the transparent_hugepage directory -> its value.

    ``configured`` is the policy of CONFIG_TRANSPARENT_HUGEPAGE_*, None where it is not known; then ``enabled`` is left
    out unless the command line has it. ``pages`` is how many base pages a PMD-sized one has. On a ``small`` machine,
    with less than 512 MiB, all switches are off whatever the command line says.
    """
    chosen = choose(parse_parameters(command_line), "transparent_hugepage", GLOBAL_POLICIES).value or configured
    enabled = "never" if small else chosen
    on = "0" if small else "1"
    return {
        **({"enabled": enabled} if enabled else {}),
        "defrag": "never" if small else "madvise",
        "use_zero_page": on,
        "shrink_underused": "1",
        "khugepaged/defrag": on,
        "khugepaged/max_ptes_none": str(pages - 1),
        "khugepaged/max_ptes_swap": str(pages // 8),
        "khugepaged/max_ptes_shared": str(pages // 2),
        "khugepaged/pages_to_scan": str(pages * 8),
        "khugepaged/scan_sleep_millisecs": "10000",
        "khugepaged/alloc_sleep_millisecs": "60000",
    }
