"""make seeded-kernel: build an x86_64 kernel with all faults in it, from a source package of Debian.

    python -m ci.seeded_kernel.build_kernel                         # 6.1
    python -m ci.seeded_kernel.build_kernel --series 6.12
    python -m ci.seeded_kernel.build_kernel --check --source linux  # can all edits be made in this source?

What it has downloaded, unpacked and built is kept below build/seeded-kernel, and only what changed is made again.
"""

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ci.seeded_kernel.faults import LONGER_PATHS, SUGGESTED_FIXES, choose, read_faults
from ci.seeded_kernel.seeded_image import SeededImage
from ci.seeded_kernel.seeded_source import SeededSource

from hugepage_qa.cache import held_alone
from hugepage_qa.cases.result import ExitCode
from hugepage_qa.commands.argument_parser import Parser
from hugepage_qa.errors import InputError
from hugepage_qa.process.supervised import exit_on_sigterm
from hugepage_qa.qemu.apt import AptRoot

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "seeded-kernel"
#: series of kernels -> the suite of Debian that has its source, where this machine's own suites have not
SUITES = {"6.1": "bookworm", "6.12": "trixie", "7.3": "trixie-backports"}
_CONFIGURATIONS = (ROOT / "ci" / "lab-kernel.config", Path(__file__).with_name("kernel.config"))
_NAME = "CONFIG_LOCALVERSION="
_TOLD_EVERY = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, or check, and return the exit code."""
    parser = Parser("seeded-kernel", description="Build a kernel with small faults of our own in its huge page code.")
    parser.add_argument("--series", default="6.1", choices=SUITES, help="series of the kernel  [6.1]")
    parser.add_argument("--source", type=Path, help="unpacked source, instead of that of the distribution")
    parser.add_argument("--fault", action="append", default=[], help="this fault alone; repeatable  [all]")
    parser.add_argument("--check", action="store_true", help="tell which edits cannot be made, and build nothing")
    options = parser.parse_args(arguments)
    try:
        known = (*read_faults(), *read_faults(LONGER_PATHS), *read_faults(SUGGESTED_FIXES))
        faults = choose(known, options.fault)
        place = PLACE / options.series
        # two of them would leave objects of both
        with held_alone(place, "build or measurement"):
            source = SeededSource(options.source or unpacked(options.series, place), place / "originals")
            if options.source:
                source = SeededSource(options.source, options.source.with_name(f"{options.source.name}.originals"))
            if options.check:
                return _check(source, len(faults), source.edit(faults)[1])
            source.seed(faults)
            build(source, place)
            image = SeededImage(place / "bzImage")
            image.note(faults)
            here = image.choose(faults)
    except InputError as error:
        print(f"seeded-kernel: {error}", file=sys.stderr)
        return ExitCode.BROKEN
    print(f"built {image.path} with {len(here)} faults")
    print(f"try it: hugepage-qa check-kernel {image.path} --append seeded_fault={here[0].name}")
    return ExitCode.GOOD


def _check(source: SeededSource, count: int, failures: Sequence[str]) -> int:
    for failure in failures:
        print(failure)
    print(f"{source.tree}: {source.version}, {count} faults, {len(failures)} edits cannot be made")
    return 1 if failures else 0


def unpacked(series: str, place: Path) -> Path:
    """Return the unpacked source of ``series`` in ``place``, which is downloaded unless it is there.

    Raises InputError where it cannot be had.
    """
    source = place / "source"
    if not source.is_dir():
        if platform.machine() != "x86_64" or shutil.which("apt-get") is None:
            raise InputError("needs an x86_64 machine with apt-get: it builds from a source package of Debian")
        package = _download(f"linux-source-{series}", SUITES[series])
        print(f"unpacking {package.name}", flush=True)
        new = place / "new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        # as ci/lab-kernel.sh does; the pipe keeps 1.5 GiB off the disk
        inner = f"./usr/src/linux-source-{series}.tar.xz"
        script = f'set -o pipefail; dpkg-deb --fsys-tarfile "$1" | tar xO {inner} | tar xJ -C "$2" --strip-components=1'
        command = ["/bin/bash", "-c", script, "unpack", str(package), str(new)]
        if subprocess.run(command, check=False).returncode != 0:
            raise InputError(f"{package}: cannot be unpacked; is there room for 2 GiB below {place}?")
        new.rename(source)
    return source


def _download(package: str, suite: str) -> Path:
    """Return the file of ``package`` from this machine's own suites, or else from ``suite``."""
    for chosen in (None, suite):
        root = PLACE / "packages" / (chosen or "own")
        root.mkdir(parents=True, exist_ok=True)
        try:
            return AptRoot(root, "amd64", chosen, lambda line: print(line, flush=True)).fetch(package).files[0]
        except InputError:
            if chosen:
                raise
    raise InputError(f"no package {package}")


def build(source: SeededSource, place: Path, more: Sequence[Path] = ()) -> None:
    """Configure ``source`` and build bzImage in ``place``. Raises InputError where make fails.

    Files of ``more`` are configuration beyond that of a seeded kernel.
    """
    tools = ["cc", "build-essential", "-", "make", "make", "-", "flex", "flex", "-", "bison", "bison", "-"]
    tools += ["bc", "bc", "-", "xz", "xz-utils", "-", "/usr/include/libelf.h", "libelf-dev", "-"]
    subprocess.run([str(ROOT / "ci" / "system-packages.sh"), *tools], check=False)
    wanted = _joined([file.read_text(encoding="utf-8") for file in (*_CONFIGURATIONS, *more)])
    chosen = place / "all.config"
    built = place / "built"
    if not (built / ".config").exists() or not chosen.exists() or chosen.read_text() != wanted:
        chosen.write_text(wanted)
        _make(source, built, f"KCONFIG_ALLCONFIG={chosen}", "allnoconfig")
    found = (built / ".config").read_text().splitlines()
    lost = [line for line in wanted.splitlines() if line.startswith("CONFIG_") and line not in found]
    # what only other series know
    print(*(f"{source.version} has no {line}" for line in lost), sep="\n" if lost else "")
    print("building, which takes some minutes", flush=True)
    # all that cannot be compiled is told at once
    _make(source, built, "-k", "-j", os.environ.get("JOBS", "2"), "bzImage")
    shutil.copyfile(built / ".config", place / "config")
    shutil.copyfile(built / "arch" / "x86" / "boot" / "bzImage", place / "bzImage")


def _joined(configurations: Sequence[str]) -> str:
    """Return ``configurations`` as one, with the name of the last one that names its kernel."""
    lines = [line for text in configurations for line in text.splitlines(keepends=True)]
    name = [line for line in lines if line.startswith(_NAME)][-1]
    return "".join(line for line in lines if not line.startswith(_NAME)) + name


def _make(source: SeededSource, built: Path, *words: str) -> None:
    """Run make, telling every minute how many objects it has made. Raises InputError where it fails."""
    # the make that called us exports its own ARCH, which is empty, and hands its options down
    environment = {name: value for name, value in os.environ.items() if name not in ("ARCH", "MAKELEVEL")}
    environment = {name: value for name, value in environment.items() if not name.endswith("FLAGS")}
    command = ["nice", "-n", "19", "make", "-s", "-C", str(source.tree), f"O={built}", *words]
    began, at = time.monotonic(), time.time()
    with subprocess.Popen(command, env=environment) as child:
        try:
            while True:
                try:
                    code = child.wait(_TOLD_EVERY)
                    break
                except subprocess.TimeoutExpired:
                    print(f"{time.monotonic() - began:.0f} s: {_objects(built, at)} objects", flush=True)
        finally:
            # when we are stopped: make ends what it has started, and removes what is half made
            child.terminate()
    if code != 0:
        raise InputError(f"{' '.join(command)}: make failed, see above")


def _objects(built: Path, since: float) -> int:
    """Count the objects that were made ``since`` then; make removes files and directories meanwhile."""
    made = 0
    for place, _below, names in os.walk(built):
        for name in names:
            if name.endswith(".o"):
                with suppress(FileNotFoundError):
                    made += Path(place, name).stat().st_mtime >= since
    return made


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
