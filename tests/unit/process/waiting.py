"""What tests of processes wait for."""

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until ``condition`` holds, at most 20 s."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
