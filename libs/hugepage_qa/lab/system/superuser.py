"""Files that belong to root, made by whoever we are: by root itself, or in a user namespace with subordinate ids.

The namespace is that of ``mmdebstrap --unshare-helper`` (subuid(5)): the same in which mmdebstrap makes the root.
"""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.lab.system.layers import remove
from hugepage_qa.lab.system.tools import MMDEBSTRAP, program


def mmdebstrap_mode() -> str:
    """Return the value of mmdebstrap's --mode with which this user can build a root."""
    return "root" if _is_root() else "unshare"


def _is_root() -> bool:
    return os.geteuid() == 0


def _as_superuser(command: Sequence[str]) -> list[str]:
    return [*([] if _is_root() else [program(MMDEBSTRAP), "--unshare-helper"]), *command]


def run_as_superuser(command: Sequence[str], content: bytes = b"") -> bytes:
    """Run ``command`` with ``content`` as its input and return its output; InputError with its complaint."""
    done = subprocess.run(_as_superuser(command), input=content, capture_output=True, check=False)
    if done.returncode != 0:
        complaint = " | ".join(done.stderr.decode(errors="replace").split("\n")).strip(" |")
        raise InputError(f"{Path(command[0]).name} failed: {complaint or f'exit code {done.returncode}'}")
    return done.stdout


@contextmanager
def superuser_directory(work: Path) -> Iterator[Path]:
    """Yield a directory of the superuser that we can read: below ``work`` if we are root, else below $TMPDIR.

    The subordinate ids of an ordinary user have no way through his private directories.
    """
    parent = work if _is_root() else Path(os.environ.get("TMPDIR") or "/var/tmp")  # noqa: S108 - mktemp claims it
    made = run_as_superuser(["mktemp", "--directory", str(parent / "hugepage-qa-XXXXXXXXXX")])
    directory = Path(made.decode().strip())
    try:
        run_as_superuser(["chmod", "0755", str(directory)])
        yield directory
    finally:
        if _is_root():
            remove(directory)
        else:
            run_as_superuser(["rm", "-rf", "--one-file-system", "--", str(directory)])
