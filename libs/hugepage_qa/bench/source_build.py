"""Workloads ``source-build`` and ``guest-build``: the time that ``make`` takes to build a C program from its source.

The source is made up, always the same text, without anything that a distribution would have to bring. The study: GDB,
``make -j12``; 147.08 s on THP and 145.43 s on pages of 1 GiB, both in guests. In a guest it is the compiler of this
machine, which is packed with the headers that it reads.
"""

import os
import shutil
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.benchmark_program import files_digest, find_program, page_tables_of, run_program
from hugepage_qa.bench.measured_guest import GuestHost, GuestProfile, emulator, program_archive
from hugepage_qa.bench.workload import Fact, Figures, Metric, Prepared, Program, Unavailable, Workload
from hugepage_qa.kernel.pools import read_pools
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.sizes import KIB, MIB, format_size, parse_size

_FUNCTION = """
static double f{number}(struct vector *v, long n)
{{
	double sum = {number};
	for (long i = 0; i < n; i++) {{
		struct vector w = {{ v[i].z * {number}, v[i].x + sum, v[i].y - i }};
		switch ((i + {number}) % 5) {{
		case 0: sum += w.x * w.y; break;
		case 1: sum -= w.z / (w.x + 1); break;
		case 2: v[i] = w; break;
		case 3: sum = sum > w.z ? sum : w.y; break;
		default: v[i].x = sum;
		}}
	}}
	return sum;
}}
"""

#: with these headers include others
FLAGS = ("-O2", "-g")

_MAKEFILE = f"""\
objects := $(patsubst %.c,%.o,$(wildcard part*.c)) main.o

program: $(objects)
	$(CC) -o $@ $^

%.o: %.c vector.h
	$(CC) {" ".join(FLAGS)} -c -o $@ $<
"""


def write_tree(directory: Path, files: int, functions: int) -> None:
    """Write a program of so many ``files`` with so many ``functions`` each, and a Makefile, to a new ``directory``."""
    directory.mkdir()
    (directory / "Makefile").write_text(_MAKEFILE, encoding="utf-8")
    declarations = "".join(f"double part{number}(struct vector *v, long n);\n" for number in range(files))
    header = f"#include <stdio.h>\n#include <stdlib.h>\nstruct vector {{ double x, y, z; }};\n{declarations}"
    (directory / "vector.h").write_text(header, encoding="utf-8")
    for number in range(files):
        (directory / f"part{number}.c").write_text(_part(number, functions), encoding="utf-8")
    calls = "".join(f"\tsum += part{number}(v, 9);\n" for number in range(files))
    main = f"int main(void)\n{{\n\tstatic struct vector v[9];\n\tdouble sum = 0;\n{calls}\treturn sum == 1;\n}}\n"
    (directory / "main.c").write_text(f'#include "vector.h"\n{main}', encoding="utf-8")


def _part(number: int, functions: int) -> str:
    bodies = "".join(_FUNCTION.format(number=one) for one in range(functions))
    calls = "".join(f"\tsum += f{one}(v, n);\n" for one in range(functions))
    return (
        f'#include "vector.h"\n{bodies}\ndouble part{number}(struct vector *v, long n)\n'
        f"{{\n\tdouble sum = 0;\n{calls}\treturn sum;\n}}\n"
    )


#: each process has a page of its own: on larger ones, clearing pages is what is measured
_LARGEST = 16 * MIB

#: the source of GDB in Debian's package gdb-source
_SOURCES = Path("/usr/src")
_GDB = "gdb.tar.*"
_OPTIONS = ("--disable-binutils", "--disable-gas", "--disable-gprof", "--disable-ld", "--disable-sim")

_DEADLINE_SECONDS = 3600.0
_LOOK_SECONDS = 10.0
_PAUSE_SECONDS = 0.02


class SourceBuild(Workload):
    """Build from scratch; static pages serve what compilers take from malloc, which needs glibc 2.35."""

    name = "source-build"
    metrics = (Metric("source-build", "s", "lower"),)
    programs = (Program("cc", "build-essential", "gcc"), Program("make", "make", "make"))
    profiles: Mapping[str, Mapping[str, Fact]] = {
        "quick": {"source": "made up", "files": 12, "functions": 40, "jobs": os.cpu_count() or 1, "pool": 512 * MIB},
        "reference": {"source": "gdb", "jobs": 12, "pool": 4096 * MIB},
    }

    def backings(self, there: Sequence[Backing]) -> tuple[Backing, ...]:
        """All but large static pages."""
        return tuple(one for one in there if one.kind is not Kind.STATIC or one.page_size <= _LARGEST)

    @contextmanager
    def prepare(self, profile: str, scratch: Path, disk: Path) -> Iterator[Prepared]:  # noqa: ARG002 - needs the disk
        """Write or unpack the source, and configure it; each block builds a copy."""
        make, compiler = find_program("make", "make"), find_program("cc", "build-essential")
        parameters = self.profiles[profile]
        source, build = disk / "source", disk / "build"
        try:
            _write_source(source, parameters)

            def block(backing: Backing) -> Figures:
                run_program(["cp", "-a", "--reflink=auto", source, build], deadline=_DEADLINE_SECONDS)
                try:
                    return {self.name: [_build([make, f"-j{parameters['jobs']}"], build, backing)]}
                finally:
                    shutil.rmtree(build)

            identity = {"compiler": files_digest(compiler), "make": files_digest(make)}
            yield Prepared(block, int(parameters["pool"] or 0), identity, {})
        finally:
            shutil.rmtree(source, ignore_errors=True)


def environment_on(backing: Backing) -> dict[str, str]:
    """Return the environment in which malloc takes its memory from the static pages of ``backing``."""
    return {"GLIBC_TUNABLES": f"glibc.malloc.hugetlb={backing.page_size}"} if backing.kind is Kind.STATIC else {}


def _write_source(directory: Path, parameters: Mapping[str, Fact]) -> None:
    """Have a directory in which ``make`` builds the program. Raises Unavailable without the source."""
    if parameters["source"] != "gdb":
        write_tree(directory, int(parameters["files"] or 0), int(parameters["functions"] or 0))
        return
    archive = next(iter(sorted(_SOURCES.glob(_GDB))), None)
    if archive is None:
        raise Unavailable(f"{_SOURCES / _GDB} is not there (package gdb-source)")
    directory.mkdir()
    with tarfile.open(archive) as members:
        members.extractall(directory, filter="data")
    (root,) = directory.iterdir()
    for entry in root.iterdir():
        entry.rename(directory / entry.name)
    root.rmdir()
    run_program([directory / "configure", *_OPTIONS], deadline=_DEADLINE_SECONDS, directory=directory)


def _build(command: Sequence[str | Path], directory: Path, backing: Backing) -> float:
    """Return the seconds that it took. Raises Unavailable when static pages are not used."""
    used: list[int] = []

    def look(_pid: int) -> None:
        used.append(_pages_in_use(backing.page_size))

    begin = time.monotonic()
    run_program(
        command,
        deadline=_DEADLINE_SECONDS,
        environment=environment_on(backing),
        directory=directory,
        while_running=look if backing.is_all_static else None,
    )
    seconds = time.monotonic() - begin
    if used and not used[0]:
        raise Unavailable(
            f"compilers have taken none of the {format_size(backing.page_size)} pages (glibc before 2.35?)"
        )
    return seconds


def _pages_in_use(size: int) -> int:
    """Look until pages of ``size`` bytes are in use, and return how many; 0 after a while."""
    tree, deadline = DirectoryTree(Path("/")), time.monotonic() + _LOOK_SECONDS
    while time.monotonic() < deadline:
        pool = next(one for one in read_pools(tree) if one.size == size)
        if (in_use := pool.count("nr_hugepages") - pool.count("free_hugepages")) > 0:
            return in_use
        time.sleep(_PAUSE_SECONDS)
    return 0


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

            identity = {"compiler": files_digest(compiler), "make": files_digest(make), **host.facts}
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
