"""A run that has asked for a reboot goes on after it; a systemd unit puts the machine back where nobody asked.

Who may put the machine back meanwhile, and who must not, is told by a mark. The unit is written and enabled without a
running systemd.
"""

import os
import re
import sys
from importlib import resources
from pathlib import Path

from hugepage_qa.durable import remove_durably, sync_directory, write_durably
from hugepage_qa.errors import InputError
from hugepage_qa.machine.journal import STATE, Journal, find_journal, read_boot_id
from hugepage_qa.machine.saved_state import Record


def goes_on(record: Record, token: str | None, root: Path) -> bool:
    """Tell whether a start with ``token`` is the one that the run of ``record`` has announced by ``expect_reboot``."""
    expected = record.expected_reboot
    return expected is not None and expected.token == token and _is_next_boot(record, read_boot_id(root))


def leave_for_its_run(journal: Journal, root: Path) -> bool:
    """Tell, while the machine boots, whether the run of ``journal`` is still to come, and note this boot then.

    It is when its reboot is yet to be, or was just now. After a second boot nobody came for it: put it back.
    Hold the run lock. Raises InputError.
    """
    record = journal.read()
    if record is None or record.expected_reboot is None:
        return False
    boot_id = read_boot_id(root)
    if boot_id == record.boot_id:
        return True
    if not _is_next_boot(record, boot_id):
        return False
    journal.arrive(boot_id)
    return True


def _is_next_boot(record: Record, boot_id: str) -> bool:
    """Tell whether ``boot_id`` is the boot right after that of ``record``, as far as boots were seen."""
    expected = record.expected_reboot
    return expected is not None and boot_id != record.boot_id and expected.arrived in (None, boot_id)


_NAME = "hugepage-qa-restore.service"
_DIRECTORY = "etc/systemd/system"
_WANTED_BY = "sysinit.target.wants"
_SPECIAL = re.compile(r"""["\\]""")


def install_unit(root: Path) -> Path:
    """Write the unit for this Python and the journal's directory, enable it, and return its path. Raises InputError."""
    directory = root / _DIRECTORY
    link = directory / _WANTED_BY / _NAME
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        write_durably(directory / _NAME, _text(root))
        link.unlink(missing_ok=True)
        link.symlink_to(f"../{_NAME}")
        sync_directory(link.parent)
    except OSError as error:
        raise InputError(f"{directory / _NAME}: cannot be written ({error.strerror}): expected to be root") from error
    return directory / _NAME


def remove_unit(root: Path) -> Path:
    """Disable and remove the unit and return its path; it need not be there. Raises InputError."""
    directory = root / _DIRECTORY
    for path in (directory / _WANTED_BY / _NAME, directory / _NAME):
        try:
            if path.is_symlink() or path.exists():
                remove_durably(path)
        except OSError as error:
            raise InputError(f"{path}: cannot be removed ({error.strerror}): expected to be root") from error
    return directory / _NAME


def _text(root: Path) -> str:
    journal = find_journal(root).path
    named = os.environ.get(STATE)
    values = {
        "directory": _quote(str(journal.parent)),
        # no quotes here: the whole line is the path
        "journal": str(journal).replace("%", "%%"),
        "environment": _quote(f"{STATE}={journal.parent}") if named else "",
        # -P: what lies in the working directory is not ours
        "command": " ".join(
            map(_quote_argument, (sys.executable, "-P", "-m", "hugepage_qa", "state", "restore", "--boot"))
        ),
    }
    template = resources.files(__package__).joinpath(_NAME).read_text(encoding="utf-8")
    return re.sub("@([a-z]+)@", lambda match: values[match[1]], template)


def _quote(text: str) -> str:
    """Return ``text`` as one word of a unit file (systemd.syntax(7))."""
    escaped = _SPECIAL.sub(r"\\\g<0>", text).replace("%", "%%")
    return f'"{escaped}"'


def _quote_argument(text: str) -> str:
    """Return ``text`` as one word of ExecStart=, where variables are replaced, too (systemd.service(5))."""
    return _quote(text).replace("$", "$$")
