"""Waiting for what a guest or the kernel does in its own time."""

from collections.abc import Callable

from hugepage_qa.live.live import Live

# a page of 1 GiB is cleared in a second; a machine with ten busy processes for each CPU takes a minute
_SECONDS = 120.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0


def wait_until(live: Live, is_so: Callable[[], bool], seconds: float = _SECONDS) -> None:
    """Wait until ``is_so``, at most ``seconds``; what is expected then has to be compared all the same."""
    end = live.host.clock() + seconds
    pause = _FIRST_PAUSE
    while not is_so() and live.host.clock() < end:
        live.host.pause(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
