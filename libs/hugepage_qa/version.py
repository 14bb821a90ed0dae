"""Kernel versions, as far as rules depend on them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hugepage_qa.errors import InputError

#: what the banner of a kernel of Debian ends with; before it stands the version of a compiler of Debian, too
_OF_DEBIAN = re.compile(r"#\d* .*\bDebian (?P<version>\d+\.\d+\.\d+)-")
_RELEASE = re.compile(r"(?P<major>\d{1,4})\.(?P<minor>\d{1,6})(?:\.(?P<patch>\d{1,9}))?")


@dataclass(frozen=True, order=True)
class KernelVersion:
    """The upstream version of a kernel, compared as (major, minor, patch)."""

    major: int
    minor: int
    patch: int = 0

    @classmethod
    def parse(cls, release: str, banner: str = "") -> "KernelVersion":
        """Return the version at the start of ``release`` (what ``uname -r`` prints).

        Before trixie Debian names all kernels of a branch like its first one, and by how often modules had to be built
        anew: 6.1.0-50-amd64 is 6.1.176. Which one it is stands in the ``banner``, what /proc/version shows. Raises
        InputError when ``release`` does not start with a version.
        """
        match = _RELEASE.match(release)
        if match is None:
            raise InputError(f"kernel release {release!r}: expected something like 6.12.5-1-amd64")
        version = cls(int(match["major"]), int(match["minor"]), int(match["patch"] or 0))
        told = _OF_DEBIAN.search(banner)
        return version if version.patch or told is None else cls.parse(told["version"])

    def follows_any(self, versions: "Iterable[KernelVersion]") -> bool:
        """Tell whether this is one of ``versions`` or a later one of the same branch (major and minor number)."""
        branch = (self.major, self.minor)
        return any(branch == (one.major, one.minor) and self >= one for one in versions)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"
