"""How the kernel turns command line text into numbers, and numbers into log text.

Sources: lib/kstrtox.c, lib/cmdline.c memparse(), lib/vsprintf.c vsscanf(), lib/string_helpers.c string_get_size().
"""

import re

_WORD = 1 << 64
_DIGITS = re.compile(r"[0-9]+")
_HEX = re.compile(r"0[xX](?P<digits>[0-9a-fA-F]+)")
_OCTAL = re.compile(r"0[0-7]*")
_UNIT = 1024
_SUFFIX_SHIFT = {"K": 10, "M": 20, "G": 30, "T": 40, "P": 50, "E": 60}


def memparse(text: str) -> tuple[int, str]:
    """Return the size at the start of ``text`` and what follows it.

    Base 0 (``0x`` is hexadecimal, a leading 0 octal), an optional single K, M, G, T, P or E; no number is 0.
    """
    number, rest = _unsigned_base0(text)
    shift = _SUFFIX_SHIFT.get(rest[:1].upper())
    if shift is None:
        return number, rest
    return (number << shift) % _WORD, rest[1:]


def scan_decimal(text: str) -> tuple[int, str] | None:
    """Return what ``sscanf(text, "%lu%n")`` reads and what follows, or None where it reads nothing.

    Decimal only: of ``0x10`` it reads the 0. A sign is not accepted. Too large a number wraps at 64 bits.
    """
    match = _DIGITS.match(text)
    if match is None:
        return None
    return int(match[0]) % _WORD, text[match.end() :]


def kstrtoul(text: str, base: int = 0) -> int | None:
    """Return the number that all of ``text`` is (one trailing newline allowed), or None for an error."""
    digits = text.removesuffix("\n").removeprefix("+")
    if base == 0:
        number, rest = _unsigned_base0(digits)
    else:
        match = _DIGITS.match(digits)
        number, rest = (int(match[0]), digits[match.end() :]) if match else (0, digits)
    if rest or not digits or number >= _WORD:
        return None
    return number


def kstrtobool(text: str | None) -> bool | None:
    """Return the truth value that ``text`` starts with (y, t, 1, on, ...), or None for an error."""
    if not text:
        return None
    lowered = text.lower()
    if lowered[0] in "yt1" or lowered[:2] == "on":
        return True
    if lowered[0] in "nf0" or lowered[:2] == "of":
        return False
    return None


def string_get_size(size: int) -> str:
    """Return ``size`` bytes as the kernel log shows it: ``2.00 MiB``, ``64.0 KiB``, ``512 MiB``."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    index = 0
    value = size
    while value >= _UNIT and index < len(units) - 1:
        value //= _UNIT
        index += 1
    if index == 0:
        return f"{size} B"
    decimals = 3 - len(str(value))
    scaled = size * 10**decimals // _UNIT**index
    text = f"{scaled / 10**decimals:.{decimals}f}"
    return f"{text} {units[index]}"


def _unsigned_base0(text: str) -> tuple[int, str]:
    match = _HEX.match(text)
    if match is not None:
        return int(match["digits"], 16), text[match.end() :]
    match = _OCTAL.match(text)
    if match is not None:
        return int(match[0], 8), text[match.end() :]
    match = _DIGITS.match(text)
    if match is not None:
        return int(match[0]), text[match.end() :]
    return 0, text
