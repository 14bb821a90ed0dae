"""A run that has asked for a reboot goes on after it: who may put the machine back meanwhile, and who must not."""

from pathlib import Path

from hugepage_qa.machine.journal import Journal, read_boot_id
from hugepage_qa.machine.record import Record


def goes_on(record: Record, token: str | None, root: Path = Path("/")) -> bool:
    """Tell whether a start with ``token`` is the one that the run of ``record`` has announced by ``expect_reboot``."""
    expected = record.expected_reboot
    return expected is not None and expected.token == token and _is_next_boot(record, read_boot_id(root))


def leave_for_its_run(journal: Journal, root: Path = Path("/")) -> bool:
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
