"""The kernel log: its lines, those about huge pages, the parameters that the kernel did not know.

Nothing here runs a program. A capture holds the output of ``dmesg -r`` under the path ``dmesg``; for a live machine
the caller passes text, for example from ``journalctl -k -b``.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hugepage_qa.kernel.tree import Tree
from hugepage_qa.parameters import Parameter

PATH = "dmesg"

# syslog(2) and dmesg -r start a line with <facility * 8 + level>
_LEVEL = re.compile(r"<(?P<priority>[0-9]{1,4})>")
# the second pair of brackets is the thread or processor of CONFIG_PRINTK_CALLER
_SECONDS = re.compile(r"\[ *(?P<seconds>[0-9]{1,10}\.[0-9]{1,9})\](?:\[ *[TC][0-9]+\])? ?")
# journalctl puts a date, a host name and "kernel:" before the text; with -o short-monotonic the seconds stay
_JOURNAL = re.compile(r"[A-Z][a-z]{2} +[0-9]{1,2} [0-9]{2}:[0-9]{2}:[0-9]{2} \S+ kernel: ")
_HOST = re.compile(r"\S+ kernel: ")

_HUGE_PAGE_TEXT = re.compile(
    r"""
      hugetlb | huge_memory | huge\ ?page | hugetext | \bTHP\b | thp_anon | thp_shmem | khugepaged | \bshmem | ^tmpfs:
    | ^cma: | \bCMA\b
    | Malformed\ early\ option | invalid\ for\ parameter | too\ large\ for\ parameter
    | Unknown\ kernel\ command\ line\ parameters | ^Kernel\ command\ line:
    | page\ allocation\ failure | Out\ of\ memory | Kernel\ panic
    | \bBUG\b | \bWARNING\b | \bOops\b
    """,
    re.VERBOSE,
)
_HUGE_PAGE_TEXT_ANY_CASE = re.compile(r"hugetlb|transparent.?huge", re.IGNORECASE)

# memory management and file systems; what its headers hold is compiled into other code
_MEMORY_CODE = r"(?:(?:mm|fs|arch/\w+/mm)/|(?:\./)?include/linux/[\w-]*(?:mm|page|pgtable|rmap|hugetlb)[\w-]*\.h:)"
# __warn() names the place behind CPU and process; since 6.19 (commit 28ea295f941e) before them, and in front of it the
# condition where the kernel has CONFIG_DEBUG_BUGVERBOSE_DETAILED. A slow machine has lockups of workqueues, too
_TROUBLE = re.compile(
    r"^BUG: (?!workqueue lockup)|^kernel BUG at |\bOops\b|Unable to handle kernel"
    rf"|^WARNING: (?:CPU: \d+ PID: \d+ at |\[.*\] )?{_MEMORY_CODE}"
    # pgd_clear_bad() and its like: a table is freed while something is mapped there. No BUG and no taint tells of it
    r"|^mm/pgtable-generic\.c:\d+: bad p[4gmu]d "
)

_UNKNOWN_START = 'Unknown kernel command line parameters "'
_UNKNOWN_END = '", will be passed to user space.'


@dataclass(frozen=True)
class LogLine:
    """One line: ``level`` 0 (emergency) to 7 (debug), ``seconds`` since the kernel started; None where not printed."""

    level: int | None
    seconds: float | None
    text: str


def read_log(tree: Tree) -> tuple[LogLine, ...]:
    """Return the captured kernel log; empty where none was captured."""
    return parse_log(tree.read(PATH) or "")


def parse_log(text: str) -> tuple[LogLine, ...]:
    """Return the lines of ``text`` that are not empty: ``dmesg``, ``dmesg -r``, ``journalctl -k``, a serial console."""
    # not splitlines(): form feeds and other separators can be part of a message
    lines = (line.rstrip("\r") for line in text.split("\n"))
    return tuple(_parse_line(line) for line in lines if line)


def text_of_record(record: bytes) -> str:
    """Return the text of a record of /dev/kmsg, which stands behind ``priority,sequence,time,flag;``.

    Lines of details that follow it begin with a space.
    """
    return record.decode(errors="replace").partition(";")[2].splitlines()[0]


def huge_page_lines(lines: Iterable[LogLine]) -> tuple[LogLine, ...]:
    """Return the lines that matter: of the huge page code, of the command line, and signs of a kernel in trouble."""
    return tuple(
        line for line in lines if _HUGE_PAGE_TEXT.search(line.text) or _HUGE_PAGE_TEXT_ANY_CASE.search(line.text)
    )


def tells_of_trouble(text: str) -> bool:
    """Tell whether ``text`` of one line says that the kernel is in trouble: a bug, or a warning of memory management.

    Warnings of other code say more about an emulated CPU than about huge pages. Want of memory is no trouble: whether
    it may run out, the caller knows.
    """
    return bool(_TROUBLE.search(text))


def unknown_parameters(lines: Iterable[LogLine], command_line: Sequence[Parameter] = ()) -> list[str]:
    """Return the parameters that no part of the kernel took, as it printed them.

    The line comes from print_unknown_bootoptions() in init/main.c, since 5.14; empty where the log has none:
    an older kernel, or every parameter known. The kernel prints values without their quotes, so a value
    with spaces can only be told from two parameters by the words of ``command_line``; without them the text
    is split at spaces. What a full log record cut off is lost.
    """
    known = sorted({str(parameter) for parameter in command_line if " " in str(parameter)}, key=len, reverse=True)
    unknown: list[str] = []
    for line in lines:
        if line.text.startswith(_UNKNOWN_START):
            unknown.extend(_split(_unknown_text(line.text), known))
    return unknown


def _parse_line(line: str) -> LogLine:
    level = _LEVEL.match(line)
    rest = line[level.end() :] if level else line
    journal = _JOURNAL.match(rest)
    rest = rest[journal.end() :] if journal else rest
    seconds = _SECONDS.match(rest)
    rest = rest[seconds.end() :] if seconds else rest
    host = _HOST.match(rest) if seconds and not level and not journal else None
    return LogLine(
        level=int(level["priority"]) % 8 if level else None,
        seconds=float(seconds["seconds"]) if seconds else None,
        text=rest[host.end() :] if host else rest,
    )


def _unknown_text(line: str) -> str:
    """Return what stands between the quotes; a record that was too long has no end, and its last word may be cut."""
    text = line.removeprefix(_UNKNOWN_START)
    return text.removesuffix(_UNKNOWN_END) if text.endswith(_UNKNOWN_END) else text.rpartition(" ")[0]


def _split(text: str, known: Sequence[str]) -> list[str]:
    words = []
    rest = text.lstrip(" ")
    while rest:
        word = next((word for word in known if f"{rest} ".startswith(f"{word} ")), rest.split(" ", 1)[0])
        words.append(word)
        rest = rest[len(word) :].lstrip(" ")
    return words
