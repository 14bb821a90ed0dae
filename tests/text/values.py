"""What hugetext_enabled and hugetext_pad_threshold take, and what they refuse."""

import errno
import os

from hugepage_qa.cases.capabilities import become_nobody
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetext import ENABLED, THRESHOLD, generation, require_hugetext, require_padding
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.thp_memory import MIN_FREE, keep_min_free, pmd_size
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.oracle.program_text import Generation, accept_enabled, accept_threshold
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

VALUES = Area("text/values", sizes=Sizes.ONCE)

ENABLED_DOC = "Alibaba Cloud Linux, Huge Pages: enable; mm/huge_memory.c hugetext_enabled_store() of ANCK 5.10"
THRESHOLD_DOC = "Alibaba Cloud Linux, Padding; mm/huge_memory.c hugetext_pad_threshold_store() of ANCK 5.10"

_LOW_KIB = 4096
_ROOT_GROUP = 0
#: commit bd3400ea173f of Linux 5.16 calculates it anew when khugepaged stops
_RECALCULATED_SINCE = KernelVersion(5, 16)
_WRITES = ("0", "1", "2", "3", "1\n", "0x3", "0x0", "03", "01", "+2", "+1")
_NEVER = ("4", "-1", "\n", "1 ", " 1", "1x", "010", "always", "18446744073709551617", "99999999999999999999999")


@VALUES.case(
    "hugetext_enabled takes 0..3 (0 and 1 where it is a switch) in the forms that its number parser takes",
    ENABLED_DOC,
)
def values_that_are_taken(live: Live) -> None:
    form = _switch_form(live)
    for text in _WRITES:
        value = accept_enabled(text, form)
        if value is None:
            live.expect_errno(errno.EINVAL, live.host.write, ENABLED, text)
            continue
        live.host.write(ENABLED, "0" if value else "1")
        live.host.write(ENABLED, text)
        live.expect(f"hugetext_enabled after {text!r}", f"{value}\n", live.host.observe(ENABLED))


@VALUES.case(
    "hugetext_enabled refuses everything else with EINVAL, keeps its value and clamps nothing",
    ENABLED_DOC,
)
def values_that_are_refused(live: Live) -> None:
    form = _switch_form(live)
    highest = 1 if form is Generation.SWITCH else 3
    for text in _NEVER:
        live.host.write(ENABLED, str(highest))
        # an overflow is ERANGE where it is a switch
        overflow = form is Generation.SWITCH and text.startswith(("18", "99"))
        live.expect_errno(errno.ERANGE if overflow else errno.EINVAL, live.host.write, ENABLED, text)
        live.expect(f"hugetext_enabled after {text!r}", highest, read_integer(ObservedTree(live.host), ENABLED))


@VALUES.case(
    "hugetext_pad_threshold takes decimal bytes below a huge page, in any mode, and keeps them",
    THRESHOLD_DOC,
)
def thresholds_that_are_taken(live: Live) -> None:
    size = _threshold_size(live)
    for mode in ("0", "3"):
        live.host.write(ENABLED, mode)
        for text in ("0", "1", "4096", str(size - 1), "010", "+7", "4097\n"):
            live.host.write(THRESHOLD, text)
            value = accept_threshold(text, size)
            live.expect(f"threshold after {text!r}", f"{value}\n", live.host.observe(THRESHOLD))
    live.host.write(ENABLED, "0")
    live.expect("threshold after hugetext was switched off", "4097\n", live.host.observe(THRESHOLD))


@VALUES.case("hugetext_pad_threshold refuses everything else with EINVAL and keeps its value", THRESHOLD_DOC)
def thresholds_that_are_refused(live: Live) -> None:
    size = _threshold_size(live)
    live.host.write(THRESHOLD, "4096")
    for text in (str(size), "-1", "0x1000", "4k", "\n", "4096 ", " 4096", "99999999999999999999999"):
        live.expect_errno(errno.EINVAL, live.host.write, THRESHOLD, text)
        live.expect(f"threshold after {text!r}", 4096, read_integer(ObservedTree(live.host), THRESHOLD))


@VALUES.case(
    "switching hugetext on raises vm.min_free_kbytes where that is low, switching it off does not lower it",
    "mm/khugepaged.c start_stop_khugepaged(), set_recommended_min_free_kbytes() of ANCK 5.10",
)
def reserve_of_free_memory(live: Live) -> None:
    _switch_form(live)
    live.set_knob(f"{DIRECTORY}/enabled", "never")
    live.host.write(ENABLED, "0")
    live.host.write(MIN_FREE, str(_LOW_KIB))
    live.host.write(ENABLED, "1")
    raised = read_integer(ObservedTree(live.host), MIN_FREE) or 0
    live.expect("min_free_kbytes was raised", True, raised > _LOW_KIB)
    live.host.write(ENABLED, "0")
    if live.kernel_version < _RECALCULATED_SINCE:
        live.expect("min_free_kbytes after switching off", raised, read_integer(ObservedTree(live.host), MIN_FREE))


@VALUES.case(
    "everybody can read the files of hugetext, and nobody but root can open them for writing (mode 0644)",
    "mm/huge_memory.c hugetext_enabled_attr, hugetext_pad_threshold_attr of ANCK 5.10: __ATTR(..., 0644, ...)",
)
def permissions(live: Live) -> None:
    require_hugetext(live)
    for path in (ENABLED, THRESHOLD):
        if live.host.read(path) is None:
            continue
        # the files belong to the group of root
        for groups in ((), (_ROOT_GROUP,)):
            somebody = live.actor()
            become_nobody(somebody, *groups)
            live.open(somebody, f"/{path}", os.O_RDONLY)
            for flags in (os.O_WRONLY, os.O_RDWR):
                live.expect_errno(errno.EACCES, live.open, somebody, f"/{path}", flags)


def _switch_form(live: Live) -> Generation:
    """Have both the mode and vm.min_free_kbytes put back after the case, and tell what the mode can be."""
    require_hugetext(live)
    keep_min_free(live)
    live.set_knob(ENABLED, "0")
    return generation(live)


def _threshold_size(live: Live) -> int:
    require_padding(live)
    _switch_form(live)
    live.set_knob(THRESHOLD, "0")
    return pmd_size(live)


class HugetextValues(LiveTest):
    def test_values(self) -> None:
        self.run_area(VALUES)
