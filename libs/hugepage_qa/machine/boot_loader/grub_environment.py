"""grubenv: the variables that GRUB loads at boot, such as saved_entry (GRUB manual, "The GRUB environment block")."""

from pathlib import Path

from hugepage_qa.machine.boot_loader.boot_files import read_optional_text

#: GRUB calls its directory grub or, where GRUB 1 had that name, grub2
GRUB_DIRECTORIES = ("boot/grub2", "boot/grub")


def find_in_grub_directory(root: Path, name: str) -> Path | None:
    """Return the file ``name`` of GRUB's directory below ``root``, None where there is none."""
    paths = (root / directory / name for directory in GRUB_DIRECTORIES)
    return next((path for path in paths if path.is_file()), None)


def read_grub_environment(root: Path) -> dict[str, str]:
    """Return the variables in grubenv; none where there is no such file. Raises InputError if it cannot be read."""
    path = find_in_grub_directory(root, "grubenv")
    text = (read_optional_text(path) if path else None) or ""
    lines = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {name: _unescape(value) for name, equals, value in lines if equals}


def _unescape(value: str) -> str:
    return value.replace("\\\\", "\\")
