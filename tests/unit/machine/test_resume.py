"""What systemd does at boot with a run that has asked for a reboot."""

from pathlib import Path

import pytest

from hugepage_qa.machine.journal import Journal, find_journal
from hugepage_qa.machine.protection import new_record
from hugepage_qa.machine.resume import goes_on, leave_for_its_run
from hugepage_qa.machine.run_lock import this_process

from .conftest import NEXT_BOOT_ID, write

LATER_BOOT_ID = "bbbbbbbb-7777-8888-9999-aaaaaaaaaaaa"


@pytest.fixture
def journal(machine: Path) -> Journal:
    journal = find_journal(machine)
    journal.begin(new_record("a test", this_process(), machine))
    return journal


def boot(root: Path, boot_id: str) -> None:
    write(root / "proc/sys/kernel/random/boot_id", boot_id)


def would_go_on(journal: Journal, token: str | None, root: Path) -> bool:
    record = journal.read()
    assert record is not None
    return goes_on(record, token, root)


def test_no_journal(machine: Path) -> None:
    assert not leave_for_its_run(find_journal(machine), machine)


def test_a_crash(machine: Path, journal: Journal) -> None:
    boot(machine, NEXT_BOOT_ID)
    assert not leave_for_its_run(journal, machine)
    assert not would_go_on(journal, None, machine)


def test_the_boot_after_the_request(machine: Path, journal: Journal) -> None:
    journal.expect_reboot("a")
    # before the reboot
    assert leave_for_its_run(journal, machine)
    assert not would_go_on(journal, "a", machine)
    boot(machine, NEXT_BOOT_ID)
    for _ in range(2):
        assert leave_for_its_run(journal, machine)
        assert would_go_on(journal, "a", machine)
        assert not would_go_on(journal, "b", machine)
        assert not would_go_on(journal, None, machine)


def test_the_second_boot_after_the_request(machine: Path, journal: Journal) -> None:
    journal.expect_reboot("a")
    boot(machine, NEXT_BOOT_ID)
    assert leave_for_its_run(journal, machine)
    boot(machine, LATER_BOOT_ID)
    assert not leave_for_its_run(journal, machine)
    assert not would_go_on(journal, "a", machine)
