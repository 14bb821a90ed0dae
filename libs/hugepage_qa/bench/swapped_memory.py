"""Workloads of memory that is swapped: ``swap-at-once``, and ``swap-from-disk``, where the swap cache has none of it.

Both swap to a file of our own, which is removed.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.memory_at_once import AT_ONCE
from hugepage_qa.bench.memory_program import MemoryProgram, Repeat, of_a_gib
from hugepage_qa.bench.workload import Fact, Figures, Metric, Unavailable
from hugepage_qa.kernel.proc_tables import read_mounts
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine.cgroups import remove_cgroup
from hugepage_qa.machine.swap_file import add_swap, remove_swap
from hugepage_qa.process.marks import PREFIX
from hugepage_qa.sizes import GIB, MIB, format_size

_ROOT = DirectoryTree(Path("/"))


@contextmanager
def swap_file(size: int) -> Iterator[None]:
    """Have swap of our own. Raises Unavailable where the kernel takes none."""
    try:
        path = add_swap(size)
    except OSError as error:
        raise Unavailable(f"no swap file of {format_size(size)}: {error.strerror}") from error
    try:
        yield
    finally:
        remove_swap(path)


@contextmanager
def limited_group(limit: int) -> Iterator[Path]:
    """Have a control group with ``limit`` bytes of memory, and swap as it likes. Raises Unavailable without such."""
    root, name = _memory_controller()
    group = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
    try:
        try:
            (group / name).write_text(str(limit), encoding="ascii")
        except OSError as error:
            raise Unavailable(f"no control group with {format_size(limit)}: {error.strerror}") from error
        yield group
    finally:
        remove_cgroup(group)


def _memory_controller() -> tuple[str, str]:
    """Return where groups can be made whose memory is limited, and the name of the limit. Raises Unavailable."""
    for mount in read_mounts(_ROOT):
        if mount.type == "cgroup" and "memory" in mount.options.split(","):
            return mount.point, "memory.limit_in_bytes"
        if mount.type == "cgroup2" and "memory" in (_ROOT.read(f"{mount.point}/cgroup.subtree_control") or "").split():
            return mount.point, "memory.max"
    raise Unavailable("no control groups with the controller memory are mounted")


def _metrics(name: str) -> tuple[Metric, ...]:
    return (
        Metric(f"{name}-out", "ms/GiB", "lower"),
        Metric(f"{name}-in", "ms/GiB", "lower"),
        Metric(f"{name}-huge", "kB", "higher", "count"),
    )


class SwapAtOnce(MemoryProgram):
    """Processes whose memory is swapped out at the same time, and mapped again when they touch it.

    What they touch at once the swap cache still has: that no disk is read is part of what it is.
    """

    name = "swap-at-once"
    source = AT_ONCE
    operation = "swap"
    words = ("out-ns", "in-ns", "swapped-kB", "huge-kB")
    metrics = _metrics(name)
    profiles: Mapping[str, Mapping[str, Fact]] = {
        "quick": {"bytes": 256 * MIB, "processes": 4, "samples": 4},
        "reference": {"bytes": 4 * GIB, "processes": 16, "samples": 15},
    }
    #: part of the memory that is swapped at least
    mostly = 0.5

    @contextmanager
    def surroundings(self, parameters: Mapping[str, int], file: Path) -> Iterator[Path]:
        """A swap file with room for two of what is swapped: pages that were read keep their place in it."""
        with swap_file(2 * parameters["bytes"]):
            yield file

    def backings(self, there: Sequence[Backing]) -> tuple[Backing, ...]:
        """Static pages are never swapped."""
        return tuple(one for one in super().backings(there) if one.kind is not Kind.STATIC)

    def figures(self, repeats: Sequence[Repeat], size: int) -> Figures:
        """Each GiB that was to be swapped. Raises Unavailable where the kernel swapped little of it."""
        least = min(one["swapped-kB"] for one in repeats) * 1024
        if least < self.mostly * size:
            raise Unavailable(f"the kernel swapped {format_size(least)} of {format_size(size)}")
        return {
            f"{self.name}-out": of_a_gib(repeats, "out-ns", size),
            f"{self.name}-in": of_a_gib(repeats, "in-ns", size),
            f"{self.name}-huge": [float(one["huge-kB"]) for one in repeats],
        }


class SwapFromDisk(SwapAtOnce):
    """Processes in a control group with half of the memory that they fill and read again.

    By the time something is read what follows it has taken its place, so that all comes from the disk.
    """

    name = "swap-from-disk"
    operation = "limited"
    metrics = _metrics(name)
    profiles: Mapping[str, Mapping[str, Fact]] = {
        "quick": {"bytes": 128 * MIB, "processes": 2, "samples": 3},
        "reference": {"bytes": 4 * GIB, "processes": 16, "samples": 15},
    }
    #: half of it does not fit, and some more is swapped ahead of need
    mostly = 0.4

    @contextmanager
    def surroundings(self, parameters: Mapping[str, int], file: Path) -> Iterator[Path]:  # noqa: ARG002 - a group has its own
        """Swap, and a control group whose processes are named by a file."""
        with swap_file(2 * parameters["bytes"]), limited_group(parameters["bytes"] // 2) as group:
            yield group / "cgroup.procs"
