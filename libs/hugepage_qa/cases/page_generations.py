"""The generations in which a kernel keeps pages (MGLRU), by when they were used, and not in active and other lists."""

from hugepage_qa.cases.live import Live
from hugepage_qa.machine.host import CannotRun

_GENERATIONS = "sys/kernel/mm/lru_gen/enabled"


def has_generations(live: Live) -> bool:
    """Tell whether the kernel keeps memory in generations now."""
    return int((live.host.read(_GENERATIONS) or "0").strip(), 16) != 0


def need_no_generations(live: Live, why: str) -> None:
    """Have the kernel keep memory in lists until the case ends: of a machine of others all memory would change over.

    Raises CannotRun on such, and says ``why``.
    """
    if has_generations(live):
        if not live.host.is_thrown_away():
            raise CannotRun(f"this kernel keeps memory in generations: {why}")
        live.set_knob(_GENERATIONS, "0")
