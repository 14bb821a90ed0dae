"""The environment variables that say what a test runs: this is where they are documented.

Environment and not options, because tmt, Avocado and make all pass an environment through unchanged.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import randbelow

from hugepage_qa.cache import cache_directory
from hugepage_qa.cases.area_files import LIVE
from hugepage_qa.cases.boot.case_groups import choose_groups
from hugepage_qa.errors import InputError
from hugepage_qa.qemu import installed_emulator

ARCH = "HUGEPAGE_QA_ARCH"
KERNEL = "HUGEPAGE_QA_KERNEL"
APPEND = "HUGEPAGE_QA_APPEND"
CACHE = "HUGEPAGE_QA_CACHE"
GROUPS = "HUGEPAGE_QA_GROUPS"
RANDOM = "HUGEPAGE_QA_RANDOM"
SEED = "HUGEPAGE_QA_SEED"
OPERATIONS = "HUGEPAGE_QA_OPERATIONS"
MINUTES = "HUGEPAGE_QA_MINUTES"
CYCLES = "HUGEPAGE_QA_CYCLES"
VT = "HUGEPAGE_QA_VT"
QEMU = installed_emulator.VARIABLE
AREAS = "HUGEPAGE_QA_AREAS"

MEANING = {
    ARCH: "architecture of the throwaway machines (default x86_64)",
    KERNEL: "kernel to boot, an image or a package (default: the kernel of the distribution)",
    APPEND: "words added to every kernel command line",
    CACHE: "where kernels and images are kept (default ~/.cache/hugepage-qa)",
    GROUPS: "groups of named command lines, separated by spaces (default: all)",
    RANDOM: "how many random command lines to try (default 50)",
    SEED: "seed of the random command lines and of the moments when guests are killed (default 1),"
    " and of the random operations and races (default: drawn)",
    AREAS: "areas of live cases for throwaway machines, such as pool or pool/demote (default: all)",
    OPERATIONS: "how many random operations on the pool of each page size to try (default 400)",
    MINUTES: "how many minutes of random races to run on throwaway machines (default 1)",
    CYCLES: "how often a guest is started and ended again in one case (default 10)",
    QEMU: "emulator of this machine's own architecture (default qemu-system-ARCH, else qemu-kvm as RHEL has it)",
    VT: "which variants avocado-vt runs in plan vt (default hugepages, which is all; hugepages..page_2M is some)",
}

_SEEDS = 1_000_000


@dataclass(frozen=True)
class BootSettings:
    """What the tests of boot parameters run, and with which kernel."""

    architecture: str
    kernel: Path | None
    append: str
    cache: Path
    groups: tuple[str, ...]
    random: int
    seed: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "BootSettings":
        """Return the settings in ``environment``; an empty variable is the same as none.

        Raises InputError for a number that is none, a group that is not there, a kernel that is not a readable file,
        and an unsafe cache.
        """
        kernel = environment.get(KERNEL)
        return cls(
            architecture=environment.get(ARCH) or "x86_64",
            kernel=readable_file(kernel, KERNEL) if kernel else None,
            append=environment.get(APPEND) or "",
            cache=cache_directory(),
            groups=_groups(environment),
            random=_natural(environment, RANDOM, 50),
            seed=random_seed(environment),
        )


@dataclass(frozen=True)
class PoolSettings:
    """What the test of random operations on the pools runs."""

    operations: int
    seed: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "PoolSettings":
        """Return the settings in ``environment``. Raises InputError for a number that is none."""
        return cls(
            operations=_natural(environment, OPERATIONS, 400),
            seed=_natural(environment, SEED, draw_seed()),
        )


def draw_seed() -> int:
    """Return a random seed, which whoever uses it prints."""
    return randbelow(_SEEDS)


def wanted_areas() -> tuple[str, ...]:
    """Return the areas of live cases that throwaway machines are to run; who reads them says which there are."""
    return tuple(os.environ.get(AREAS, "").split()) or LIVE


def guest_cycles(environment: Mapping[str, str]) -> int:
    """Return how often a guest is started and ended again in one case. Raises InputError for what is no number."""
    return _natural(environment, CYCLES, 10)


def soak_minutes(environment: Mapping[str, str] = os.environ) -> int:
    """Return for how many minutes random races are run. Raises InputError for what is no number."""
    return _natural(environment, MINUTES, 1)


def random_seed(environment: Mapping[str, str]) -> int:
    """Return the seed of what is random. Raises InputError for what is no number."""
    return _natural(environment, SEED, 1)


def readable_file(path: str, name: str) -> Path:
    """Return the absolute path of the file ``path``, the value of the setting ``name``. Raises InputError."""
    file = Path(path).absolute()
    if not file.is_file():
        raise InputError(f"{name}={path}: no such file; expected the image or package of a kernel, such as bzImage")
    if not os.access(file, os.R_OK):
        raise InputError(f"{name}={path}: not readable")
    return file


def describe_settings(indent: int = 0) -> str:
    """Return one line for each variable with its meaning."""
    return ("\n" + " " * indent).join(f"{name:19} {meaning}" for name, meaning in MEANING.items())


def _groups(environment: Mapping[str, str]) -> tuple[str, ...]:
    text = environment.get(GROUPS, "")
    try:
        return choose_groups(text.split())
    except InputError as error:
        raise InputError(f"{GROUPS}={text}: {error}") from error


def _natural(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"{name}={text}: expected a whole number, for example {default}")
    return int(text)
