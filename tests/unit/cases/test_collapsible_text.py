"""Text is in the page cache as the kernel can collapse it: in base pages where it collapses no large folios."""

import mmap
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from tests.unit.cases.kinds import X86_64

from hugepage_qa.cases.file_text import start_collapsible
from hugepage_qa.cases.live import Live
from hugepage_qa.machine.host import Host
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.process.text_program_build import Recipe
from hugepage_qa.sizes import MIB

TEXT = {"address": 0, "offset": 2 * MIB, "size": 5 * MIB, "alignment": 2 * MIB, "executable": True}
BUILT = {
    "program": "/p",
    "file": "/p",
    "segments": [TEXT],
    "size": 8 * MIB,
    "runnable": True,
    "pages": 3,
    "checksum": 7,
}
FILES = {"proc/buddyinfo": "Node 0, zone Normal 1 1 1 1 1 1 1 1 1 1 1\n", "proc/meminfo": "Hugepagesize: 2048 kB\n"}


class Kernel:
    """A kernel of ``version``; ``done`` is what it was asked for, each word by word, until the program started."""

    kind = X86_64

    def __init__(self, version: str) -> None:
        self._files = FILES | {"proc/sys/kernel/osrelease": f"{version}\n"}
        self.done: list[list[str]] = []

    def perform(self, operation: str, arguments: Sequence[Any]) -> Any:
        match operation:
            case "read":
                return self._files.get(arguments[0])
            case "names":
                return []
            case "build_text":
                return BUILT
            case "request":
                self.done.append(arguments[1].split())
                return "ok 4096", None
        self.done.append([operation])
        return (1, 100) if operation in ("start_actor", "start_program") else None


def asked_before_the_start(version: str) -> list[list[str]]:
    kernel = Kernel(version)
    with ExitStack() as stack:
        start_collapsible(Live(Host(kernel), None, Rule("rule", "statement", "source"), stack), Recipe(2 * MIB))
    return kernel.done[: kernel.done.index(["start_program"])]


@pytest.mark.parametrize("version", ["5.18.0", "6.1.192", "6.11.11"])
def test_text_is_read_without_reading_ahead_where_large_folios_stay_as_they_are(version: str) -> None:
    done = asked_before_the_start(version)
    calls = [" ".join(words) for words in done]
    # to the end of the text, in one mapping
    assert f"call madvise 4096 {7 * MIB} {mmap.MADV_RANDOM}" in calls
    assert calls.index(f"call madvise 4096 {7 * MIB} {mmap.MADV_RANDOM}") < calls.index(f"sum 4096 {7 * MIB}")
    # a page that somebody has mapped is passed over
    assert done[-1] == ["end"]


@pytest.mark.parametrize("version", ["4.19.91", "5.17.15", "6.12.0", "7.3.4"])
def test_text_comes_as_the_file_system_reads_it_elsewhere(version: str) -> None:
    assert asked_before_the_start(version) == []
