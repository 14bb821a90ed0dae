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


def md5_of_lines(length: int) -> str:
    """Return what md5sum(1) says of ``length`` bytes of numbered lines."""
    return hashlib.md5(numbered_lines(length), usedforsecurity=False).hexdigest()
