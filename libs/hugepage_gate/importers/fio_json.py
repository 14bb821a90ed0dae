"""fio: IOPS, bandwidth and completion latency of each job, reading, writing and trimming.

Specified in https://fio.readthedocs.io/en/latest/fio_doc.html, "JSON output" (``--output-format=json``; json+ is the
same with more). A file has one number of each metric. Options of the jobs are facts about the measurement.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hugepage_gate.importers.foreign_series import ForeignSeries, Origin, one_session
from hugepage_gate.input_file import read_output
from hugepage_gate.samples import SampleSet, Scalar
from hugepage_qa.errors import InputError

_WAYS = ("read", "write", "trim")
#: the percentile that is a metric of its own
_TAIL = "99.000000"


def read_fio(path: Path, origin: Origin) -> SampleSet:
    """Return the jobs in the file ``path``. Raises InputError, also for a job that failed."""
    document = read_output(path, "fio", "what fio 3 --output-format=json writes")
    names = [job["jobname"] for job in document["jobs"]]
    facts: dict[str, Scalar] = {"fio": document["fio version"], **_options("fio", document.get("global options", {}))}
    found: list[ForeignSeries] = []
    started = datetime.fromtimestamp(document["timestamp"], UTC) if "timestamp" in document else None
    for job in document["jobs"]:
        name = job["jobname"]
        if names.count(name) > 1:
            raise InputError(f"{path}: job {name} is there twice; run fio with --group_reporting")
        if job.get("error"):
            raise InputError(f"{path}: job {name} ended with error {job['error']}, expected a finished measurement")
        facts |= _options(f"fio {name}", job.get("job options", {}))
        found += _series(name, job, started)
    return one_session(path, origin, found, facts)


def _options(prefix: str, options: Mapping[str, str]) -> dict[str, Scalar]:
    return {f"{prefix} {option}": value for option, value in options.items()}


def _series(name: str, job: Mapping[str, Any], started: datetime | None) -> Iterator[ForeignSeries]:
    for way in _WAYS:
        figures = job.get(way, {})
        if not figures.get("total_ios"):
            continue  # the job did nothing of this
        metric = f"fio-{name}-{way}"
        at = (started,)
        yield ForeignSeries(f"{metric}-iops", "iops", [[figures["iops"]]], starts=at)
        # that times the size of a block
        bandwidth = [[figures["bw_bytes"]]]
        yield ForeignSeries(f"{metric}-bandwidth", "bytes/s", bandwidth, same_as=f"{metric}-iops", starts=at)
        latency = figures.get("clat_ns", {})
        if latency.get("mean"):
            yield ForeignSeries(f"{metric}-latency", "ns", [[latency["mean"]]], starts=at)
        if _TAIL in latency.get("percentile", {}):
            yield ForeignSeries(f"{metric}-latency-p99", "ns", [[latency["percentile"][_TAIL]]], starts=at)
