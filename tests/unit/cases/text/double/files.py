"""The files of a double, and the writes that they accept: rules written down a second time, apart from the model."""

import errno
import os
import re
from collections.abc import Callable

from tests.unit.cases.text.double.behaviour import Wrong

from hugepage_qa.kernel.thp import DIRECTORY, parse_selection

PMD = 2 << 20
ENABLED = f"{DIRECTORY}/hugetext_enabled"
THRESHOLD = f"{DIRECTORY}/hugetext_pad_threshold"
PAGES_COLLAPSED = f"{DIRECTORY}/khugepaged/pages_collapsed"
FULL_SCANS = f"{DIRECTORY}/khugepaged/full_scans"
VMSTAT = "proc/vmstat"
DROP_CACHES = "proc/sys/vm/drop_caches"
MIN_FREE = "proc/sys/vm/min_free_kbytes"

#: what the kernel recommends on a machine of 2 GiB
_RECOMMENDED_KIB = 45056

_BITS = re.compile(r"\+?(0[xX]0*[0-3]|0*[0-3])\n?")
_DECIMAL = re.compile(r"\+?[0-9]+\n?")
_POOL = "sys/kernel/mm/hugepages/hugepages-2048kB"
_PLAIN = {
    "proc/sys/kernel/osrelease": "5.10.134-double",
    "proc/sys/kernel/tainted": "0",
    MIN_FREE: "5704",
    DROP_CACHES: "0",
    "proc/sys/vm/compact_memory": "0",
    "proc/buddyinfo": "Node 0, zone Normal 1 1 1 1 1 1 1 1 1 100 100",
    "proc/meminfo": "MemTotal: 4194304 kB\nMemAvailable: 4000000 kB\nHugePages_Total: 0\nHugePages_Free: 0\n"
    "HugePages_Rsvd: 0\nHugePages_Surp: 0\nHugepagesize: 2048 kB\nHugetlb: 0 kB",
    "proc/filesystems": "nodev\tdebugfs",
    f"{DIRECTORY}/hpage_pmd_size": str(PMD),
    f"{DIRECTORY}/defrag": "always defer defer+madvise [madvise] never",
    f"{DIRECTORY}/enabled": "always [madvise] never",
    f"{DIRECTORY}/khugepaged/scan_sleep_millisecs": "10000",
    f"{DIRECTORY}/khugepaged/alloc_sleep_millisecs": "60000",
    f"{DIRECTORY}/khugepaged/pages_to_scan": "4096",
    f"{DIRECTORY}/khugepaged/max_ptes_none": "511",
    f"{DIRECTORY}/khugepaged/defrag": "1",
    PAGES_COLLAPSED: "0",
    FULL_SCANS: "0",
    VMSTAT: "thp_fault_alloc 0\nthp_split_page 0\nthp_split_page_failed 0\n",
    "proc/sys/vm/stat_refresh": "0",
    **{
        f"{_POOL}/{name}": "0"
        for name in ("nr_hugepages", "free_hugepages", "resv_hugepages", "surplus_hugepages", "nr_overcommit_hugepages")
    },
}


class Files:
    """A tree of files. ``is_switch`` is the first generation, which has 0 and 1 and no padding."""

    def __init__(self, wrong: frozenset[Wrong], *, is_switch: bool) -> None:
        self._wrong = wrong
        self._is_switch = is_switch
        self.texts = {path: f"{text}\n" for path, text in _PLAIN.items()} | {ENABLED: "0\n"}
        if not is_switch:
            self.texts[THRESHOLD] = "0\n"
        self._rules: dict[str, Callable[[str], str]] = {ENABLED: self._enabled, THRESHOLD: self._threshold}

    @property
    def mode(self) -> int:
        """What hugetext_enabled holds."""
        return int(self.texts[ENABLED])

    @property
    def threshold(self) -> int:
        """What hugetext_pad_threshold holds, 0 without one."""
        return int(self.texts.get(THRESHOLD, "0"))

    @property
    def thp(self) -> str:
        """What transparent_hugepage/enabled holds."""
        return parse_selection(self.texts[f"{DIRECTORY}/enabled"], f"{DIRECTORY}/enabled").selected

    def count(self, path: str, more: int = 1) -> None:
        """Add to the number in a file."""
        self.texts[path] = f"{int(self.texts[path]) + more}\n"

    def count_event(self, name: str, more: int) -> None:
        """Add to a number of /proc/vmstat."""
        counted = re.compile(rf"^({name} )([0-9]+)$", re.MULTILINE)
        self.texts[VMSTAT] = counted.sub(lambda line: f"{line[1]}{int(line[2]) + more}", self.texts[VMSTAT])

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory."""
        prefix = f"{directory}/"
        return sorted({path[len(prefix) :].split("/")[0] for path in self.texts if path.startswith(prefix)})

    def write(self, path: str, text: str) -> None:
        """Write as the kernel does. Raises OSError."""
        if path not in self.texts:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        if path in self._rules:
            self.texts[path] = f"{self._rules[path](text)}\n"
        elif "[" in self.texts[path]:
            words = self.texts[path].replace("[", "").replace("]", "").split()
            self.texts[path] = " ".join(f"[{word}]" if word == text.strip() else word for word in words) + "\n"
        else:
            self.texts[path] = f"{text.strip()}\n"

    def _enabled(self, text: str) -> str:
        if Wrong.TAKES_SPACE in self._wrong:
            text = text.rstrip(" ")
        number = self._switch(text) if self._is_switch else self._bits(text)
        if number == 0 and Wrong.LOSES_THRESHOLD in self._wrong and THRESHOLD in self.texts:
            self.texts[THRESHOLD] = "0\n"
        self._change_reserve(switched_on=number > 0)
        return str(number)

    def _change_reserve(self, *, switched_on: bool) -> None:
        if switched_on and Wrong.MIN_FREE_STAYS not in self._wrong:
            self.texts[MIN_FREE] = f"{max(_RECOMMENDED_KIB, int(self.texts[MIN_FREE]))}\n"
        if not switched_on and Wrong.MIN_FREE_FALLS in self._wrong:
            self.texts[MIN_FREE] = "1024\n"

    def _switch(self, text: str) -> int:
        number = _decimal(text)
        if number >= 1 << 64:
            raise OSError(errno.ERANGE, os.strerror(errno.ERANGE))
        return _at_most(number, 1)

    def _bits(self, text: str) -> int:
        if Wrong.CLAMPS in self._wrong and _DECIMAL.fullmatch(text):
            return min(int(text), 3)
        if not _BITS.fullmatch(text) or (Wrong.REFUSES_HEX in self._wrong and "x" in text):
            raise _invalid()
        return int(text, 16) if "x" in text.lower() else int(text)

    def _threshold(self, text: str) -> str:
        if Wrong.THRESHOLD_HEX in self._wrong and text.startswith("0x"):
            text = str(int(text, 16))
        return str(_at_most(_decimal(text), PMD if Wrong.THRESHOLD_OF_A_PAGE in self._wrong else PMD - 1))


def _decimal(text: str) -> int:
    if not _DECIMAL.fullmatch(text):
        raise _invalid()
    return int(text)


def _at_most(number: int, highest: int) -> int:
    if number > highest:
        raise _invalid()
    return number


def _invalid() -> OSError:
    return OSError(errno.EINVAL, os.strerror(errno.EINVAL))
