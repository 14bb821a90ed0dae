"""A guest that goes from one QEMU to another, as the monitors of both are told (QEMU, Migration; Postcopy)."""

from typing import Any

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.guest.driver import GuestError
from hugepage_qa.qemu.guest.qemu_process import QemuProcess
from hugepage_qa.sizes import GIB, MIB

#: bytes each second: so slow that what happens meanwhile can be looked at, the same for post-copy, where a guest waits
#: for a page of 1 GiB until all of it is there, and as good as without a limit
SLOW, SLOW_POSTCOPY, FAST = MIB, 8 * MIB, 1024 * GIB
#: where its CPUs are to be moved before its memory, until they are: QEMU first sends the page of the host that it is in
#: to its end, which may be of 1 GiB, and moves none where what is left could be sent within the downtime
UNTIL_POSTCOPY, NO_DOWNTIME = 16 * MIB, 1
#: for how many milliseconds a guest may stand still: one that is busy on a slow machine need not be faster than that
DOWNTIME = 60_000

ACTIVE, POSTCOPY, COMPLETED, CANCELLED = "active", "postcopy-active", "completed", "cancelled"
_FAILED = ("failed", "postcopy-paused")


def receive(guest: QemuProcess, uri: str, postcopy: bool) -> None:
    """Have a QEMU that was started with ``-incoming defer`` listen at ``uri``. Raises GuestError."""
    try:
        _allow(guest, postcopy)
    except GuestError as error:
        # before 8.1 only there it says what the kernel refuses
        raise GuestError(f"{error} {guest.said}") from error
    guest.ask("migrate-incoming", uri=uri)


def send(guest: QemuProcess, uri: str) -> None:
    """Begin to send a guest to ``uri``."""
    guest.ask("migrate", uri=uri)


def send_slowly(guest: QemuProcess, uri: str, postcopy: bool) -> None:
    """Begin to send a guest, and wait until its memory is on the way. Raises as ``await_status`` does.

    With ``postcopy`` it is no slower than it has to be until its CPUs are moved.
    """
    _allow(guest, postcopy)
    pace: dict[str, int] = {"max_bandwidth": SLOW}
    if postcopy:
        pace = {"max_bandwidth": UNTIL_POSTCOPY, "downtime_limit": NO_DOWNTIME}
    guest.ask("migrate-set-parameters", max_postcopy_bandwidth=SLOW_POSTCOPY, **pace)
    send(guest, uri)
    await_status(guest, ACTIVE)


def start_postcopy(guest: QemuProcess) -> None:
    """Move the CPUs of a guest that is being sent, and wait until they are. Raises as ``await_status`` does."""
    guest.ask("migrate-start-postcopy")
    await_status(guest, POSTCOPY)


def hasten(guest: QemuProcess) -> None:
    """Send what is left of a guest as fast as can be."""
    guest.ask("migrate-set-parameters", max_bandwidth=FAST, max_postcopy_bandwidth=FAST, downtime_limit=DOWNTIME)


def cancel(guest: QemuProcess) -> None:
    """Have a guest that is being sent stay, and wait until nothing is sent. Raises as ``await_status`` does."""
    guest.ask("migrate_cancel")
    await_status(guest, CANCELLED)


def await_status(guest: QemuProcess, wanted: str) -> None:
    """Wait until the migration of a guest is ``wanted``.

    Raises GuestError when it fails, InputError when it is over before it could be ``wanted``, or takes too long.
    """

    def is_so() -> bool:
        answer: dict[str, Any] = guest.ask("query-migrate")
        status = answer.get("status")
        if status != wanted and status in _FAILED:
            raise GuestError(f"migration {status}: {answer.get('error-desc', '')} {guest.said}")
        if status != wanted and status in (COMPLETED, CANCELLED):
            raise InputError(f"the migration is {status} before it could be {wanted}: nothing of it was seen")
        return bool(status == wanted)

    guest.await_condition(is_so, f"the migration does not get {wanted}")


def _allow(guest: QemuProcess, postcopy: bool) -> None:
    guest.ask("migrate-set-capabilities", capabilities=[{"capability": "postcopy-ram", "state": postcopy}])
