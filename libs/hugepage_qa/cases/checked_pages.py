"""Whether the kernel looks for bad pages among all that are freed."""

from hugepage_qa.cases.live import Live
from hugepage_qa.version import KernelVersion

#: before, it looked at some of them, whatever it cleared (700d2e9a36b9)
_SINCE = KernelVersion(6, 4)
_CLEARS = "init_on_alloc"
#: others that have it look (mem_debugging_and_hardening_init())
_OTHERS = ("init_on_free", "page_poison", "debug_pagealloc")


def checks_pages(live: Live) -> bool:
    """Tell whether pages that are freed are all checked, or may be: a kernel does so that clears what it allocates.

    Of each parameter the last word counts, without one of init_on_alloc CONFIG_INIT_ON_ALLOC_DEFAULT_ON, which most
    distributions set. A kernel with CONFIG_DEBUG_VM checks them always, and is not told from others.
    """
    if live.kernel_version < _SINCE:
        return False
    words = (word.partition("=") for word in (live.host.read("proc/cmdline") or "").split())
    values = {name: value for name, _equals, value in words}
    return _is_on(values.get(_CLEARS, "1")) or any(_is_on(values.get(name, "0")) for name in _OTHERS)


def _is_on(value: str) -> bool:
    """Tell what kstrtobool() of lib/kstrtox.c makes of ``value``."""
    return value[:1] in ("y", "Y", "t", "T", "1") or value[:2].lower() == "on"
