"""What a double merges, and when: khugepaged looks at the processes on its list."""

from typing import TYPE_CHECKING

from tests.unit.cases.text.double.behaviour import Wrong
from tests.unit.cases.text.double.files import PAGES_COLLAPSED, PMD
from tests.unit.cases.text.double.process_memory import Area, Process, Text

if TYPE_CHECKING:
    from tests.unit.cases.text.double.machine import TextDouble

MADV_HUGEPAGE, MADV_NOHUGEPAGE = 14, 15
_WRITE, _EXECUTE = 2, 4


def scan(double: "TextDouble") -> bool:
    """Merge what qualifies; return whether khugepaged runs at all."""
    mode, thp = double.files.mode, double.files.thp
    if not mode and thp == "never":
        return Wrong.KEEPS_SCANNING in double.wrong
    for process in double.processes.values():
        if process.is_listed and process.text and _qualifies(double, process, process.text):
            _merge(double, process.text)
        for area in process.areas:
            if not area.is_huge and _merges_later(double, area):
                area.is_huge = True
                double.files.count(PAGES_COLLAPSED)
    return True


def faults_in(double: "TextDouble", process: Process) -> None:
    """Map the text of a process and put the process on the list, where its page table was empty."""
    text = process.text
    if text is None or text.is_populated:
        return
    text.is_populated = True
    whole = text.whole(double.wrong)
    if text.file.huge and whole:
        text.huge = text.end - text.start if Wrong.MERGES_TAIL in double.wrong else whole
        if text.constants and Wrong.MERGES_CONSTANTS in double.wrong:
            text.constants.huge = text.constants.whole(double.wrong)
    elif _merges_text(double, text):
        process.is_listed = True
        if Wrong.MERGES_AT_FAULT in double.wrong and _qualifies(double, process, text):
            text.file.huge = text.huge = whole


def is_huge_at_fault(double: "TextDouble", area: Area) -> bool:
    """Tell whether the first access to anonymous code gets a huge page."""
    if not _is_code(area) or double.wrong & {Wrong.NO_CODE, Wrong.CODE_BY_KHUGEPAGED}:
        return False
    if Wrong.NEEDS_THP in double.wrong and double.files.thp == "never":
        return False
    mode = double.files.mode
    return bool(mode & 2) or (mode == 1 and Wrong.CODE_IN_MODE_1 in double.wrong)


def _merges_text(double: "TextDouble", text: Text) -> bool:
    mode, wrong = double.files.mode, double.wrong
    if Wrong.NEVER_MERGES in wrong or (Wrong.NEEDS_THP in wrong and double.files.thp == "never"):
        return False
    if text.advice == MADV_HUGEPAGE and double.files.thp != "never" and Wrong.NEEDS_A_MODE not in wrong:
        return True
    is_wrong = (not mode and Wrong.MERGES_IN_MODE_0 in wrong) or (mode & 2 and Wrong.MERGES_IN_MODE_2 in wrong)
    return bool(mode & 1 or is_wrong)


def _qualifies(double: "TextDouble", process: Process, text: Text) -> bool:
    return (
        _merges_text(double, text)
        and text.whole(double.wrong) > 0
        and (text.advice != MADV_NOHUGEPAGE or Wrong.IGNORES_ADVICE in double.wrong)
        and (not process.is_disabled or Wrong.IGNORES_PRCTL in double.wrong)
        and (not text.file.writers or Wrong.MERGES_WRITERS in double.wrong)
    )


def _merge(double: "TextDouble", merged: Text) -> None:
    file = merged.file
    if file.huge:
        return
    file.huge = merged.whole(double.wrong)
    file.is_damaged = Wrong.DAMAGES_CODE in double.wrong
    file.has_other_bytes = file.is_damaged or Wrong.DAMAGES_SOME_BYTES in double.wrong
    double.files.count(PAGES_COLLAPSED, file.huge // PMD)
    for process in double.processes.values():
        if process.text and process.text.file is file:
            process.text.is_populated = False


def _is_code(area: Area) -> bool:
    return area.prot & (_WRITE | _EXECUTE) == _WRITE | _EXECUTE


def _merges_later(double: "TextDouble", area: Area) -> bool:
    if not area.is_filled:
        return False
    if area.was_data and area.prot & _EXECUTE:
        return Wrong.MERGES_DATA in double.wrong and bool(double.files.mode & 2)
    if _is_code(area) and double.files.mode == 1 and Wrong.CODE_LATER_IN_MODE_1 in double.wrong:
        return True
    if _is_code(area) and double.files.mode & 2 and Wrong.CODE_BY_KHUGEPAGED in double.wrong:
        return True
    return area.advice == MADV_HUGEPAGE and double.files.thp != "never"
