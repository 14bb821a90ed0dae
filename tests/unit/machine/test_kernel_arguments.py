"""Kernel arguments are put back through the boot loader."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.machine.boot_loader.loader import BootLoader
from hugepage_qa.machine.restore import restore_arguments, still_running
from hugepage_qa.machine.saved_state import KeptArguments

from .conftest import write


class Loader:
    """A boot loader that may lose arguments."""

    def __init__(self, *arguments: str, name: str = "grubby", loses: str | None = None) -> None:
        self.name = name
        self.words = list(arguments)
        self.loses = loses
        self.calls = 0

    def found(self, _root: Path) -> BootLoader:
        """Return it as that of the machine."""
        return cast(BootLoader, self)

    def arguments(self) -> tuple[str, ...]:
        return tuple(self.words)

    def add(self, arguments: Sequence[str]) -> None:
        self.calls += 1
        self.words += [word for word in arguments if word != self.loses]

    def remove(self, arguments: Sequence[str]) -> None:
        self.calls += 1
        for word in arguments:
            index = len(self.words) - 1 - self.words[::-1].index(word)
            del self.words[index]


@pytest.mark.parametrize(
    ("kept", "now"),
    [
        (["quiet"], ["quiet", "hugepagesz=1G", "hugepages=2"]),
        (["quiet", "hugepagesz=2M", "hugepages=4"], ["quiet"]),
        (
            ["hugepagesz=2M", "hugepages=4"],
            ["hugepagesz=2M", "hugepages=4", "hugepagesz=2M", "hugepages=4", "hugepages=5"],
        ),
        (["quiet", "a=1"], ["quiet", "b=2"]),
        ([], ["hugepages=1"]),
    ],
)
def test_back_to_what_was_kept(kept: list[str], now: list[str]) -> None:
    loader = Loader(*now)
    (repair,) = restore_arguments(KeptArguments("grubby", tuple(kept)), loader.found)
    assert loader.words == kept
    assert repair.succeeded
    assert repair.before == " ".join(now)


def test_unchanged() -> None:
    loader = Loader("quiet", "hugepages=1")
    assert restore_arguments(KeptArguments("grubby", ("quiet", "hugepages=1")), loader.found) == []
    assert loader.calls == 0


def test_a_loader_that_loses_an_argument() -> None:
    loader = Loader(loses="quiet")
    (repair,) = restore_arguments(KeptArguments("grubby", ("quiet", "ro")), loader.found)
    assert str(repair) == "kernel arguments (grubby): NOT put back: wanted quiet ro, found ro"


def test_another_loader() -> None:
    with pytest.raises(InputError, match="boot loader zipl: expected grubby"):
        restore_arguments(KeptArguments("grubby", ()), Loader(name="zipl").found)


def test_words_that_this_boot_still_has(machine: Path) -> None:
    write(machine / "proc/cmdline", "BOOT_IMAGE=/x root=/dev/a hugepages=2 hugepages=2 thp_anon=64K:always other\n")
    kept = KeptArguments("grubby", ("root=/dev/a", "hugepages=2"))
    assert still_running(kept, machine) == ("hugepages=2", "thp_anon=64K:always")
    assert still_running(kept, machine / "none") == ()
