"""Memory where no huge page is free without compaction: how long faults take, and how long a guest's start.

The workloads are ``fragmented-faults`` and ``guest-start``.
"""

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.benchmark_program import files_digest, find_program
from hugepage_qa.bench.measured_guest import GuestHost, GuestProfile, emulator, program_archive
from hugepage_qa.bench.memory_program import BLOCK, MEMORY, NS_PER_US, MemoryProgram, Repeat, block_size, slowest
from hugepage_qa.bench.workload import Fact, Figures, Metric, Prepared, Program, Workload
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.process.c_compiler import build_program
from hugepage_qa.process.child import DISCARDED, WITH_OUTPUT, Child
from hugepage_qa.sizes import KIB, parse_size

SOURCE = Path(__file__).with_name("fragmented_memory.c")

_ROOT = DirectoryTree(Path("/"))
#: one part of so many of what is available is left to others
_LEFT = 16


def fragmented_and_used(parts: int, left: int = 0) -> tuple[int, int]:
    """Return how many bytes to fragment, one of ``parts`` of the available memory, and how many to use.

    ``left`` bytes are for whoever is measured, beside what is fragmented.
    """
    available = read_meminfo(_ROOT).get("MemAvailable", 0)
    part = available // parts
    sizes = (part, max(0, available - part - left - available // _LEFT))
    scattered, others = (size // BLOCK * BLOCK for size in sizes)
    return scattered, others


class FragmentedFaults(MemoryProgram):
    """How long faults take where no huge page is free without compaction, and how many get one."""

    name = "fragmented-faults"
    source = SOURCE
    operation = "fault"
    words = ("fault-ns", "huge-kB")
    warms_up = False
    metrics = (
        Metric("fragmented-faults", "us", "lower"),
        Metric("fragmented-faults-slowest", "us", "lower"),
        Metric("fragmented-faults-huge", "kB", "higher", "count"),
    )
    #: ``parts``: one of so many of the available memory is fragmented, the rest is in use
    profiles: Mapping[str, Mapping[str, Fact]] = {
        "quick": {"parts": 4, "samples": 256},
        "reference": {"parts": 4, "samples": 1024},
    }

    def backings(self, there: Sequence[Backing]) -> tuple[Backing, ...]:
        """Static pages come from a pool, however memory is."""
        return tuple(one for one in there if one.kind is not Kind.STATIC)

    def shares(self, parameters: Mapping[str, int]) -> tuple[int, int]:
        """Return the bytes that are fragmented, and those in use."""
        return fragmented_and_used(parameters["parts"])

    def figures(self, repeats: Sequence[Repeat], size: int) -> Figures:  # noqa: ARG002 - of a fault, however much is free
        """Each fault, and the one of a hundred that takes longest; huge pages of all of them."""
        times = [one["fault-ns"] / NS_PER_US for one in repeats]
        huge = sum(one["huge-kB"] for one in repeats)
        return {
            "fragmented-faults": times,
            "fragmented-faults-slowest": slowest(times),
            "fragmented-faults-huge": [float(huge)],
        }


_FRAGMENTING_SECONDS = 600.0
_END_SECONDS = 120.0
#: nothing has to be huge: how much is, is what is measured
_ANY_SHARE = 0.0


class GuestStart(Workload):
    """Start a guest, all of whose memory is touched before its first instruction, beside memory that is fragmented."""

    name = "guest-start"
    metrics = (
        Metric("guest-start-memory", "s", "lower"),
        Metric("guest-start-boot", "s", "lower"),
        Metric("guest-start-huge", "kB", "higher", "count"),
    )
    programs = (Program("cc", "build-essential", "gcc"), *emulator())
    #: ``parts``: one of so many of the available memory is fragmented, the rest but for the guest is in use
    profiles: Mapping[str, Mapping[str, Fact]] = {
        "quick": {"guest": "512M", "cpus": 1, "parts": 4},
        "reference": {"guest": "12G", "cpus": 14, "parts": 4},
    }

    def backings(self, there: Sequence[Backing]) -> tuple[Backing, ...]:
        """Static pages are those of the default size: a pool is filled before memory is fragmented."""
        return tuple(one for one in there if one.kind is not Kind.STATIC or one.is_default)

    @contextmanager
    def prepare(self, profile: str, scratch: Path, disk: Path) -> Iterator[Prepared]:
        """Build what fragments memory."""
        find_program("cc", "build-essential")
        parameters = self.profiles[profile]
        guest = GuestProfile(parse_size(str(parameters["guest"])), int(parameters["cpus"] or 1))
        program = build_program(SOURCE, scratch, [MEMORY])
        try:
            with closing(GuestHost(disk / self.name, program_archive([]))) as host:

                def block(backing: Backing) -> Figures:
                    sizes = fragmented_and_used(int(parameters["parts"] or 0), guest.memory)
                    with fragmented(program, sizes, disk / "fragmented"):
                        return _start(host, backing, guest)

                identity = {"source": files_digest(SOURCE, MEMORY), **host.facts}
                yield Prepared(block, guest.memory, identity, {"qemu": host.version})
        finally:
            program.unlink(missing_ok=True)


@contextmanager
def fragmented(program: Path, sizes: tuple[int, int], ready: Path) -> Iterator[None]:
    """Have memory fragmented: ``sizes`` are what is, and what is in use. Raises InputError when it fails."""
    size, used = sizes
    words = [str(word) for word in (program, "hold", size, "thp", block_size(), 0, used, ready)]
    with Child(words, output=DISCARDED, errors=WITH_OUTPUT) as child:
        try:
            if not child.wait_until(ready.exists, _FRAGMENTING_SECONDS):
                raise InputError(f"{program.name}: has not fragmented the memory in {_FRAGMENTING_SECONDS:.0f} s")
            yield
        finally:
            child.end(signal.SIGKILL, _END_SECONDS)
            ready.unlink(missing_ok=True)


def _start(host: GuestHost, backing: Backing, profile: GuestProfile) -> Figures:
    with host.running(backing, profile, share=_ANY_SHARE) as guest:
        return {
            "guest-start-memory": [guest.memory_seconds],
            "guest-start-boot": [guest.boot_seconds],
            "guest-start-huge": [guest.huge / KIB],
        }
