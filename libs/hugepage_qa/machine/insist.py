"""What stays busy for a moment after its last process has gone: mounts and cgroups."""

import errno
import time
from collections.abc import Callable

# seconds and not tries: on a loaded machine the moment is long
BUSY_SECONDS = 30.0
_PAUSE_SECONDS = 0.02


def insist(removal: Callable[[], None], seconds: float = BUSY_SECONDS) -> None:
    """Call ``removal`` until the kernel no longer answers EBUSY, for ``seconds``. Raises OSError."""
    deadline = time.monotonic() + seconds
    while True:
        # before the call: one that was kept from running for so long tries once more
        is_last = time.monotonic() > deadline
        try:
            return removal()
        except OSError as error:
            if error.errno != errno.EBUSY or is_last:
                raise
        time.sleep(_PAUSE_SECONDS)
