"""What a process is and how much memory it needs: /proc/PID/status (proc_pid_status(5), fs/proc/array.c)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hugepage_qa.kernel.nodes import parse_list
from hugepage_qa.kernel.tree import Tree, malformed
from hugepage_qa.sizes import KIB

# a name may hold every character but a newline
_LINE = re.compile(r"^(?P<name>[A-Za-z_]\w*):\t(?P<value>.*)$", re.MULTILINE | re.ASCII)
_UNIT = " kB"
_SIZE = re.compile(rf" *(?P<number>[0-9]{{1,20}}){_UNIT}")
_NUMBER = re.compile(r"[0-9]{1,20}")
_IDS = re.compile(r"[0-9]{1,10}\t(?P<effective>[0-9]{1,10})\t[0-9]{1,10}\t[0-9]{1,10}")
_SIZES = frozenset({"VmSize", "VmPTE", "RssAnon", "RssFile", "RssShmem", "HugetlbPages"})
_REQUIRED = ("Name", "State", "Tgid", "Pid", "PPid", "Uid", "Threads")


@dataclass(frozen=True)
class ProcessStatus:
    """One process or thread. ``name`` is chosen by the process: untrusted text.

    ``pid`` is the thread, ``parent`` the process that started it, ``effective_uid`` the user that it acts as.
    ``sizes`` are bytes: every line with a unit, none at all for what has no memory of its own. ``cpus`` are the
    numbers of those that it may run on (Cpus_allowed_list), in order, ``nodes`` of those that it may have memory of
    (Mems_allowed_list).
    """

    name: str
    state: str
    pid: int
    parent: int
    effective_uid: int
    threads: int
    sizes: Mapping[str, int]
    cpus: tuple[int, ...]
    nodes: tuple[int, ...]

    @property
    def has_memory(self) -> bool:
        """Whether it has an address space; kernel threads and what has ended but is not waited for have none."""
        return "VmSize" in self.sizes

    @property
    def page_tables(self) -> int:
        """Bytes of page tables of all levels (VmPTE), without memory 0."""
        return self.sizes.get("VmPTE", 0)

    @property
    def locked(self) -> int:
        """Bytes of address space that mlock(2) and its like keep in memory (VmLck); hugetlb is never among them."""
        return self.sizes.get("VmLck", 0)

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
    lines = text.removesuffix("\n").split("\n")
    # in the order of the lines
    values = dict(_LINE.findall(text))
    if len(values) < len(lines):
        _refuse(lines, path)
    for name in _REQUIRED:
        if name not in values:
            malformed(path, len(values) + 1, "", f"a line {name}: before the end")

    def expected(pattern: re.Pattern[str], name: str, what: str) -> re.Match[str]:
        match = pattern.fullmatch(values[name])
        if match is None:
            malformed(path, list(values).index(name) + 1, values[name], f"{what} behind {name}:")
        return match

    def number(name: str) -> int:
        return int(expected(_NUMBER, name, "a number")[0])

    ids = expected(_IDS, "Uid", "four numbers")
    sizes = {
        name: int(expected(_SIZE, name, "a size in kB")["number"]) * KIB
        for name, value in values.items()
        if (value.endswith(_UNIT) or name in _SIZES) and name != "Name"
    }
    return ProcessStatus(
        name=_unescape(values["Name"]),
        state=values["State"],
        pid=number("Pid"),
        parent=number("PPid"),
        effective_uid=int(ids["effective"]),
        threads=number("Threads"),
        sizes=sizes,
        cpus=parse_list(values.get("Cpus_allowed_list", ""), path),
        nodes=parse_list(values.get("Mems_allowed_list", ""), path),
    )


def _refuse(lines: Sequence[str], path: str) -> None:
    """Raise InputError for the first of ``lines`` that is malformed or has a name that was there before."""
    names = set()
    for line, content in enumerate(lines, start=1):
        match = _LINE.fullmatch(content)
        if match is None:
            malformed(path, line, content, "a line such as 'VmPTE: 44 kB'")
        if match["name"] in names:
            malformed(path, line, content, "every name once")
        names.add(match["name"])


def _unescape(name: str) -> str:
    r"""Return a name with the escapes of proc_task_name() taken back: ``\n`` and ``\\``."""
    return re.sub(r"\\(?P<letter>[n\\])", lambda match: "\n" if match["letter"] == "n" else "\\", name)
