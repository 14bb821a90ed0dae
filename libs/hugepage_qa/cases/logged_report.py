"""The report of memory that the kernel is asked for by sysrq m, and which it logs."""

from hugepage_qa.cases.live import Live
from hugepage_qa.machine.host import CannotRun

_SYSRQ_MASK = "proc/sys/kernel/sysrq"


def need_logged_reports(live: Live) -> None:
    """Raise CannotRun where the kernel cannot be asked."""
    if live.host.read(_SYSRQ_MASK) is None:
        raise CannotRun("this kernel has no CONFIG_MAGIC_SYSRQ")


def ask_for_report(live: Live) -> list[str]:
    """Ask for a report, and return the lines that the kernel logged meanwhile."""
    live.host.new_kernel_log()
    live.host.write("proc/sysrq-trigger", "m")
    return live.host.new_kernel_log()
