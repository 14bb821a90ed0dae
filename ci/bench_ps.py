"""What ``hugepage-qa ps`` costs, as a ratio to the perl one-liner that people use for it.

Starts a crowd of small processes, some of them with huge pages, runs both programs in turn and compares the CPU time of
the whole processes, user and system. Both must find the same mappings with the same page sizes: exit code 1 otherwise.
Needs root, to fill a pool; the machine is put back.
"""

import glob
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hugepage_qa.cases.result import ExitCode
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.pools import DIRECTORY, Pool, read_pools
from hugepage_qa.kernel.thp import DIRECTORY as THP_DIRECTORY
from hugepage_qa.kernel.tree import DirectoryTree, read_integer
from hugepage_qa.machine.protection import protected_machine
from hugepage_qa.sizes import KIB, format_size

PROCESSES = 2000
# so many have a hugetlb page of their own, so many share one, and so many have a transparent huge page
OF_EACH_KIND = 50
ROUNDS = 6

# from an article on huge pages and PostgreSQL (zenn.dev), but for the base page, which is 4 there
_BASE_PAGE = os.sysconf("SC_PAGE_SIZE") // KIB
PERL = ("perl", "-lane", f"/KernelPageSize/ and $F[1]!={_BASE_PAGE} and print qq/$ARGV\\t$_/")
PS = (str(Path(sys.executable).with_name("hugepage-qa")), "ps")

_PERL_LINE = re.compile(r"/proc/(?P<pid>[0-9]+)/smaps\tKernelPageSize: +(?P<size>[0-9]+) kB")

#: (process id, page size in bytes) -> number of mappings
Mappings = Counter[tuple[int, int]]


def main() -> int:
    """Compare both programs and print the ratio."""
    if shutil.which(PERL[0]) is None:
        raise InputError("perl is not installed: there is nothing to compare with")
    pool = _smallest_pool()
    with protected_machine("compare hugepage-qa ps with perl"), tempfile.TemporaryDirectory() as directory:
        _grow(pool, OF_EACH_KIND + 1)
        with _crowd(pool.size) as processes:
            files = glob.glob("/proc/[0-9]*/smaps")  # noqa: PTH207 - as the shell does
            perl = (*PERL, *files)
            _print_times(perl, len(files))
            output = Path(directory, "output")
            expected = _perl_mappings(_run(perl, output).read_text(encoding="ascii"), processes)
            found = _ps_mappings(_run((*PS, "--json"), output).read_text(encoding="ascii"), processes)
    same = found == expected and expected.total() == 2 * OF_EACH_KIND
    print(
        f"mappings with pages of {format_size(pool.size)} in {PROCESSES} of them: {expected.total()} by perl,"
        f" {found.total()} by hugepage-qa ps: {'the same' if same else 'NOT THE SAME'}"
    )
    return ExitCode.GOOD if same else ExitCode.BAD


def _print_times(perl: Sequence[str], processes: int) -> None:
    perl_times: list[float] = []
    ps_times: list[float] = []
    for _ in range(ROUNDS // 2):  # in ABBA order, so that drift cancels out
        perl_times.append(_cpu_seconds(perl))
        ps_times.append(_cpu_seconds(PS))
        ps_times.append(_cpu_seconds(PS))
        perl_times.append(_cpu_seconds(perl))
    ratios = [one / other for one, other in zip(sorted(ps_times), sorted(perl_times), strict=True)]
    ps_time, perl_time = statistics.median(ps_times), statistics.median(perl_times)
    print(
        f"CPU time of hugepage-qa ps over that of perl, {processes} processes: {ps_time / perl_time:.3f} by medians"
        f" ({ps_time:.3f} s and {perl_time:.3f} s, {ROUNDS} each; by rank {min(ratios):.3f} to {max(ratios):.3f};"
        " target: at most 0.5)"
    )


def _cpu_seconds(command: Sequence[str]) -> float:
    """Run ``command`` and return the CPU time that it took, its start included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _run(command, Path(os.devnull))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _run(command: Sequence[str], output: Path) -> Path:
    """Run ``command`` and return the file that it has written to."""
    with output.open("wb") as stream:
        # perl complains about each process that ends meanwhile
        subprocess.run(command, stdout=stream, stderr=subprocess.DEVNULL, check=True)
    return output


def _perl_mappings(text: str, processes: frozenset[int]) -> Mappings:
    """Return how often each page size is in each of ``processes``: others come and go between two runs."""
    matches = (match for match in map(_PERL_LINE.fullmatch, text.splitlines()) if match)
    return Counter((int(match["pid"]), int(match["size"]) * KIB) for match in matches if int(match["pid"]) in processes)


def _ps_mappings(text: str, processes: frozenset[int]) -> Mappings:
    return Counter(
        {
            (process["pid"], int(size)): use["mappings"]
            for process in json.loads(text)["processes"]
            for size, use in process["hugetlb"].items()
            if process["pid"] in processes
        }
    )


def _smallest_pool() -> Pool:
    pools = read_pools(DirectoryTree(Path("/")))
    if not pools:
        raise InputError(f"/{DIRECTORY}: expected a pool of huge pages; this kernel has none")
    return pools[0]


def _grow(pool: Pool, pages: int) -> None:
    path = Path("/", DIRECTORY, pool.name, "nr_hugepages")
    wanted = int(path.read_text(encoding="ascii")) + pages
    path.write_text(str(wanted), encoding="ascii")
    if int(path.read_text(encoding="ascii")) < wanted:
        raise InputError(f"{path}: expected memory for {pages} more pages; free some, or reboot")


@contextmanager
def _crowd(page_size: int) -> Iterator[frozenset[int]]:
    """Run crowd.py; yields the ids of its processes. All have ended afterwards."""
    thp_size = read_integer(DirectoryTree(Path("/")), f"{THP_DIRECTORY}/hpage_pmd_size") or page_size
    program = str(Path(__file__).with_name("crowd.py"))
    command = [sys.executable, "-I", program, *map(str, (PROCESSES, OF_EACH_KIND, page_size, thp_size))]
    # in a session of its own, so that Ctrl-C reaches us alone
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    with process:  # closes its standard input and waits for it
        line = process.stdout.readline() if process.stdout else b""
        if not line:
            raise InputError(f"{program}: expected the ids of its processes; it has said why there are none")
        yield frozenset(json.loads(line))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(ExitCode.BROKEN)
