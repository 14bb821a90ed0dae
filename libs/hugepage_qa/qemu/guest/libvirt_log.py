"""The log that libvirt keeps of each QEMU: why one ended of which libvirt itself does not tell."""

import re

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.guest.libvirt_daemon import PrivateDaemon

#: on a busy machine QEMU may end between its socket and libvirt's connect(2), or before libvirt finds what it said:
#: then only the log tells why
_WITHOUT_A_REASON = re.compile(r"failed to connect to monitor socket|process exited while connecting to monitor$")
#: in the log, before what QEMU says after a start
_STARTING = ": starting up "
#: with a time before it or without; the command line in the log has no colon there
_SAID_BY_QEMU = re.compile(r"(?:^|Z )(?:\S*/)?qemu[\w-]*: ")


def is_without_a_reason(message: str) -> bool:
    """Tell whether ``message``, by which libvirt refuses to start a domain, does not say why its QEMU ended."""
    return bool(_WITHOUT_A_REASON.search(message))


def last_said(daemon: PrivateDaemon, name: str, message: str) -> str:
    """Return the last line that the QEMU of a domain said since its start, which libvirt refused with ``message``.

    Raises InputError where that is not known.
    """
    # <root>/run/libvirt/qemu/<name>.pid
    root = daemon.pid_file(name).parents[3]
    try:
        log = (root / "var/log/libvirt/qemu" / f"{name}.log").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{name}: {message}, and its log cannot be read: {error}") from error
    lines = [line for line in log.rpartition(_STARTING)[2].splitlines() if _SAID_BY_QEMU.search(line)]
    if not lines:
        raise InputError(f"{name}: {message}, and its log does not tell why")
    return lines[-1]
