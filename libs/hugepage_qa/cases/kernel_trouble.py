"""What the kernel says of itself while a case runs: lines of its log, and what taints it; and whose fault that is."""

import re
from collections.abc import Iterator

from hugepage_qa.cases.expectations import Expectations
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.log import tells_of_trouble
from hugepage_qa.machine.host import Host
from hugepage_qa.oracle.compare import Difference
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import Rule

KERNEL_CONTENT = Rule(
    "kernel-content",
    "the kernel reports no bug, warning or bad page, and is not more tainted than before",
    "Documentation/admin-guide/tainted-kernels.rst",
)

TAINT = "proc/sys/kernel/tainted"
#: bits of it; the others tell of modules, firmware and processors, and of who changed them
_BAD_PAGE, _DIED, _WARNED, _LOCKED_UP = 1 << 5, 1 << 7, 1 << 9, 1 << 14
#: of mm/oom_kill.c, for the whole machine; that of a control group begins with a small letter
_OUT_OF_MEMORY = "Out of memory"
#: what a write to vm/stat_refresh finds (mm/vmstat.c vmstat_refresh()): the files of counters show 0 instead
_BELOW_ZERO = re.compile(r"vmstat_refresh: (nr_\w+) -\d+")
#: what others have their devices and networks for; cases come to KVM (virt/), and to these drivers
_OF_CASES = r"base|block/loop|block/zram|dma-buf|infiniband|vhost|virtio"
_OF_OTHERS = re.compile(rf"^WARNING: (?:CPU: \d+ PID: \d+ at |\[.*\] )?(?:\./)?(?:drivers/(?!{_OF_CASES})|net/|sound/)")


def find_trouble(live: Expectations, host: Host, taint: str | None) -> Iterator[Difference]:
    """Yield what the kernel has said since its log was skipped, when ``taint`` was what tainted it.

    What a case has read of the log itself is in it, unless the case judges that.

    On a machine that others use, want of memory, a lockup and a warning of their drivers say nothing of a case: the
    first two are problems, the last one is told.
    """
    try:
        host.new_kernel_log()
    except InputError as error:
        live.problems.append(str(error))
    lines = host.take_unjudged_log()
    for line in lines:
        if _OUT_OF_MEMORY in line and host.has_others:
            # whether the case or others took the last of it, no line tells
            live.ran_out_of_memory = True
            live.problems.append(line)
        elif tells_of_trouble(line) or _OUT_OF_MEMORY in line or _is_below_zero(live, host, line):
            yield Difference("kernel log", KERNEL_CONTENT, "no such line", line)
    of_others = [line for line in lines if host.has_others and _OF_OTHERS.match(line)]
    live.notes += of_others
    now = host.observe(TAINT)
    more = _bits(now) & ~_bits(taint)
    if more & _LOCKED_UP and host.has_others:
        live.problems.append(f"/{TAINT}: a CPU went on no more for seconds, which a busy machine may do")
        more &= ~_LOCKED_UP
    if more & _WARNED and of_others:
        more &= ~_WARNED
    if more & (_BAD_PAGE | _DIED | _WARNED | _LOCKED_UP):
        yield Difference(TAINT, KERNEL_CONTENT, (taint or "nothing").strip(), (now or "nothing").strip())


def _is_below_zero(live: Expectations, host: Host, line: str) -> bool:
    """Tell whether ``line`` tells of a counter below 0, which on a machine of others may be so for long."""
    found = None if host.has_others else _BELOW_ZERO.match(line)
    # for good, once pages are lost: the cases on it look at the counter
    excused = {"nr_hugetlb"} if live.has_bug(Quirk.NR_HUGETLB_LOST) else set()
    if host.is_spoiled and live.has_bug(Quirk.TAKEN_HUGE_PAGE_ISOLATED_ONCE):
        excused.add("nr_isolated_anon")
    return found is not None and found[1] not in excused


def _bits(taint: str | None) -> int:
    text = (taint or "").strip()
    return int(text) if text.isdecimal() else 0
