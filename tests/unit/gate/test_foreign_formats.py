"""Made-up results of fio, sysbench, pgbench, Phoronix, mmtests and LKP as samples; what is wrong is one line."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hugepage_gate.importers.foreign_series import Origin
from hugepage_gate.importers.formats import FORMATS
from hugepage_gate.samples import Direction, SampleSet, Series
from hugepage_qa.commands.gate import gate
from hugepage_qa.errors import InputError

#: what every environment has to tell
FACTS = ("--fact", "arch=s390x", "--fact", "cpu_model=z15")

READ = {
    "total_ios": 1000,
    "io_bytes": 4096000,
    "bw_bytes": 409600,
    "bw": 400,
    "iops": 100.5,
    "clat_ns": {"min": 10, "max": 99, "mean": 52.5, "percentile": {"50.000000": 50, "99.000000": 98}},
}
IDLE = {"total_ios": 0, "bw_bytes": 0, "iops": 0.0, "clat_ns": {"mean": 0.0}}
FIO: dict[str, Any] = {
    "fio version": "fio-3.36",
    "timestamp": 1767225600,
    "global options": {"ioengine": "psync"},
    "jobs": [{"jobname": "seq", "error": 0, "job options": {"bs": "4k"}, "read": READ, "write": IDLE, "trim": IDLE}],
}

SYSBENCH = """sysbench 1.0.20 (using system LuaJIT 2.1.0)

Running the test with following options:
Number of threads: 4
Initializing random number generator from current time

[ 1s ] thds: 4 tps: 99.50 qps: 1990.00 (r/w/o: 1393.00/398.00/199.00) lat (ms,95%): 3.20 err/s: 0.00 reconn/s: 0.00
[ 2s ] thds: 4 tps: 101.50 qps: 2030.00 (r/w/o: 1421.00/406.00/203.00) lat (ms,95%): 3.20 err/s: 0.00 reconn/s: 0.00
SQL statistics:
    queries performed:
        read:                            2814
        total:                           4020
    transactions:                        201    (100.25 per sec.)
    queries:                             4020   (2005.00 per sec.)
    ignored errors:                      0      (0.00 per sec.)

General statistics:
    total time:                          2.0050s
    total number of events:              201

Latency (ms):
         min:                                    1.10
         avg:                                    2.20
         95th percentile:                        3.19
         sum:                                  442.20
"""
MEMORY = """sysbench 1.0.20 (using bundled LuaJIT 2.1.0-beta2)

Number of threads: 4

Total operations: 800 (400.00 per second)

51200.00 MiB transferred (25600.00 MiB/sec)

General statistics:
    total time:                          2.0000s
    total number of events:              800
"""

PGBENCH = """pgbench (16.1 (Debian 16.1-1))
transaction type: <builtin: TPC-B (sort of)>
scaling factor: 10
query mode: simple
number of clients: 8
number of threads: 2
number of transactions actually processed: 1001
number of failed transactions: 0 (0.000%)
latency average = 8.000 ms
latency stddev = 1.000 ms
initial connection time = 5.123 ms
tps = 1000.000000 (without initial connection time)
"""

PHORONIX = """<?xml version="1.0"?>
<PhoronixTestSuite>
  <Generated><Title>t</Title><LastModified>2026-01-01 10:00:00</LastModified></Generated>
  <System><Identifier>a</Identifier><Hardware>Processor: z15, Memory: 8GB</Hardware>
    <Software>Kernel: 6.12</Software><TimeStamp>2026-01-01 09:00:00</TimeStamp></System>
  <Result><Identifier>pts/build-linux-1.0</Identifier><Title>Build</Title><Description>defconfig</Description>
    <Scale>Seconds</Scale><Proportion>LIB</Proportion><DisplayFormat>BAR_GRAPH</DisplayFormat>
    <Data><Entry><Identifier>a</Identifier><Value>61</Value><RawString>60:61:62</RawString></Entry></Data></Result>
  <Result><Identifier>pts/stream-1.0</Identifier><Title>Stream</Title><Description/>
    <Scale>MB/s</Scale><Proportion>HIB</Proportion><DisplayFormat>BAR_GRAPH</DisplayFormat>
    <Data><Entry><Identifier>a</Identifier><Value>9000.5</Value><RawString/></Entry></Data></Result>
  <Result><Identifier>pts/failed-1.0</Identifier><Scale>s</Scale><DisplayFormat>BAR_GRAPH</DisplayFormat>
    <Data><Entry><Identifier>a</Identifier><Value></Value><RawString/></Entry></Data></Result>
  <Result><Identifier>system.monitor</Identifier><Scale>C</Scale><DisplayFormat>LINE_GRAPH</DisplayFormat>
    <Data><Entry><Identifier>a</Identifier><Value>1,2,3</Value><RawString/></Entry></Data></Result>
</PhoronixTestSuite>
"""

MMTESTS: dict[str, Any] = {
    "_ModuleName": "ExtractThpchallenge",
    "_PlotYaxis": "Time (microseconds)",
    "_PlotType": "thread-errorlines",
    "_ResultData": {
        "fault-huge-1": [{"SampleNrs": [1, 2], "Values": ["10.5", 11]}, None, {"SampleNrs": [1], "Values": [12]}],
        "failed": [{"SampleNrs": [], "Values": []}],
    },
}

LKP: dict[str, Any] = {
    "vm-scalability.throughput": [1000, 1010],
    "kbuild.buildtime_per_iteration": [60.5, 61],
    "vm-scalability.time.elapsed_time": [300.1, 300.2],
    "iostat.sda.wkB/s": [1, 2],
    "proc-vmstat.thp_fault_alloc": [5, 6],
    "sysbench.only_once.ops": [1],
    "stats_source": ["/result/0/stats.json", "/result/1/stats.json"],
}


def imported(form: str, tmp_path: Path, content: Any) -> SampleSet:
    path = tmp_path / "monday.txt"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return FORMATS[form](path, Origin())


def by_name(samples: SampleSet) -> Mapping[str, Series]:
    return {one.metric: one for one in samples}


def values(series: Series) -> list[list[float]]:
    return [block.samples.tolist() for block in series.blocks]


def test_fio(tmp_path: Path) -> None:
    samples = imported("fio", tmp_path, FIO)
    found = by_name(samples)
    assert {name: values(one) for name, one in found.items()} == {
        "fio-seq-read-iops": [[100.5]],
        "fio-seq-read-bandwidth": [[409600]],
        "fio-seq-read-latency": [[52.5]],
        "fio-seq-read-latency-p99": [[98]],
    }
    assert found["fio-seq-read-iops"].direction is Direction.HIGHER
    assert found["fio-seq-read-latency-p99"].direction is Direction.LOWER
    assert found["fio-seq-read-bandwidth"].same_as == "fio-seq-read-iops"
    assert samples.environment == {"fio": "fio-3.36", "fio ioengine": "psync", "fio seq bs": "4k"}
    assert str(samples.series[0].blocks[0].started) == "2026-01-01 00:00:00+00:00"


def test_sysbench_takes_what_it_reported_meanwhile(tmp_path: Path) -> None:
    samples = imported("sysbench", tmp_path, SYSBENCH)
    found = by_name(samples)
    assert values(found["sysbench-transactions"]) == [[99.5, 101.5]]
    assert values(found["sysbench-latency-p95"]) == [[3.19]]
    assert values(found["sysbench-events"])[0][0] == pytest.approx(201 / 2.005)
    assert samples.environment == {"sysbench": "1.0.20", "threads": 4}


def test_runs_of_sysbench_in_one_file_are_samples(tmp_path: Path) -> None:
    found = by_name(imported("sysbench", tmp_path, MEMORY + MEMORY.replace("25600.00", "25000.00")))
    assert values(found["sysbench-memory"]) == [[25600, 25000]]
    assert found["sysbench-memory"].direction is Direction.HIGHER
    assert found["sysbench-memory"].same_as == "sysbench-events"


def test_pgbench(tmp_path: Path) -> None:
    found = by_name(imported("pgbench", tmp_path, PGBENCH))
    assert values(found["pgbench-tps"]) == [[1000]]
    assert found["pgbench-tps"].direction is Direction.HIGHER
    assert (values(found["pgbench-latency"]), found["pgbench-latency"].same_as) == ([[8]], "pgbench-tps")
    older = PGBENCH.replace("without initial connection time", "excluding connections establishing")
    assert values(by_name(imported("pgbench", tmp_path, older))["pgbench-tps"]) == [[1000]]
    progress = "progress: 1.0 s, 990.0 tps, lat 8.1 ms stddev 1.0, 0 failed\n"
    assert values(by_name(imported("pgbench", tmp_path, progress + PGBENCH))["pgbench-tps"]) == [[990]]


def test_phoronix(tmp_path: Path) -> None:
    samples = imported("phoronix", tmp_path, PHORONIX)
    found = by_name(samples)
    assert {name: values(one) for name, one in found.items()} == {
        "pts/build-linux-1.0 defconfig": [[60, 61, 62]],
        "pts/stream-1.0": [[9000.5]],
    }
    assert [one.direction for one in found.values()] == [Direction.LOWER, Direction.HIGHER]
    # the kernel may be what is judged
    assert samples.environment == {"hardware": "Processor: z15, Memory: 8GB"}


def test_mmtests(tmp_path: Path) -> None:
    (series,) = imported("mmtests", tmp_path, MMTESTS)
    assert (series.metric, series.unit, values(series)) == ("Thpchallenge-fault-huge-1", "us", [[10.5, 11], [12]])
    # iterations follow each other on one machine
    assert {block.session for block in series.blocks} == {"monday"}
    (rate,) = imported("mmtests", tmp_path, {**MMTESTS, "_PlotYaxis": "Operations/second"})
    assert rate.direction is Direction.HIGHER


def test_lkp(tmp_path: Path) -> None:
    found = by_name(imported("lkp", tmp_path, LKP))
    assert {name: (values(one), one.direction) for name, one in found.items()} == {
        "vm-scalability.throughput": ([[1000], [1010]], Direction.HIGHER),
        "kbuild.buildtime_per_iteration": ([[60.5], [61]], Direction.LOWER),
        "vm-scalability.time.elapsed_time": ([[300.1], [300.2]], Direction.LOWER),
    }
    # every run of a job is one of its own
    assert [block.session for block in found["vm-scalability.throughput"].blocks] == ["monday/0", "monday/1"]
    one_run = imported("lkp", tmp_path, {"vm-scalability.throughput": 7, "stats_source": "/result/0/stats.json"})
    assert values(one_run.series[0]) == [[7]]


def job(**facts: Any) -> dict[str, Any]:
    return {**FIO, "jobs": [{**FIO["jobs"][0], **facts}]}


def operation(*iterations: Any) -> dict[str, Any]:
    return {**MMTESTS, "_ResultData": {"op": list(iterations)}}


BAD: list[tuple[str, Any, str]] = [
    ("fio", [], "fio 3"),
    ("fio", {"jobs": []}, "fio version"),
    ("fio", {**FIO, "fio version": "fio-2.1", "jobs": [{"jobname": "a", "read": {"iops": 1}}]}, "total_ios"),
    ("fio", {**FIO, "jobs": []}, "fio 3"),
    ("fio", {**FIO, "timestamp": 10**30}, "fio 3"),
    ("fio", {**FIO, "jobs": FIO["jobs"] * 2}, "--group_reporting"),
    ("fio", job(error=5), "error 5"),
    ("fio", job(read=IDLE), "no results"),
    ("fio", job(read={**READ, "iops": "fast"}), "fast"),
    ("fio", job(read={**READ, "iops": -1}), "-1"),
    ("fio", "fio: note\n" + json.dumps(FIO), "expected JSON"),
    ("fio", json.dumps(FIO).replace("100.5", "NaN"), "NaN"),
    ("fio", json.dumps(FIO).replace("100.5", "1e999"), "finite"),
    ("sysbench", "", "sysbench VERSION"),
    ("sysbench", PGBENCH, "sysbench VERSION"),
    ("sysbench", SYSBENCH[: SYSBENCH.index("General")], "run that ended"),
    ("sysbench", SYSBENCH.replace("2.0050s", "0.0000s"), "run that ended"),
    ("sysbench", SYSBENCH.replace("2.0050s", "2.0.5s"), "expected a number"),
    ("sysbench", SYSBENCH.replace("3.19", "3..19"), "expected a number"),
    ("sysbench", SYSBENCH + MEMORY.replace("threads: 4", "threads: 8"), "run 2"),
    ("pgbench", "", "run that ended"),
    ("pgbench", SYSBENCH, "run that ended"),
    ("pgbench", PGBENCH[: PGBENCH.index("tps")], "run that ended"),
    ("pgbench", PGBENCH.replace("1000.000000", "1000.0.0"), "expected a number"),
    ("pgbench", PGBENCH + PGBENCH.replace("clients: 8", "clients: 9"), "number of clients: 9"),
    ("phoronix", "", "expected XML"),
    ("phoronix", PHORONIX[:300], "expected XML"),
    ("phoronix", "<a/>", "PhoronixTestSuite"),
    ("phoronix", "<PhoronixTestSuite/>", "no system"),
    ("phoronix", '<!DOCTYPE a [<!ENTITY b "c">]>' + PHORONIX.partition("?>")[2], "document type"),
    ("phoronix", PHORONIX.replace("60:61:62", "60:x:62"), "expected a number"),
    ("phoronix", PHORONIX.replace("60:61:62", "60:nan:62"), "finite"),
    ("phoronix", PHORONIX.replace("60:61:62", "60:-1:62"), "finite"),
    ("phoronix", PHORONIX.replace("2026-01-01 09", "soon"), "ISO 8601"),
    ("phoronix", PHORONIX.replace("BAR_GRAPH", "PASS_FAIL"), "no results"),
    ("phoronix", PHORONIX.replace("</System>", "</System><System><Identifier>b</Identifier></System>"), "of a, b"),
    ("phoronix", PHORONIX.replace("LIB", "HIB"), "direction"),
    ("mmtests", "{", "expected JSON"),
    ("mmtests", [MMTESTS], "one run"),
    ("mmtests", {**MMTESTS, "_ResultData": {}}, "one run"),
    ("mmtests", {**MMTESTS, "_PreferredVal": "Sideways"}, "Sideways"),
    ("mmtests", operation({"Values": [[1]]}), "one run"),
    ("mmtests", operation({"Values": ["fast"]}), "expected a number"),
    ("mmtests", operation({"Values": ["1e999"]}), "finite"),
    ("mmtests", operation(None), "no results"),
    ("mmtests", operation({"SampleNrs": [1]}), "Values"),
    ("lkp", [], "stats.json"),
    ("lkp", {}, "stats.json"),
    ("lkp", {"vm-scalability.throughput": {"a": 1}}, "stats.json"),
    ("lkp", {"vm-scalability.throughput": ["1"]}, "stats.json"),
    ("lkp", {"vm-scalability.throughput": [1, 2]}, "stats_source"),
    ("lkp", {"vm-scalability.throughput": -1}, "at least 0"),
    ("lkp", {"vmstat.cpu.sy": 3}, "no results"),
    ("lkp", {**LKP, "stats_source": []}, "stats.json"),
]


@pytest.mark.parametrize(("form", "content", "named"), BAD)
def test_what_is_wrong_is_one_line(tmp_path: Path, form: str, content: Any, named: str) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    result = CliRunner().invoke(gate, ["import", form, str(path), *FACTS, "--output", str(tmp_path / "out.json")])
    assert isinstance(result.exception, InputError), result.output
    (line,) = str(result.exception).splitlines()
    assert named in line
    assert str(path) in line
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000, b"<a>" * 50_000, b"\x00" * 100])
def test_bytes_of_no_format_are_one_line(tmp_path: Path, form: str, content: bytes) -> None:
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(InputError) as raised:
        FORMATS[form](path, Origin())
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("form", "content"),
    [
        ("fio", FIO),
        ("sysbench", SYSBENCH),
        ("pgbench", PGBENCH),
        ("phoronix", PHORONIX),
        ("mmtests", MMTESTS),
        ("lkp", LKP),
    ],
)
def test_the_command_writes_what_it_can_read_again(tmp_path: Path, form: str, content: Any) -> None:
    path, out = tmp_path / "monday.txt", tmp_path / "out.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    result = CliRunner().invoke(gate, ["import", form, str(path), *FACTS, "--output", str(out)])
    assert result.exception is None, result.exception
    assert "no host" in result.output
    assert ("no start time" in result.output) == (form not in ("fio", "phoronix"))
    assert json.loads(out.read_text())["series"]


def test_a_unit_that_does_not_tell_what_is_good_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "go.txt"
    path.write_text("BenchmarkA-8 10 5 ns/op 3 widgets\n")
    result = CliRunner().invoke(gate, ["import", "go", str(path), *FACTS])
    assert "lower is taken as better of BenchmarkA-8:widgets" in result.output
