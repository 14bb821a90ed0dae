"""Workload ``guest-build``: the time in which ``make`` compiles a program in a guest on pages of each kind.

The study: GDB, ``make -j12``; 147.08 s on THP and 145.43 s on pages of 1 GiB. Here it is the made-up source of
``source-build``, with the compiler of this machine, which is packed with the headers that it reads.
"""

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from hugepage_qa.bench.backing import Backing
from hugepage_qa.bench.benchmark_program import find_program, page_tables_of, run_program, sha256
from hugepage_qa.bench.measured_guest import GuestHost, GuestProfile, emulator, program_archive
from hugepage_qa.bench.source_build import FLAGS, write_tree
from hugepage_qa.bench.workload import Fact, Figures, Metric, Prepared, Program, Unavailable, Workload
from hugepage_qa.sizes import KIB, parse_size

_BUILD_SECONDS = 3600.0
_SECONDS = 120.0
#: what the compiler starts
_PARTS = ("cc1", "as")


class GuestBuild(Workload):
    """Compile all files of a program."""

    name = "guest-build"
    metrics = (Metric("guest-build", "s", "lower"), Metric("guest-build-host-page-tables", "kB", "lower"))
    programs = (Program("cc", "build-essential", "gcc"), Program("make", "make", "make"), *emulator())
    profiles: Mapping[str, Mapping[str, Fact]] = {
        "quick": {"guest": "1G", "cpus": 1, "files": 2, "functions": 6, "jobs": 1},
        "reference": {"guest": "12G", "cpus": 14, "files": 240, "functions": 200, "jobs": 12},
    }

    @contextmanager
    def prepare(self, profile: str, scratch: Path, disk: Path) -> Iterator[Prepared]:  # noqa: ARG002 - needs the disk
        """Pack compiler and source for the guest."""
        make, compiler = find_program("make", "make"), find_program("cc", "build-essential")
        parameters = self.profiles[profile]
        files = int(parameters["files"] or 0)
        source = disk / "guest-source"
        try:
            write_tree(source, files, int(parameters["functions"] or 0))
            programs = [make, compiler, *parts_of(compiler), *headers_of(compiler, source)]
            archive = program_archive(programs, [source])
        finally:
            shutil.rmtree(source, ignore_errors=True)
        objects = " ".join(["main.o", *(f"part{number}.o" for number in range(files))])
        # without a pipe the compiler would want a directory for what it hands to the assembler
        command = f"PATH=/usr/bin {make} -s -j{parameters['jobs']} -C {source} CC='{compiler} -pipe' {objects}"
        profile_of_guest = GuestProfile(parse_size(str(parameters["guest"])), int(parameters["cpus"] or 1))
        with closing(GuestHost(disk / self.name, archive)) as host:

            def block(backing: Backing) -> Figures:
                with host.running(backing, profile_of_guest) as guest:
                    began = time.monotonic()
                    guest.run(command, _BUILD_SECONDS)
                    took = time.monotonic() - began
                    return {self.name: [took], f"{self.name}-host-page-tables": [page_tables_of(guest.pid) / KIB]}

            identity = {"compiler": sha256(compiler), "make": sha256(make), **host.facts}
            yield Prepared(block, profile_of_guest.memory, identity, {"qemu": host.version})


def headers_of(compiler: Path, source: Path) -> list[Path]:
    """Return the headers that the files in ``source`` include, their own left out. Raises InputError."""
    output = run_program([compiler, *FLAGS, "-M", *sorted(source.glob("*.c"))], deadline=_SECONDS)
    paths = {Path(word) for word in output.split() if word.endswith(".h")}
    return sorted(path for path in paths if not path.is_relative_to(source))


def parts_of(compiler: Path) -> Iterator[Path]:
    """Yield the programs that ``compiler`` starts, where it looks for them. Raises Unavailable."""
    for name in _PARTS:
        found = shutil.which(run_program([compiler, f"-print-prog-name={name}"], deadline=_SECONDS).strip())
        if found is None:
            raise Unavailable(f"{name} is not installed (package build-essential)")
        yield Path(found)
