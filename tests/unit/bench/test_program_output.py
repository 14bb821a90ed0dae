"""What programs of workloads print: real outputs are read, and what is wrong or incomplete is refused."""

import mmap
from pathlib import Path

import pytest

from hugepage_qa.bench import benchmark_program
from hugepage_qa.bench.benchmark_program import expect_static, run_program
from hugepage_qa.bench.measure import parse_sentinel
from hugepage_qa.bench.memory_program import MEMORY
from hugepage_qa.bench.page_access import ACCESS_SOURCE, PageAccess, parse_page_access
from hugepage_qa.bench.pgbench import parse_pgbench
from hugepage_qa.bench.sysbench_memory import parse_sysbench
from hugepage_qa.bench.tlb_counters import COUNTERS
from hugepage_qa.errors import InputError
from hugepage_qa.process.c_compiler import build_program
from hugepage_qa.sizes import GIB, KIB, MIB

# sysbench 1.0.20 of Debian 12
SYSBENCH = """sysbench 1.0.20 (using system LuaJIT 2.1.0-beta3)

Running the test with following options:
Number of threads: 2
Initializing random number generator from current time


Running memory speed test with the following options:
  block size: 65536KiB
  total size: 4096MiB
  operation: write
  scope: global

Initializing worker threads...

Threads started!

Total operations: 64 (   73.04 per second)

4096.00 MiB transferred (4674.61 MiB/sec)


General statistics:
    total time:                          0.8739s
    total number of events:              64

Latency (ms):
         min:                                    9.40
         avg:                                   26.68
         max:                                  111.93
         95th percentile:                       41.10
         sum:                                 1707.40

Threads fairness:
    events (avg/stddev):           32.0000/0.00
    execution time (avg/stddev):   0.8537/0.01
"""

# pgbench 15.18 of Debian 12
PGBENCH = """pgbench (15.18 (Debian 15.18-0+deb12u1))
transaction type: <builtin: TPC-B (sort of)>
scaling factor: 1
query mode: simple
number of clients: 2
number of threads: 1
maximum number of tries: 1
duration: 1 s
number of transactions actually processed: 965
number of failed transactions: 0 (0.000%)
latency average = 2.344 ms
initial connection time = 10.667 ms
tps = 853.215162 (without initial connection time)
"""

# pgbench 13.7, as the study has it
OLD_PGBENCH = """starting vacuum...end.
transaction type: <builtin: TPC-B (sort of)>
scaling factor: 500
query mode: simple
number of clients: 30
number of threads: 4
duration: 10 s
number of transactions actually processed: 58052
latency average = 5.198 ms
tps = 5771.742572 (including connections establishing)
tps = 5773.500733 (excluding connections establishing)
"""

_PAGE_ACCESS_LINE = (
    "first-touch-ns {} access-ns {} unmap-ns {} faults {} page-table-kB 1028 huge-kB 0"
    " misses {} accesses 100 instructions {}\n"
)
PAGE_ACCESS = "".join(
    _PAGE_ACCESS_LINE.format(*numbers)
    for numbers in (
        (349291807, 792004289, 366507244, 131074, 5, 500),
        (589097812, 817111511, 361040043, 131072, 6, 2000),
        (448981737, 754877219, 406878089, 131072, 8, 2000),
    )
)


def test_sysbench() -> None:
    assert parse_sysbench(SYSBENCH, 4 * GIB) == pytest.approx(0.8739)


@pytest.mark.parametrize(
    "output",
    [
        "",
        SYSBENCH.replace("4096.00 MiB transferred", "4032.00 MiB transferred"),
        SYSBENCH.replace("total time:  ", "time:  "),
        SYSBENCH.replace("0.8739s", "0.0000s"),
        SYSBENCH.replace("0.8739s", "0.8.39s"),
        SYSBENCH[: SYSBENCH.index("General")],
    ],
)
def test_sysbench_that_did_not_do_it(output: str) -> None:
    with pytest.raises(InputError, match="sysbench"):
        parse_sysbench(output, 4 * GIB)


def test_pgbench() -> None:
    assert parse_pgbench(PGBENCH) == pytest.approx(853.215162)


def test_pgbench_before_14_without_connecting() -> None:
    assert parse_pgbench(OLD_PGBENCH) == pytest.approx(5773.500733)


@pytest.mark.parametrize(
    "output",
    [
        "",
        PGBENCH.replace("failed transactions: 0 ", "failed transactions: 3 "),
        PGBENCH.replace("processed: 965", "processed: 0"),
        PGBENCH.replace("tps = 853.215162", "tps = 0.000000"),
        PGBENCH.replace("tps = 853.215162", "tps = 8.53.2"),
        PGBENCH.replace("tps", "qps"),
        OLD_PGBENCH.replace("excluding", "including"),
    ],
)
def test_pgbench_that_did_not_do_it(output: str) -> None:
    with pytest.raises(InputError, match="pgbench"):
        parse_pgbench(output)


def test_page_access_without_the_first_repeat() -> None:
    figures = parse_page_access(PAGE_ACCESS, 512 * MIB, 2_000_000, 3)
    assert figures["page-access-first-touch"] == pytest.approx([1178.195624, 897.963474])
    assert figures["page-access-random"] == pytest.approx([408.5557555, 377.4386095])
    assert figures["page-access-unmap"] == pytest.approx([722.080086, 813.756178])
    assert figures["page-access-faults"] == [131072, 131072]
    assert figures["page-access-page-tables"] == [1028, 1028]
    assert figures["page-access-huge"] == [0, 0]
    assert figures["page-access-dtlb-mpki"] == [3, 4]
    assert figures["page-access-dtlb-miss-rate"] == [6, 8]


@pytest.mark.parametrize("word", ["accesses 100", "misses 8", "instructions 2000"])
def test_what_is_not_counted_is_no_figure(word: str) -> None:
    """Never 0: virtual machines have no such counters."""
    name, _ = word.split()
    figures = parse_page_access(PAGE_ACCESS.replace(word, f"{name} n/a"), 512 * MIB, 2_000_000, 3)
    missing = {metric.name for metric in PageAccess.metrics} - set(figures)
    mpki, rate = "page-access-dtlb-mpki", "page-access-dtlb-miss-rate"
    assert missing == {"accesses": {rate}, "instructions": {mpki}, "misses": {mpki, rate}}[name]


def test_first_touch_clears_a_page_as_a_whole() -> None:
    counters = "misses n/a accesses n/a instructions n/a"
    had = "faults 1 page-table-kB 0 huge-kB 1048576"
    line = f"first-touch-ns 200000000 access-ns 1 unmap-ns 5000000 {had} {counters}\n"
    figures = parse_page_access(2 * line, 512 * MIB, 1, 2)
    assert figures["page-access-first-touch"] == [pytest.approx(200.0)]
    assert figures["page-access-unmap"] == [pytest.approx(5.0)]


def test_every_metric_has_its_figures() -> None:
    figures = parse_page_access(PAGE_ACCESS, 512 * MIB, 2_000_000, 3)
    assert list(figures) == [metric.name for metric in PageAccess.metrics]


def test_page_tables_are_as_large_wherever_memory_is(tmp_path: Path) -> None:
    """Each run gets other addresses."""
    program, size = build_program(ACCESS_SOURCE, tmp_path, [MEMORY, COUNTERS]), 4 * MIB
    found = set()
    for _ in range(20):
        output = run_program([program, str(size), "base", "1", "2", "0"], deadline=60)
        found |= set(parse_page_access(output, size, 1, 2)["page-access-page-tables"])
    assert len(found) == 1
    # more than has an entry for each page: the table above those is used by no other memory
    assert min(found) * KIB > size // mmap.PAGESIZE * 8


@pytest.mark.parametrize(
    "output",
    [
        "",
        PAGE_ACCESS[:-10],
        "\n".join(PAGE_ACCESS.splitlines()[:2]),
        PAGE_ACCESS + PAGE_ACCESS,
        PAGE_ACCESS.replace("448981737", "0"),
        PAGE_ACCESS.replace("406878089", "0"),
        PAGE_ACCESS.replace("page-table-kB 1028", "page-table-kB -4"),
        PAGE_ACCESS.replace("817111511", "nan"),
    ],
)
def test_page_access_that_did_not_do_it(output: str) -> None:
    with pytest.raises(InputError, match="page_access"):
        parse_page_access(output, 512 * MIB, 2_000_000, 3)


def test_static_pages_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([{}, {"Private_Hugetlb": MIB}, {"Shared_Hugetlb": 3 * MIB}, {"Private_Hugetlb": 4 * MIB}])
    monkeypatch.setattr(benchmark_program, "read_smaps_rollup", lambda _tree, _pid: next(readings))
    expect_static(7, 4 * MIB, "server")
    assert list(readings) == []


def test_sentinel() -> None:
    assert parse_sentinel("893375501\n") == pytest.approx(0.893375501)


@pytest.mark.parametrize("output", ["", "0\n", "-1\n", "1.5\n", "1\n2\n", "²\n"])
def test_sentinel_that_did_not_do_it(output: str) -> None:
    with pytest.raises(InputError, match="sentinel"):
        parse_sentinel(output)
