"""The files of boot loaders: read as root, replaced whole with mode and owner kept, put back after a failure."""

import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from hugepage_qa.durable import remove_durably, write_durably
from hugepage_qa.errors import InputError
from hugepage_qa.machine.kept_file import read_kept_file, restore_file, unrestored


def read_text(path: Path) -> str:
    """Return the text of ``path``. Raises InputError when it cannot be read: many of these files are root's alone."""
    text = read_optional_text(path)
    if text is None:
        raise InputError(f"{path}: no such file, expected the configuration of a boot loader")
    return text


def read_optional_text(path: Path) -> str | None:
    """Return the text of ``path``, None where there is no such file. Raises InputError when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): expected to be root") from error


def replace_text(path: Path, text: str) -> None:
    """Replace or make the file ``path`` as a whole; mode and owner stay. Raises InputError if it cannot be written."""
    path = path.resolve()
    content = text.encode("utf-8", "surrogateescape")
    try:
        status = path.stat() if path.exists() else None
        if status is None:
            write_durably(path, content)
        else:
            write_durably(path, content, mode=stat.S_IMODE(status.st_mode), owner=(status.st_uid, status.st_gid))
    except OSError as error:
        raise _not_writable(path, error) from error


def remove_file(path: Path) -> None:
    """Remove the file ``path`` if it is there. Raises InputError when that cannot be."""
    try:
        remove_durably(path)
    except OSError as error:
        raise _not_writable(path, error) from error


def keep_files(paths: Iterable[Path]) -> Callable[[], None]:
    """Return what puts the files ``paths`` back to how they are now, and removes those that there are not.

    It raises InputError when one cannot be put back.
    """
    # grubenv is a link into the EFI system partition on some systems
    kept = [read_kept_file(path.resolve()) for path in paths]

    def put_back() -> None:
        repairs = [repair for file in kept for repair in restore_file(file)]
        if broken := unrestored(repairs):
            raise InputError(f"the boot loader is not as before: {'; '.join(map(str, broken))}")

    return put_back


def _not_writable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be written ({error.strerror}): expected to be root and a writable disk")
