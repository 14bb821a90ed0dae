"""The nodes that the pages of a process lie on: /proc/PID/numa_maps (numa(7); show_numa_map(), task_mmu.c)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hugepage_qa.kernel.tree import Tree, malformed
from hugepage_qa.sizes import KIB

# policy_modes[] in mm/mempolicy.c has two names of two words
_LINE = re.compile(
    r"(?P<start>[0-9a-f]{1,16}) (?P<policy>prefer \(many\)[^ ]*|weighted interleave[^ ]*|[^ ]+)(?P<words>(?: [^ ]+)*)"
)
_NODE = re.compile(r"N(?P<node>[0-9]{1,5})")
_NUMBER = re.compile(r"[0-9]{1,20}")
_ESCAPE = re.compile(r"\\(?P<code>011|012|040|075)")
_PAGE_SIZE = "kernelpagesize_kB"
_KNOWN = frozenset({"anon", "dirty", "mapped", "mapmax", "swapcache", "active", "writeback", _PAGE_SIZE})


@dataclass(frozen=True)
class NumaMapping:
    """One mapping and where its pages lie.

    ``policy`` is in the kernel's words: ``default``, ``bind:0-1``, ``interleave=static:0,2``. ``path`` is empty for
    anonymous memory; it is untrusted text. ``huge`` is whether the mapping is hugetlb. ``page_size`` is in bytes, None
    where no page has been touched. ``nodes`` maps node to pages of that size, and ``counts`` are pages, too
    (``anon``, ``dirty``, ``mapped`` ...), but ``mapmax`` is the largest number of mappings of one page.
    """

    start: int
    policy: str
    path: str
    huge: bool
    page_size: int | None
    nodes: Mapping[int, int]
    counts: Mapping[str, int]


def read_numa_maps(tree: Tree, process: int | str) -> tuple[NumaMapping, ...] | None:
    """Return the mappings of ``process`` by address; None without such a process, permission or CONFIG_NUMA.

    Raises InputError for a malformed file.
    """
    path = f"proc/{process}/numa_maps"
    text = tree.read(path)
    return None if text is None else parse_numa_maps(text, path)


def parse_numa_maps(text: str, path: str) -> tuple[NumaMapping, ...]:
    """Return the mappings in ``text``, which was read from ``path``; raises InputError, which names the line."""
    lines = text.removesuffix("\n").split("\n") if text else ()
    return tuple(_parse_line(line, number, path) for number, line in enumerate(lines, start=1))


def _parse_line(line: str, number: int, path: str) -> NumaMapping:
    match = _LINE.fullmatch(line)
    if match is None:
        malformed(path, number, line, "a line such as '7f0000000000 default anon=1 N0=1 kernelpagesize_kB=4'")
    words = match["words"].split(" ")[1:]
    values = dict(word.partition("=")[::2] for word in words)
    if len(values) < len(words):
        malformed(path, number, line, "every name once")
    file = values.pop("file", "")
    counts = {}
    for name, value in values.items():
        # words that later kernels add count if they are numbers; heap, stack and huge have none
        if _NUMBER.fullmatch(value):
            counts[name] = int(value)
        elif name in _KNOWN or _NODE.fullmatch(name):
            malformed(path, number, f"{name}={value}", f"a number behind {name}=")
    nodes = {int(node["node"]): counts.pop(name) for name in list(counts) if (node := _NODE.fullmatch(name))}
    page_size = counts.pop(_PAGE_SIZE, None)
    if nodes and not page_size:
        malformed(path, number, line, f"{_PAGE_SIZE}= with pages")
    return NumaMapping(
        start=int(match["start"], 16),
        policy=match["policy"],
        path=_unescape(file),
        huge="huge" in values,
        page_size=page_size * KIB if page_size else None,
        nodes=nodes,
        counts=counts,
    )


def _unescape(path: str) -> str:
    """Return ``path`` with the kernel's escapes of tab, newline, space and equals sign taken back.

    It does not escape a backslash, so that a file whose name holds ``\\040`` reads as one with a space.
    """
    return _ESCAPE.sub(lambda match: chr(int(match["code"], 8)), path)
