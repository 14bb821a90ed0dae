"""The Avocado test that runs the cases of an area about guests."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from hugepage_qa.cases import run_settings
from hugepage_qa.cases.guest.guest_machine import GuestMachine, guest_machine
from hugepage_qa.plugins.avocado_test import LiveTest


class GuestTest(LiveTest):
    """Base of the tests below tests/guest."""

    needs_only_areas = False

    def machine(self) -> AbstractContextManager[GuestMachine]:
        return machine_with_guests()


@contextmanager
def machine_with_guests() -> Iterator[GuestMachine]:
    """Yield this machine and its guests, which boot the kernel of the settings. Raises InputError."""
    asked = os.environ.get(run_settings.KERNEL)
    kernel = run_settings.readable_file(asked, run_settings.KERNEL) if asked else None
    # not Avocado's directory: the paths of sockets have to be short
    with tempfile.TemporaryDirectory(prefix="guest-") as scratch, guest_machine(Path(scratch), kernel) as machine:
        yield machine
