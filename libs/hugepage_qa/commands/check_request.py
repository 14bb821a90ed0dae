"""What ``hugepage-qa check-kernel`` was asked for: its options, checked before anything is started."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.cases.area_files import LIVE, live_areas
from hugepage_qa.cases.boot.boot_matrix import Settings
from hugepage_qa.cases.boot.case_groups import choose_groups
from hugepage_qa.cases.selection import Selection
from hugepage_qa.cases.throwaway_run import LiveWanted
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.packages import cache_directory, open_kernel
from hugepage_qa.sizes import parse_size

#: areas that are no folders of live cases
_BOOT, _RANDOM = "boot", "random"
AREAS = (_BOOT, *LIVE, _RANDOM)


@dataclass(frozen=True)
class CheckRequest:
    """The options of the command, by their names there, but for those of its report. Raises InputError."""

    kernel: Path | None
    architectures: tuple[str, ...]
    package: str | None
    suite: str | None
    append: str
    nodes: tuple[str, ...]
    cpus: int
    areas: tuple[str, ...]
    cases: tuple[str, ...]
    sizes: tuple[str, ...]
    random_boots: int
    operations: int
    minutes: int
    seed: int
    within: float | None
    machines: int | None

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.kernel is not None and (self.package or self.suite):
            raise InputError("KERNEL and --package or --suite: expected one kernel, leave out the one or the other")
        if self.within and (self.random_boots or self.minutes):
            raise InputError("--within: --random and --minutes take what they take; leave them out")
        if _RANDOM in self.areas and not self.is_random:
            raise InputError("--area random: expected how much of it, add --random, --operations or --minutes")

    @property
    def is_random(self) -> bool:
        """Whether anything is drawn with the seed."""
        return bool(self.random_boots or self.operations or self.minutes)

    @property
    def seconds(self) -> float | None:
        """Within which all is to be done, or None."""
        return self.within and self.within * 60

    def groups(self) -> Sequence[str]:
        """Return the groups of named boot parameters: all, or none where other areas or live cases were named."""
        wants_boots = _BOOT in self.areas if self.areas else not (self.cases or self.sizes)
        return choose_groups(()) if wants_boots else ()

    def live(self) -> LiveWanted:
        """Return the live cases and random programs. Raises InputError for an area or a size that is none."""
        selection = Selection(self.cases, tuple(map(parse_size, self.sizes)))
        nodes = tuple(map(parse_size, self.nodes))
        folders = tuple(area for area in self.areas if area not in (_BOOT, _RANDOM)) if self.areas else LIVE
        areas = tuple(live_areas(folders))
        return LiveWanted(areas, selection, self.operations, self.minutes, self.seed, nodes, self.cpus)

    def settings(self, say: Callable[[str], None]) -> Settings:
        """Return what boots of parameters run with; ``say`` takes lines about what takes long."""
        return Settings(self.kernel, self.package, self.suite, self.append, machines=self.machines, say=say)

    def each_architecture(self) -> tuple[str, ...]:
        """Return each architecture once, by default that of the kernel. Raises InputError where it is none."""
        default = open_kernel(self.kernel, cache_directory()).architecture if self.kernel else "x86_64"
        return tuple(dict.fromkeys(self.architectures or (default,)))
