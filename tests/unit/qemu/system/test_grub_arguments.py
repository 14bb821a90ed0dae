"""Kernel arguments through a shell and GRUB's script language."""

import re
import subprocess
from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.boards import find_board
from hugepage_qa.qemu.system.system_images import check_words, default_grub

BOARD = find_board("x86_64")
HARD = "thp_anon=16K-64K:always;128K:inherit hugepages=0:3,1:5 a=$HOME b=`id` c=$(id) d=<{#|&*?~>} e=!x"


def sourced(text: str, tmp_path: Path) -> str:
    """Return GRUB_CMDLINE_LINUX as grub-mkconfig gets it."""
    path = tmp_path / "grub"
    path.write_text(text)
    script = f'set -eu; . {path}; printf %s "$GRUB_CMDLINE_LINUX"'
    return subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True).stdout


def through_grub(text: str) -> str:
    """Return what GRUB's parser makes of unquoted ``text``: a backslash keeps the next character as it is."""
    for special in ";$|&<>{}#":
        assert not re.search(rf"(?<!\\)\{special}", text), special
    return re.sub(r"\\(.)", r"\1", text)


@pytest.mark.parametrize("words", ["", "hugepagesz=1G hugepages=1", HARD])
def test_words_arrive_unchanged(words: str, tmp_path: Path) -> None:
    value = through_grub(sourced(default_grub(BOARD, words), tmp_path))
    assert value == f"console=ttyS0 no_timer_check {words}".strip()


def test_tools_that_edit_the_line_find_it_in_double_quotes() -> None:
    assert 'GRUB_CMDLINE_LINUX="console=ttyS0 no_timer_check quiet"\n' in default_grub(BOARD, "quiet")


@pytest.mark.parametrize("words", ['x="a b"', "x='a'", "x=a\\b"])
def test_what_grub_would_change_is_refused(words: str) -> None:
    check_words(BOARD, words)
    with pytest.raises(InputError, match="GRUB hands on no quotes and backslashes"):
        default_grub(BOARD, words)


@pytest.mark.parametrize("words", ["a\nb", "a\0b", "ä=1", "a\tb", "x" * 2000])
def test_what_no_kernel_takes_is_refused(words: str) -> None:
    with pytest.raises(InputError, match="kernel arguments"):
        check_words(BOARD, words)
