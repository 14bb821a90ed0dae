"""What GRUB makes of the words of an entry, the variables in grubenv, and the order of entries by version."""

from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.machine.boot_loader.bls import compare_versions
from hugepage_qa.machine.boot_loader.grub_loader import parse_grub_words, read_grub_environment


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a=1 b='c d' \"e=f g\" h\\ i", ("a=1", "b=c d", "e=f g", "h i")),
        ("a=$x b=${x} $none c=3", ("a=1", "2", "b=1", "2", "c=3")),
        ("a=1 ${none} b=2", ("a=1", "b=2")),
        ('a="" ""', ("a=", "")),
        ("thp_anon=64K:always;128K:never b=2", ("thp_anon=64K:always",)),
        ('"thp_anon=64K:always;128K:never" b=2', ("thp_anon=64K:always;128K:never", "b=2")),
        ('"x={a|b}" node=0:1,1:2', ("x={a|b}", "node=0:1,1:2")),
        ("a=1 b#c", ("a=1", "b#c")),
        ('a="x\\"y" b=\\;', ('a=x"y', "b=;")),
    ],
)
def test_words(text: str, words: tuple[str, ...]) -> None:
    assert parse_grub_words(text, {"x": "1 2"}) == words


def test_a_quote_without_an_end() -> None:
    with pytest.raises(InputError, match=r"^kernel arguments 'a=\"b': expected what GRUB can read"):
        parse_grub_words('a="b', {})


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
