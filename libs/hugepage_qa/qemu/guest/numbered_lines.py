"""What files hold that guests read, or write: lines of numbers, as seq(1) prints them."""

import hashlib
from functools import cache

_AT_ONCE = 10_000


@cache
def numbered_lines(length: int) -> bytes:
    """Return the first ``length`` bytes of the lines 1, 2, 3...: no two pages of them are alike."""
    lines = bytearray()
    first = 1
    while len(lines) < length:
        lines += b"".join(b"%d\n" % number for number in range(first, first + _AT_ONCE))
        first += _AT_ONCE
    return bytes(lines[:length])


def md5sum(content: bytes) -> str:
    """Return what md5sum(1) says of ``content``: what the shell of a guest compares files by."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def md5_of_lines(length: int) -> str:
    """Return the same of ``length`` bytes of numbered lines."""
    return md5sum(numbered_lines(length))
