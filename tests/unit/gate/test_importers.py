"""What benchmark programs print becomes samples, or one line that says why not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.gate.documents import MACHINE

from hugepage_gate.importers.csv_samples import read_csv
from hugepage_gate.importers.foreign_series import CsvDefaults, Origin, name_sessions
from hugepage_gate.importers.go_benchmark import read_go_benchmark
from hugepage_gate.importers.hyperfine_json import read_hyperfine
from hugepage_gate.importers.pyperf_json import read_pyperf
from hugepage_gate.sample_format import direction_of
from hugepage_gate.samples import Direction, Kind, SampleSet
from hugepage_qa.errors import InputError

ORIGIN = Origin("suite", MACHINE, {"kernel": "6.12"}, "thp")

GO = """goos: linux
goarch: amd64
cpu: AMD Ryzen 9
BenchmarkAlloc/2M-8   \t 100\t  1000 ns/op\t 64 B/op\t 2 allocs/op
BenchmarkAlloc/2M-8   \t 100\t  1010 ns/op\t 64 B/op\t 2 allocs/op
BenchmarkCopy-8       \t  50\t  3.5 GB/s
PASS
ok  \texample\t1.2s
"""

PYPERF = {
    "version": "1.0",
    "metadata": {"cpu_model_name": "AMD Ryzen 9", "hostname": "a", "unit": "second"},
    "benchmarks": [
        {
            "metadata": {"name": "fork"},
            "runs": [
                {"warmups": [[1, 0.9]], "metadata": {"date": "2026-01-01 10:00:00.5"}},
                {"values": [0.5, 0.51], "warmups": [[1, 0.9]], "metadata": {"date": "2026-01-01 10:00:01"}},
                {"values": [0.52, 0.53], "metadata": {"date": "2026-01-01 10:00:02"}},
            ],
        }
    ],
}


def write(tmp_path: Path, content: Any, name: str = "monday.txt") -> Path:
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def blocks(samples: SampleSet, metric: str) -> list[list[float]]:
    series = next(one for one in samples if one.metric == metric)
    return [block.samples.tolist() for block in series.blocks]


def test_go(tmp_path: Path) -> None:
    samples = read_go_benchmark(write(tmp_path, GO), ORIGIN)
    assert blocks(samples, "BenchmarkAlloc/2M-8") == [[1000, 1010]]
    assert blocks(samples, "BenchmarkAlloc/2M-8:allocs/op") == [[2, 2]]
    facts = {one.metric: (one.direction, one.kind) for one in samples}
    assert facts["BenchmarkCopy-8"] == (Direction.HIGHER, Kind.MEASURED)
    assert facts["BenchmarkAlloc/2M-8:B/op"] == (Direction.LOWER, Kind.COUNT)
    # what the caller says is more than what the file says
    assert samples.environment["cpu_model"] == MACHINE["cpu_model"]
    assert read_go_benchmark(tmp_path / "monday.txt", Origin()).environment == {
        "os": "linux",
        "arch": "x86_64",
        "cpu_model": "AMD Ryzen 9",
    }


@pytest.mark.parametrize("text", ["", "BenchmarkA 10 1.5", "BenchmarkA 10 x ns/op", "BenchmarkA 10 NaN ns/op"])
def test_wrong_go(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"monday\.txt"):
        read_go_benchmark(write(tmp_path, text), ORIGIN)


def test_pyperf_is_one_block_per_session_or_per_process(tmp_path: Path) -> None:
    path = write(tmp_path, PYPERF)
    samples = read_pyperf(path, Origin(environment={"arch": "x86_64"}))
    assert blocks(samples, "fork") == [[0.5, 0.51, 0.52, 0.53]]
    assert samples.environment == {"arch": "x86_64", "cpu_model": "AMD Ryzen 9", "hostname": "a"}
    assert blocks(read_pyperf(path, replace(ORIGIN, block_per_process=True)), "fork") == [[0.5, 0.51], [0.52, 0.53]]


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"benchmarks": []},
        {"benchmarks": [{"runs": [{"values": ["1"]}]}]},
        {"benchmarks": [{"runs": [{"values": [-1]}]}]},
        {"benchmarks": [{"runs": []}]},
        "{",
    ],
)
def test_wrong_pyperf(tmp_path: Path, content: Any) -> None:
    with pytest.raises(InputError, match=r"monday\.txt"):
        read_pyperf(write(tmp_path, content), ORIGIN)


def test_hyperfine(tmp_path: Path) -> None:
    content = {
        "results": [{"command": "make -j8", "mean": 1.5, "times": [1.4, 1.6]}, {"command": "true", "times": [0.1]}]
    }
    samples = read_hyperfine(write(tmp_path, content), ORIGIN)
    assert blocks(samples, "make -j8") == [[1.4, 1.6]]
    assert samples.series[0].unit == "s"


@pytest.mark.parametrize("content", [{}, {"results": [{"command": "x", "times": []}]}, {"results": [{"times": [1]}]}])
def test_wrong_hyperfine(tmp_path: Path, content: Any) -> None:
    with pytest.raises(InputError, match=r"monday\.txt"):
        read_hyperfine(write(tmp_path, content), ORIGIN)


def test_csv_with_blocks_of_two_configurations(tmp_path: Path) -> None:
    text = (
        "metric,configuration,unit,direction,block,started,order,sentinel,warmup,value\n"
        "tps,thp,tps,higher,1,2026-01-01,0,1.5,true,100\n"
        "tps,thp,tps,higher,1,2026-01-01,0,1.5,true,101\n"
        "tps,thp,tps,higher,2,2026-01-02,0,1.6,,103\n"
        "tps,shp,tps,higher,1,2026-01-01,1,1.5,,110\n"
    )
    samples = read_csv(write(tmp_path, text), replace(ORIGIN, csv=CsvDefaults(reference="thp")))
    thp, shp = samples.series
    assert [block.samples.tolist() for block in thp.blocks] == [[100, 101], [103]]
    assert (thp.blocks[0].sentinel, thp.blocks[0].warmup, thp.blocks[1].warmup) == (1.5, True, False)
    assert (shp.configuration, shp.blocks[0].order, shp.direction) == ("shp", 1, Direction.HIGHER)
    assert samples.reference == "thp"


def test_csv_without_blocks_is_one_block(tmp_path: Path) -> None:
    samples = read_csv(write(tmp_path, "value\n" + "".join(f"{one}\n" for one in range(1, 600))), ORIGIN)
    assert len(samples.series[0].blocks) == 1


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "value"),
        ("time\n1\n", "time"),
        ("value,value\n1,1\n", "once"),
        ("value\n", "at least one line"),
        ("value\nx\n", ":2: value"),
        ("value\nnan\n", "NaN"),
        ("value\n-1\n", "negative"),
        ("value,block\n1\n", ":2"),
        ("value,block\n1,2,3\n", ":2"),
        ('value\n"1\n', "CSV"),
        ("value,block,order\n1,a,0\n2,a,1\n", "began in line 2"),
        ("value,block,order\n1,a,x\n", "order 'x'"),
        ("value,block,warmup\n1,a,maybe\n", "maybe"),
        ("value,block,unit\n1,a,s\n2,b,ms\n", "one unit"),
        ("value,direction\n1,up\n", "up"),
        ("value,started\n1,yesterday\n", "yesterday"),
    ],
)
def test_wrong_csv(tmp_path: Path, text: str, named: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as raised:
        read_csv(path, ORIGIN)
    assert named in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("unit", "direction"),
    [
        ("ns/op", "lower"),
        ("s", "lower"),
        ("B/op", "lower"),
        ("rows/sec", "higher"),
        ("req/sec", "higher"),
        ("hit%", "higher"),
        ("MB/s", "higher"),
        ("tps", "higher"),
        ("GB/second", "higher"),
        ("errors/s", "lower"),
        ("misses/sec", "lower"),
        ("steps", "lower"),
        ("GFLOPS", "higher"),
    ],
)
def test_a_unit_tells_what_is_good(unit: str, direction: str) -> None:
    assert direction_of(unit) == direction


def test_bytes_per_second_are_the_same_measurement_as_the_time(tmp_path: Path) -> None:
    path = tmp_path / "go.txt"
    path.write_text("BenchmarkCopy-8 50 1000 ns/op 3.5 MB/s 12 rows/sec\nBenchmarkOther-8 50 3.5 MB/s\n")
    found = {one.metric: (one.direction, one.same_as) for one in read_go_benchmark(path, ORIGIN)}
    assert found == {
        "BenchmarkCopy-8": (Direction.LOWER, None),
        "BenchmarkCopy-8:MB/s": (Direction.HIGHER, "BenchmarkCopy-8"),
        "BenchmarkCopy-8:rows/sec": (Direction.HIGHER, None),
        "BenchmarkOther-8": (Direction.HIGHER, None),
    }


def test_files_of_one_name_in_several_folders_are_several_sessions() -> None:
    paths = [Path("monday/bench.json"), Path("tuesday/bench.json"), Path("Go1.17.20220101")]
    assert name_sessions(paths) == ["monday/bench", "tuesday/bench", "Go1.17.20220101"]
    assert name_sessions([Path("a/monday.json")]) == ["monday"]
