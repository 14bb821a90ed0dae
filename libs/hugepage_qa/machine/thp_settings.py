"""Files of the system that set switches of transparent huge pages at boot: who has changed a default.

sysctl.d is not among them: none of these switches lies below /proc/sys.
"""

import re
from collections.abc import Iterator
from pathlib import Path

_TUNED = "etc/tuned/active_profile"
_TUNED_PROFILES = ("etc/tuned", "etc/tuned/profiles", "usr/lib/tuned", "usr/lib/tuned/profiles")
_INCLUDE = re.compile(r"^\s*include\s*=\s*(?P<names>.+)$", re.MULTILINE)
#: tmpfiles.d(5), systemd.unit(5), sysfsutils, udev(7), and the script of old
_PLACES = (
    *(f"{place}/tmpfiles.d/*.conf" for place in ("etc", "run", "usr/local/lib", "usr/lib")),  # noqa: S108 - of settings
    *(f"{place}/systemd/system/**/*.{kind}" for place in ("etc", "run", "usr/lib") for kind in ("service", "conf")),
    "etc/sysfs.conf",
    "etc/sysfs.d/*.conf",
    "etc/udev/rules.d/*.rules",
    "usr/lib/udev/rules.d/*.rules",
    "etc/rc.local",
    "etc/rc.d/rc.local",
)
_LONGEST = 1 << 20


def find_settings(switch: str, value: str, root: Path = Path("/")) -> list[str]:
    """Return the files below ``root`` with a line that sets ``switch`` to ``value``.

    ``switch`` is a file below the transparent_hugepage directory, such as ``khugepaged/defrag``. Read are the files
    that systemd, udev and sysfsutils may use, used or not, and the active profile of tuned with those it includes.
    """
    # tuned has names of its own for two of them
    tuned = {"enabled": r"|transparent_hugepages?\s*=", "defrag": r"|transparent_hugepage\.defrag\s*="}
    names = re.compile(rf"transparent_hugepage/{re.escape(switch)}\b{tuned.get(switch, '')}")
    wanted = re.compile(rf"(?<![\w+]){re.escape(value)}(?![\w+])")
    return [
        f"/{file.relative_to(root)}"
        for file in _files(root)
        if any(names.search(line) and wanted.search(line) for line in _lines(file))
    ]


def _files(root: Path) -> Iterator[Path]:
    for place in _PLACES:
        yield from sorted(root.glob(place))
    yield from _tuned_files(root)


def _tuned_files(root: Path) -> Iterator[Path]:
    waiting, seen = " ".join(_lines(root / _TUNED)).split(), set[str]()
    while waiting:
        name = waiting.pop(0)
        if name in seen or "/" in name:
            continue
        seen.add(name)
        for place in _TUNED_PROFILES:
            file = root / place / name / "tuned.conf"
            for include in _INCLUDE.finditer("\n".join(_lines(file))):
                waiting += re.split(r"[\s,]+", include["names"].strip())
            yield file


def _lines(file: Path) -> list[str]:
    """Return the lines of a file but for comments; none where it cannot be read or is no settings file at all."""
    try:
        if not file.is_file() or file.stat().st_size > _LONGEST:
            return []
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if not line.lstrip().startswith(("#", ";"))]
