"""Whether the kernel looks for bad pages among all that are freed."""

from hugepage_qa.cases.live import Live
from hugepage_qa.version import KernelVersion

#: before, it looked at some of them, whatever it cleared (700d2e9a36b9)
_SINCE = KernelVersion(6, 4)
_CLEARS = "init_on_alloc="


def checks_pages(live: Live) -> bool:
    """Tell whether pages that are freed are all checked, or may be: a kernel does so that clears what it allocates.

    The last word of the command line counts, without one CONFIG_INIT_ON_ALLOC_DEFAULT_ON, which most distributions set.
    """
    if live.kernel_version < _SINCE:
        return False
    words = [word for word in (live.host.read("proc/cmdline") or "").split() if word.startswith(_CLEARS)]
    return not words or words[-1] not in (f"{_CLEARS}0", f"{_CLEARS}off")
