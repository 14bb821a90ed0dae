"""What a process is and how much memory it needs: /proc/PID/status (proc_pid_status(5), fs/proc/array.c)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hugepage_qa.kernel.tree import Tree
from hugepage_qa.kernel.values import malformed
from hugepage_qa.sizes import KIB

_LINE = re.compile(r"(?P<name>[A-Za-z_]\w*):\t?(?P<value>.*)", re.DOTALL | re.ASCII)
_SIZE = re.compile(r" *(?P<number>[0-9]{1,20}) kB")
_NUMBER = re.compile(r"[0-9]{1,20}")
_IDS = re.compile(r"(?P<real>[0-9]{1,10})\t(?P<effective>[0-9]{1,10})\t[0-9]{1,10}\t[0-9]{1,10}")
_SIZE_NAME = re.compile(r"Vm[A-Z]\w*|Rss[A-Z]\w*|HugetlbPages", re.ASCII)
_REQUIRED = ("Name", "State", "Tgid", "Pid", "PPid", "Uid", "Threads")
_KTHREADD = 2


@dataclass(frozen=True)
class ProcessStatus:
    """One process or thread. ``name`` is chosen by the process: untrusted text.

    ``pid`` is the thread, ``tgid`` the process that it belongs to, ``parent`` that of the process that started it.
    ``sizes`` are bytes: every line with a unit, none at all for what has no memory of its own.
    """

    name: str
    state: str
    pid: int
    tgid: int
    parent: int
    real_uid: int
    effective_uid: int
    threads: int
    is_kernel_thread: bool
    sizes: Mapping[str, int]

    @property
    def has_memory(self) -> bool:
        """Whether it has an address space; kernel threads and what has ended but is not waited for have none."""
        return "VmSize" in self.sizes

    @property
    def page_tables(self) -> int:
        """Bytes of page tables of all levels (VmPTE), without memory 0."""
        return self.sizes.get("VmPTE", 0)

    @property
    def rss_anon(self) -> int:
        """Bytes of anonymous memory in RAM, transparent huge pages included, hugetlb not."""
        return self.sizes.get("RssAnon", 0)

    @property
    def rss_file(self) -> int:
        """Bytes of mapped files in RAM."""
        return self.sizes.get("RssFile", 0)

    @property
    def rss_shmem(self) -> int:
        """Bytes of mapped shared memory in RAM, hugetlb not included."""
        return self.sizes.get("RssShmem", 0)

    @property
    def hugetlb_pages(self) -> int:
        """Bytes of hugetlb pages in the page tables; 0 without CONFIG_HUGETLB_PAGE."""
        return self.sizes.get("HugetlbPages", 0)


def read_process_status(tree: Tree, process: int | str = "self") -> ProcessStatus | None:
    """Return the status of ``process`` (a number, ``self`` or ``<pid>/task/<tid>``); None where there is none.

    Raises InputError for a malformed file.
    """
    path = f"proc/{process}/status"
    text = tree.read(path)
    # a process can end between the opening and the reading
    return parse_process_status(text, path) if text else None


def parse_process_status(text: str, path: str) -> ProcessStatus:
    """Return the status in ``text``, which was read from ``path``; raises InputError, which names the line."""
    values, lines = _parse_lines(text, path)
    for name in _REQUIRED:
        if name not in values:
            malformed(path, len(text.split("\n")), "", f"a line {name}: before the end")

    def number(name: str) -> int:
        if _NUMBER.fullmatch(values[name]) is None:
            malformed(path, lines[name], values[name], f"a number behind {name}:")
        return int(values[name])

    ids = _IDS.fullmatch(values["Uid"])
    if ids is None:
        malformed(path, lines["Uid"], values["Uid"], "four numbers behind Uid:")
    sizes = {
        name: _parse_size(name, value, lines[name], path) for name, value in values.items() if _has_size(name, value)
    }
    return ProcessStatus(
        name=_unescape(values["Name"]),
        state=values["State"],
        pid=number("Pid"),
        tgid=number("Tgid"),
        parent=number("PPid"),
        real_uid=int(ids["real"]),
        effective_uid=int(ids["effective"]),
        threads=number("Threads"),
        is_kernel_thread=_is_kernel_thread(values, number("Pid"), number("PPid")),
        sizes=sizes,
    )


def _parse_lines(text: str, path: str) -> tuple[dict[str, str], dict[str, int]]:
    """Return name -> value and name -> number of its line."""
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    for line, content in enumerate(text.removesuffix("\n").split("\n"), start=1):
        match = _LINE.fullmatch(content)
        if match is None:
            malformed(path, line, content, "a line such as 'VmPTE: 44 kB'")
        if match["name"] in values:
            malformed(path, line, content, "every name once")
        values[match["name"]] = match["value"]
        lines[match["name"]] = line
    return values, lines


def _has_size(name: str, value: str) -> bool:
    return _SIZE_NAME.fullmatch(name) is not None or (name not in _REQUIRED and _SIZE.fullmatch(value) is not None)


def _parse_size(name: str, value: str, line: int, path: str) -> int:
    match = _SIZE.fullmatch(value)
    if match is None:
        malformed(path, line, value, f"a size in kB behind {name}:")
    return int(match["number"]) * KIB


def _is_kernel_thread(values: Mapping[str, str], pid: int, parent: int) -> bool:
    """Linux 6.8 and later say so; before that they are kthreadd and its children without memory."""
    if "Kthread" in values:
        return values["Kthread"] == "1"
    return "VmSize" not in values and _KTHREADD in (pid, parent)


def _unescape(name: str) -> str:
    r"""Return a name with the escapes of proc_task_name() taken back: ``\n`` and ``\\``."""
    return re.sub(r"\\(?P<letter>[n\\])", lambda match: "\n" if match["letter"] == "n" else "\\", name)
