"""A capability that root does not have is no failure of the kernel; one that it has and may not keep is."""

import errno
import struct
from typing import Any, cast

import pytest

from hugepage_qa.cases.capabilities import IPC_LOCK, become_user_with
from hugepage_qa.kernel.uapi import find_uapi
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor, Refused


class _Refused:
    """An actor whose capset(2) is refused."""

    uapi = find_uapi("x86_64")

    def __init__(self, permitted: int, number: int) -> None:
        self._permitted = permitted
        self._errno = number

    def call(self, name: str, *_arguments: Any) -> int:
        if name == "capset":
            raise Refused(self._errno, name)
        return 0

    def call_with_buffers(self, _name: str, *_arguments: Any) -> tuple[int, tuple[bytes, ...]]:
        return 0, (bytes(8), struct.pack("6I", 0, self._permitted, 0, 0, 0, 0))


def become(permitted: int, number: int = errno.EPERM) -> None:
    become_user_with(cast("Actor", _Refused(permitted, number)), 1000, IPC_LOCK)


def test_root_without_it() -> None:
    with pytest.raises(CannotRun, match=r"^root lacks capability 14"):
        become(~(1 << IPC_LOCK) & 0xFFFFFFFF)


def test_a_refusal_of_what_is_permitted() -> None:
    with pytest.raises(Refused):
        become(1 << IPC_LOCK)


def test_another_error() -> None:
    with pytest.raises(Refused):
        become(0, errno.EINVAL)
