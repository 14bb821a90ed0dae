"""grubby and the entries of the Boot Loader Specification."""

import pytest
from tests.unit.machine.boot_loader.conftest import GetMachine

from hugepage_qa.machine.boot_loader.loader import ArgumentsLost

ID = "5a3cf2b1d9e84c0f8b7a6e5d4c3b2a19"


def environment(**values: str) -> str:
    return "# GRUB Environment Block\n" + "".join(f"{name}={value}\n" for name, value in values.items()) + "####"


def test_what_grubby_replaces_is_lost(machine: GetMachine) -> None:
    made = machine("fedora", "grubby")
    made.loader().add(["hugepagesz=1G", "hugepages=2"])
    before = made.files()
    with pytest.raises(ArgumentsLost, match=r"^grubby lost hugepages=2: the entry that boots next has 'root="):
        made.loader().add(["hugepages=64"])
    assert made.files() == before


def test_other_entries_are_not_touched(machine: GetMachine) -> None:
    made = machine("fedora", "grubby")
    made.loader().add(["hugepages=64"])
    changed = [name for name, text in made.files().items() if b"hugepages=64" in text]
    assert changed == [f"boot/loader/entries/{ID}-6.14.5-300.fc42.x86_64.conf"]


@pytest.mark.parametrize(
    ("values", "kernel"),
    [
        ({"saved_entry": f"{ID}-6.9.12-200.fc40.x86_64"}, "6.9.12-200.fc40"),
        ({"saved_entry": "1"}, "6.9.12-200.fc40"),
        ({"saved_entry": "Fedora Linux (6.9.12-200.fc40.x86_64) 40 (Server Edition)"}, "6.9.12-200.fc40"),
        ({}, "6.14.5-300.fc42"),
        ({"saved_entry": "0", "next_entry": f"{ID}-6.9.12-200.fc40.x86_64"}, "6.9.12-200.fc40"),
        ({"saved_entry": "7"}, "6.14.5-300.fc42"),
        ({"saved_entry": "no such entry"}, "6.14.5-300.fc42"),
    ],
)
def test_the_entry_that_boots_next_is_changed(machine: GetMachine, values: dict[str, str], kernel: str) -> None:
    made = machine("fedora", "grubby")
    made.write("boot/grub2/grubenv", environment(**values))
    made.loader().add(["hugepages=64"])
    assert "hugepages=64" in made.loader().arguments()
    (changed,) = [name for name, text in made.files().items() if b"hugepages=64" in text]
    assert kernel in changed


def test_a_semicolon_without_quotes_ends_the_arguments_in_grub(machine: GetMachine) -> None:
    made = machine("fedora", "grubby")
    path = made.root / f"boot/loader/entries/{ID}-6.14.5-300.fc42.x86_64.conf"
    path.write_text(path.read_text().replace(" rhgb quiet", " thp_anon=64K:always;128K:never quiet"))
    assert made.loader().arguments()[-1] == "thp_anon=64K:always"


def test_values_of_the_environment_that_are_not_set_are_nothing(machine: GetMachine) -> None:
    made = machine("rhel8", "grubby")
    made.write("boot/grub2/grubenv", environment(kernelopts="root=/dev/x ro"))
    assert made.loader().arguments() == ("root=/dev/x", "ro")
