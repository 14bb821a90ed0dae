"""What stays busy for a moment after its last process has gone: mounts and cgroups."""

import errno
import time
from collections.abc import Callable

_TRIES = 100
_PAUSE_SECONDS = 0.02


def insist(removal: Callable[[], None]) -> None:
    """Call ``removal`` until the kernel no longer answers EBUSY, for two seconds. Raises OSError."""
    for _ in range(_TRIES):
        try:
            return removal()
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        time.sleep(_PAUSE_SECONDS)
    return removal()
