"""Kernel arguments on their way through /etc/default/grub and grub.cfg into /proc/cmdline, unchanged."""

import re

from hugepage_qa.errors import InputError
from hugepage_qa.lab.boards import Board

_PRINTABLE = re.compile(r"[ -~]*")
# what GRUB's own script language would take for itself (GRUB manual, Quoting); ';' ends a command, and
# thp_anon= needs one
_SPECIAL = re.compile(r"[$;|&<>{}#*?~]")
# grub_create_loader_cmdline() (grub-core/lib/cmdline.c) writes a backslash before each of them
_CHANGED_BY_GRUB = re.compile(r"""[\\'"]""")

# within double quotes (POSIX shell, 2.2.3)
_SPECIAL_TO_SHELL = re.compile(r"""[\\"$`]""")

_DEFAULTS = """\
GRUB_DEFAULT=0
GRUB_TIMEOUT=0
GRUB_RECORDFAIL_TIMEOUT=0
GRUB_CMDLINE_LINUX_DEFAULT=""
GRUB_CMDLINE_LINUX="{words}"
GRUB_TERMINAL=console
GRUB_DISABLE_OS_PROBER=true
"""


def check_words(board: Board, words: str) -> None:
    """Raise InputError unless kernel arguments ``words`` are one printable line that the kernel takes in full."""
    if not _PRINTABLE.fullmatch(words):
        raise InputError(f"kernel arguments {words!r}: expected one line of printable ASCII characters")
    # what stands before them: BOOT_IMAGE=, root=, and the words of the board
    limit = board.command_line_size - 256
    if len(words) > limit:
        raise InputError(f"kernel arguments of {len(words)} bytes: expected {limit} at most")


def default_grub(board: Board, words: str) -> str:
    """Return /etc/default/grub for a machine whose kernel gets ``words`` besides what the lab needs.

    The file is read by a shell, and what it says is written into grub.cfg, which GRUB reads as a script. Raises
    InputError for what GRUB cannot hand on unchanged.
    """
    if _CHANGED_BY_GRUB.search(words):
        raise InputError(f"kernel arguments {words!r}: GRUB hands on no quotes and backslashes, leave them out")
    for_grub = _SPECIAL.sub(_behind_backslash, words)
    return _DEFAULTS.format(words=_SPECIAL_TO_SHELL.sub(_behind_backslash, f"{board.kernel_words} {for_grub}".strip()))


def _behind_backslash(match: re.Match[str]) -> str:
    return f"\\{match[0]}"
