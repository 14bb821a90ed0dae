"""The kernels of Debian: suites, architectures and flavours that differ in what they make of huge pages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.boards import BOARDS, find_board

#: from the oldest kernel to the newest
SUITES = ("bullseye", "bookworm", "bookworm-backports", "trixie", "trixie-backports", "forky", "sid")

#: further kernels of an architecture, with other base pages than its own: flavour -> the first suite that has it
_FLAVOURS = {"aarch64": {"16k": "bookworm-backports"}, "ppc64le": {"64k": "trixie"}}


@dataclass(frozen=True)
class DebianKernel:
    """The newest kernel of a suite for an architecture; ``flavour`` is empty for the one that boards boot."""

    suite: str
    architecture: str
    flavour: str = ""

    @property
    def name(self) -> str:
        """What it is chosen by: ``trixie/aarch64-16k``."""
        return f"{self.suite}/{'-'.join(filter(None, (self.architecture, self.flavour)))}"

    @property
    def package(self) -> str:
        """The metapackage whose Depends names the kernel."""
        return "-".join(filter(None, (find_board(self.architecture).debian_kernel, self.flavour)))


def all_kernels() -> Iterator[DebianKernel]:
    """Yield every kernel that there may be, the suites with the oldest ones first; a suite can lack some of them."""
    for place, suite in enumerate(SUITES):
        for architecture in BOARDS:
            yield DebianKernel(suite, architecture)
            for flavour, first in _FLAVOURS.get(architecture, {}).items():
                if place >= SUITES.index(first):
                    yield DebianKernel(suite, architecture, flavour)


def choose_kernels(patterns: Sequence[str]) -> list[DebianKernel]:
    """Return the kernels whose names one of ``patterns`` matches; without any, all. Raises InputError for a wrong one.

    A pattern is a name (``trixie/x86_64``), a pattern of names (``*/s390x``), or a suite, which stands for all of it.
    """
    kernels = list(all_kernels())
    for pattern in patterns:
        if not any(_matches(kernel, pattern) for kernel in kernels):
            known = [*(kernel.name for kernel in kernels), *SUITES]
            near = get_close_matches(pattern, known, n=1, cutoff=0)[0]
            raise InputError(f"{pattern}: expected a kernel, a pattern of kernels or a suite, such as {near}")
    chosen = [kernel for kernel in kernels if any(_matches(kernel, pattern) for pattern in patterns)]
    return chosen if patterns else kernels


def _matches(kernel: DebianKernel, pattern: str) -> bool:
    return pattern == kernel.suite or fnmatchcase(kernel.name, pattern)
