"""What is busy for a moment is removed, however long the moment is on a loaded machine."""

import errno
import os
import time

import pytest

from hugepage_qa.machine.libc import retry_while_busy


def busy() -> None:
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


def test_it_takes_as_long_as_it_is_given() -> None:
    begin = time.monotonic()
    with pytest.raises(OSError, match=os.strerror(errno.EBUSY)):
        retry_while_busy(busy, seconds=0.2)
    assert time.monotonic() - begin > 0.2


def test_who_was_kept_from_running_tries_once_more() -> None:
    """The process did not run for all of its time, and the first call was too early."""
    calls = []

    def removal() -> None:
        calls.append(time.monotonic())
        if len(calls) == 1:
            time.sleep(0.05)
            busy()

    retry_while_busy(removal, seconds=0.01)
    assert len(calls) == 2


def test_another_error_is_not_waited_for() -> None:
    def removal() -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    with pytest.raises(OSError, match=os.strerror(errno.EPERM)):
        retry_while_busy(removal, seconds=60)
