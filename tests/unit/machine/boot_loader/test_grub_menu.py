"""What GRUB boots next: the language of grub.cfg, its conditions, and the entries that grubenv chooses."""

from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.machine.boot_loader.bls import compare_versions
from hugepage_qa.machine.boot_loader.grub_environment import read_grub_environment
from hugepage_qa.machine.boot_loader.grub_menu import next_grub_entry

MENU = """
menuentry 'first' --class gnu --id one { linux /boot/first root=/dev/a }
submenu 'more > less' --id sub {
    menuentry "second" --id two { linux16 /boot/second root=/dev/b }
    menuentry third --users '' --id three { linuxefi /boot/third root=/dev/c }
}
menuentry 'firmware' { fwsetup }
"""


def boot(root: Path, menu: str, environment: str = "") -> tuple[str, ...]:
    folder = root / "boot/grub"
    folder.mkdir(parents=True)
    (folder / "grub.cfg").write_text(menu)
    if environment:
        (folder / "grubenv").write_text(f"# GRUB Environment Block\n{environment}\n####")
    entry = next_grub_entry(root)
    return (entry.kernel, *entry.words)


@pytest.mark.parametrize(
    ("default", "kernel"),
    [
        ("", "first"),
        ("0", "first"),
        ("one", "first"),
        ("1>0", "second"),
        ("sub>three", "third"),
        ("more >> less>third", "third"),
        ("sub>1", "third"),
        ("sub", "second"),
        ("sub>no such entry", "second"),
        ("7", "first"),
        ("no such entry", "first"),
    ],
)
def test_default(tmp_path: Path, default: str, kernel: str) -> None:
    assert boot(tmp_path, f"set default='{default}'\n{MENU}")[0] == f"/boot/{kernel}"


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ('[ "${a}" ]', True),
        ('[ "${none}" ]', False),
        ("[ -n $a ]", True),
        ('[ -z "$none" ]', True),
        ('[ "$a" = x ]', True),
        ('[ "$a" != x ]', False),
        ('[ x"$none" = x ]', True),
        ('[ "$a" = x -a "$b" = y ]', True),
        ('[ "$a" = x -a "$b" = x ]', False),
        ('[ "$a" = y -o "$b" = y ]', True),
        ("test ! -n $none", False),
        ("true", True),
        ("false", False),
        ("[ -s $prefix/grubenv ]", True),
        ("[ -f $prefix/user.cfg ]", False),
        ("keystatus --shift", False),
        ("[ $none != pc ]", False),
    ],
)
def test_conditions(tmp_path: Path, condition: str, holds: bool) -> None:
    menu = f"load_env\nif {condition} ; then set default=sub>1; else set default=0; fi\n{MENU}"
    assert boot(tmp_path, menu, "a=x\nb=y")[0] == ("/boot/third" if holds else "/boot/first")


def test_elif_and_what_is_inside_a_branch_that_is_not_taken(tmp_path: Path) -> None:
    menu = """
    if false; then
        if true; then set default=1>1; fi
    elif true; then
        set default=1>0
    else
        set default=0
    fi"""
    assert boot(tmp_path, menu + MENU)[0] == "/boot/second"


def test_functions_and_loops_decide_nothing(tmp_path: Path) -> None:
    menu = "function f { set default=1 }\nfor i in a b; do set default=1; done\nwhile true; do set default=1; done"
    assert boot(tmp_path, menu + MENU)[0] == "/boot/first"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a=1 b='c d' \"e=f g\" h\\ i", ("a=1", "b=c d", "e=f g", "h i")),
        ("a=$x b=${x} c=\"$x\" d='$x'", ("a=1", "2", "b=1", "2", "c=1 2", "d=$x")),
        ("a=1 $none b=2", ("a=1", "b=2")),
        ('a="" ""', ("a=", "")),
        ("thp_anon=64K:always;128K:never b=2", ("thp_anon=64K:always",)),
        ('"thp_anon=64K:always;128K:never" b=2', ("thp_anon=64K:always;128K:never", "b=2")),
        ("a=1 # comment", ("a=1",)),
        ("a=1 b#c", ("a=1", "b#c")),
        ("a=1 \\\n b=2", ("a=1", "b=2")),
        ('a="x\\"y" b=\\;', ('a=x"y', "b=;")),
    ],
)
def test_words(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    assert boot(tmp_path, f"set x='1 2'\nmenuentry a {{\nlinux /k {text}\n}}\n") == ("/k", *words)


@pytest.mark.parametrize(
    "menu", ["if true; then set a=b\n", "menuentry a { linux /k\n", "menuentry a {\nif true; then\n}"]
)
def test_half_a_configuration(tmp_path: Path, menu: str) -> None:
    with pytest.raises(InputError, match=r"grub\.cfg: no .*: expected a whole GRUB configuration"):
        boot(tmp_path, menu)


@pytest.mark.parametrize("menu", ["", "set default=firmware\n" + MENU, "menuentry a { }"])
def test_an_entry_that_boots_no_linux(tmp_path: Path, menu: str) -> None:
    with pytest.raises(InputError, match=r"expected a default entry that boots Linux"):
        boot(tmp_path, menu)


def test_no_menu(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected grub2/grub.cfg or grub/grub.cfg"):
        next_grub_entry(tmp_path)


def test_environment(tmp_path: Path) -> None:
    (tmp_path / "boot/grub2").mkdir(parents=True)
    (tmp_path / "boot/grub2/grubenv").write_text("# GRUB Environment Block\na=1=2\nempty=\nback=a\\\\b\n######")
    assert read_grub_environment(tmp_path) == {"a": "1=2", "empty": "", "back": "a\\b"}


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("5.14.0-70.el9", "5.14.0-427.el9"),
        ("6.9.12-200.fc40", "6.14.5-300.fc42"),
        ("0-rescue-5a3c", "5.14.0"),
        ("5.14.0~rc1", "5.14.0"),
        ("5.14.0", "5.14.0+debug"),
        ("5.14", "5.14.1"),
        ("el9.x", "9.x"),
        ("a", "b"),
    ],
)
def test_versions(older: str, newer: str) -> None:
    assert (compare_versions(older, newer), compare_versions(newer, older)) == (-1, 1)
    assert compare_versions(older, older) == 0
