"""/proc/swaps names what is swapped to; a line of another form is no guess."""

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.proc_tables import SWAPS, read_swaps

TITLE = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"


class Machine:
    def __init__(self, text: str | None) -> None:
        self.text = text

    def read(self, path: str) -> str | None:
        assert path == SWAPS
        return self.text

    def names(self, _path: str) -> list[str]:
        return []


@pytest.mark.parametrize("text", [None, "", TITLE])
def test_a_machine_without_swap(text: str | None) -> None:
    assert read_swaps(Machine(text)) == {}


def test_files_and_devices() -> None:
    lines = "/dev/vda2                               partition\t1024\t\t0\t\t-2\n/a\\040b   file\t\t64\t\t4\t\t-3\n"
    assert read_swaps(Machine(TITLE + lines)) == {"/dev/vda2": 0, "/a b": 4096}


@pytest.mark.parametrize(
    "line", ["/dev/vda2 partition 1024 0", "/dev/vda2 partition 1024 x -2", "swap file 64 0 -2", "x"]
)
def test_a_line_of_another_form(line: str) -> None:
    with pytest.raises(InputError, match="/proc/swaps, line 2"):
        read_swaps(Machine(f"{TITLE}{line}\n"))
