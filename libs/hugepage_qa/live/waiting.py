"""Waiting for what a guest or the kernel does in its own time."""

from collections.abc import Callable

from hugepage_qa.live.live import Live

# ten seconds: a page of 1 GiB is cleared in one, on a machine that is busy in some
_ATTEMPTS = 200
_PAUSE_SECONDS = 0.05


def wait_until(live: Live, is_so: Callable[[], bool]) -> None:
    """Wait until ``is_so``, but not for long; what is expected then has to be compared all the same."""
    for _attempt in range(_ATTEMPTS):
        if is_so():
            return
        live.host.pause(_PAUSE_SECONDS)
