"""zipl: which section is booted, and that the bootmap is what counts."""

from pathlib import Path

import pytest
from tests.unit.machine.boot_loader.conftest import GetMachine

from hugepage_qa.errors import InputError
from hugepage_qa.machine.boot_loader.loader import ArgumentsLost
from hugepage_qa.machine.boot_loader.zipl import default_zipl_entry, with_parameters


@pytest.mark.parametrize("name", ["ubuntu-s390x", "debian-s390x", "rhel-s390x"])
def test_a_zipl_that_writes_nothing(machine: GetMachine, name: str) -> None:
    made = machine(name, "zipl")
    made.run("zipl")
    before = made.files()
    made.lose("zipl")
    with pytest.raises(ArgumentsLost, match=r"^zipl lost hugepages=8: the entry that boots next has 'root="):
        made.loader().add(["hugepages=8"])
    assert made.files() == before


def test_a_zipl_that_leaves_what_was_there(machine: GetMachine) -> None:
    made = machine("ubuntu-s390x", "zipl")
    made.run("zipl")
    made.loader().add(["hugepages=8"])
    before = made.files()
    made.lose("zipl")
    with pytest.raises(ArgumentsLost, match=r"^zipl left hugepages=8: the entry that boots next has .*hugepages=8"):
        made.loader().remove(["hugepages=8"])
    assert made.files() == before


def test_a_configuration_that_zipl_has_not_seen(machine: GetMachine) -> None:
    made = machine("ubuntu-s390x", "zipl")
    with pytest.raises(InputError, match=r"bootmap: cannot be read .*run zipl first"):
        made.loader().arguments()
    made.run("zipl")
    configuration = made.root / "etc/zipl.conf"
    configuration.write_text(configuration.read_text().replace("BOOT_IMAGE=0", "hugepages=8"))
    with pytest.raises(InputError, match=r"bootmap: does not hold the parameters in .*/zipl.conf: run zipl first"):
        made.loader().arguments()


def test_a_line_that_only_ends_as_the_parameters_do_is_another(machine: GetMachine) -> None:
    made = machine("ubuntu-s390x", "zipl")
    made.run("zipl")
    bootmap = made.root / "boot/bootmap"
    bootmap.write_bytes(bootmap.read_bytes().replace(b"root=/dev/mapper/vg-root", b"x root=/dev/mapper/vg-root"))
    with pytest.raises(InputError, match=r"run zipl first"):
        made.loader().arguments()


def test_an_undo_that_fails_is_told_besides_the_reason(machine: GetMachine) -> None:
    made = machine("ubuntu-s390x", "zipl")
    made.run("zipl")
    made.fail("zipl")
    with pytest.raises(InputError, match=r"exit code 1: .*; it could not be undone: .*exit code 1: "):
        made.loader().add(["hugepages=8"])


IMAGES = "[one]\nimage=/boot/1\nparameters=a\n[two]\nimage=/boot/2\nparameters='b c'\n[dump]\ndumpto=/dev/dasdb1\n"


@pytest.mark.parametrize(
    ("head", "section"),
    [
        ("[defaultboot]\ndefault=two\n", "two"),
        ("[defaultboot]\ndefaultauto\ntarget=/boot\n", "one"),
        ("[defaultboot]\ndefaultauto\ntarget=/boot\ndefault=two\n", "two"),
        ("[defaultboot]\ndefaultmenu=m\n:m\n2=two\n1=one\n", "two"),
        ("[defaultboot]\ndefaultmenu=m\n:m\n1=one\n2=two\ndefault=2\n", "two"),
        ("# [defaultboot]\n[defaultboot]\n# default=one\ndefault = two  \n", "two"),
    ],
)
def test_default_section(tmp_path: Path, head: str, section: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/zipl.conf").write_text(head + IMAGES)
    assert default_zipl_entry(tmp_path).section == section


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (IMAGES, r"expected a section \[defaultboot\]"),
        ("[defaultboot]\ndefault=three\n" + IMAGES, "expected a default section with an image, found 'three'"),
        ("[defaultboot]\ndefault=dump\n" + IMAGES, "expected a default section with an image, found 'dump'"),
        ("[defaultboot]\ndefaultmenu=m\n" + IMAGES, "expected numbered sections"),
        ("", r"expected a section \[defaultboot\]"),
    ],
)
def test_configurations_that_say_nothing(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/zipl.conf").write_text(text)
    with pytest.raises(InputError, match=message):
        default_zipl_entry(tmp_path)


def test_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"zipl\.conf: no such file"):
        default_zipl_entry(tmp_path)


def test_entry_of_the_specification_by_its_title(machine: GetMachine) -> None:
    made = machine("rhel-s390x", "zipl")
    configuration = made.root / "etc/zipl.conf"
    title = "Red Hat Enterprise Linux (5.14.0-362.8.1.el9_3.s390x) 9.3 (Plow)"
    configuration.write_text(configuration.read_text() + f"default={title}\n")
    assert default_zipl_entry(made.root).section == title


def test_only_the_parameters_of_the_section_change() -> None:
    text = "[one]\nimage=/1\nparameters=a\n[two]\nimage=/2\n"
    assert with_parameters(text, "one", "a b") == '[one]\nimage=/1\nparameters = "a b"\n[two]\nimage=/2\n'
    assert with_parameters(text, "two", 'a "b c"') == text.replace("image=/2", "parameters = 'a \"b c\"'\nimage=/2")
