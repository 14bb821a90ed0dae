"""Workload ``pgbench``: transactions per second of PostgreSQL with its shared memory on pages of each kind.

The study: scale 500, ``shared_buffers = 10GB``, ``pgbench -c 30 -j 4 -T 10``; 5773 transactions per second and 69 MB of
page tables on 4 KiB pages, 6318 and 9 MB on huge ones.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hugepage_gate.importers.pgbench_report import read_runs
from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.benchmark_program import files_digest, page_tables_of
from hugepage_qa.bench.databases import PROGRAMS, Cluster, PostgresqlInstallation
from hugepage_qa.bench.workload import Fact, Figures, Metric, Prepared, Unavailable, Workload
from hugepage_qa.errors import InputError
from hugepage_qa.sizes import KIB, parse_size

#: since this version the size of huge pages can be chosen (huge_page_size)
_CHOOSES_SIZE = 14

_MORE_SECONDS = 120.0
_LATE = 0.8
_FILL_SECONDS = 3600.0


class Pgbench(Workload):
    """TPC-B-like transactions against a private server on a socket."""

    name = "pgbench"
    metrics = (
        Metric("pgbench-tps", "tps", "higher"),
        Metric("pgbench-page-tables", "kB", "lower"),
    )
    programs = PROGRAMS
    profiles: Mapping[str, Mapping[str, Fact]] = {
        # without waiting for the disk, which is not what pages are about
        "quick": {
            "scale": 5,
            "shared_buffers": "512MB",
            "clients": 8,
            "jobs": 2,
            "seconds": 3,
            "warmup": 1,
            "fsync": False,
        },
        "reference": {
            "scale": 500,
            "shared_buffers": "10GB",
            "clients": 30,
            "jobs": 4,
            "seconds": 10,
            "warmup": 10,
            "fsync": True,
        },
    }

    @contextmanager
    def prepare(self, profile: str, scratch: Path, disk: Path) -> Iterator[Prepared]:  # noqa: ARG002 - needs the disk
        """Fill a database; each block starts from a copy of it."""
        installation = PostgresqlInstallation.find()
        version = installation.version()
        parameters = self.profiles[profile]
        with Cluster(disk / "pgbench", installation).made() as full:
            with full.running({"fsync": "off"}):
                full.pgbench(["--initialize", "--quiet", f"--scale={parameters['scale']}"], _FILL_SECONDS)

            def block(backing: Backing) -> Figures:
                if (
                    backing.kind is Kind.STATIC
                    and not backing.is_default
                    and int(version.split(".")[0]) < _CHOOSES_SIZE
                ):
                    raise Unavailable(f"PostgreSQL {version} has huge pages of the default size only")
                with full.copied(disk / "pgbench-block") as copy:
                    return _block(copy, parameters, backing)

            yield Prepared(
                block,
                # locks and the like are up to a tenth more
                parse_size(str(parameters["shared_buffers"]).removesuffix("B")) * 5 // 4,
                {"binary": files_digest(installation.pgbench)},
                {"postgresql": version},
            )


def settings(parameters: Mapping[str, Fact], backing: Backing) -> dict[str, str]:
    """Return the settings of a server whose shared memory is on ``backing``; it does not start without these pages.

    Only where half of them are missing it may fall back to base pages.
    """
    static = "try" if backing.is_halved else "on"
    huge = {"huge_pages": static if backing.kind is Kind.STATIC else "off"}
    if backing.kind is Kind.STATIC and not backing.is_default:
        huge["huge_page_size"] = f"{backing.page_size // KIB}kB"
    durable = "on" if parameters["fsync"] else "off"
    return {
        **huge,
        "shared_buffers": str(parameters["shared_buffers"]),
        "max_connections": str(int(parameters["clients"] or 0) + 10),
        "fsync": durable,
        "synchronous_commit": durable,
        # none of them at some times and not at others
        "autovacuum": "off",
        "checkpoint_timeout": "1h",
        "max_wal_size": "8GB",
    }


def parse_pgbench(output: str) -> float:
    """Return the transactions per second. Raises InputError when transactions failed, or nobody knows."""
    runs = read_runs(output, "pgbench")
    if len(runs) != 1 or not runs[0].tps or not runs[0].processed:
        raise InputError(f"pgbench: expected transactions and 'tps = ...', got {output[-200:]!r}")
    if runs[0].failed:
        raise InputError(f"pgbench: {runs[0].failed:g} transactions failed, expected none")
    return runs[0].tps


def _block(cluster: Cluster, parameters: Mapping[str, Fact], backing: Backing) -> Figures:
    load = ["--no-vacuum", f"--client={parameters['clients']}", f"--jobs={parameters['jobs']}"]
    seconds = int(parameters["seconds"] or 0)
    with cluster.running(settings(parameters, backing)) as server:
        cluster.pgbench([*load, f"--time={parameters['warmup']}"], _MORE_SECONDS)
        tables: list[float] = []

        def look(_pid: int) -> None:
            # late, when every session has touched what it touches
            time.sleep(_LATE * seconds)
            tables.append(page_tables_of(server) / KIB)

        output = cluster.pgbench([*load, f"--time={seconds}"], seconds + _MORE_SECONDS, look)
    if not tables[0]:
        raise InputError("postgres: has no page tables, expected it to run")
    return {"pgbench-tps": [parse_pgbench(output)], "pgbench-page-tables": tables}
