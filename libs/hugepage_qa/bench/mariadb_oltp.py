"""Workload ``mariadb-oltp``: transactions of sysbench against MariaDB with 1, 8, 16 and 32 connections.

The study of huge pages for code: 1, 8, 16 and 32 connections on 32 CPUs, transactions per second and the iTLB misses of
the server, which perf reads; virtual machines mostly have no such counter. The buffer pool is on pages of each kind,
too (``large_pages``).
"""

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hugepage_gate.importers.sysbench_report import read_run
from hugepage_qa.bench.backing import Backing, Kind, ProgramText
from hugepage_qa.bench.benchmark_program import (
    expect_static,
    files_digest,
    find_program,
    huge_code_of,
    page_tables_of,
    run_program,
)
from hugepage_qa.bench.databases import DATABASE, MariaDb, MariadbInstallation
from hugepage_qa.bench.workload import Fact, Figures, Metric, Prepared, Program, Unavailable, Workload
from hugepage_qa.errors import InputError
from hugepage_qa.process.process_table import cpu_seconds
from hugepage_qa.sizes import KIB, MIB, parse_size

_INSTRUCTIONS, _MISSES = "instructions:u", "iTLB-load-misses:u"
#: perf stat -x: value;unit;event;run time;share of it that the counter was on, in percent;...
_LINE = re.compile(r"^(?P<value>[0-9]+|<not [a-z]+>);[^;]*;(?P<event>[^;]+);[0-9]*;(?P<share>[0-9.]+);", re.MULTILINE)
_WHOLE = 100.0
_PER_THOUSAND = 1000
_PERF_SECONDS = 30.0


def parse_misses(output: str) -> float:
    """Return misses per 1000 instructions. Raises InputError where a counter is missing, or was shared with others.

    What perf counted for a part of the time only it scales up; that is a guess.
    """
    found = {line["event"]: line for line in _LINE.finditer(output)}
    counts = {}
    for event in (_INSTRUCTIONS, _MISSES):
        line = found.get(event)
        if line is None or not line["value"].isdigit():
            raise InputError(f"perf: has no {event}, got {output[:200]!r}")
        if float(line["share"]) < _WHOLE:
            raise InputError(f"perf: counted {event} for {line['share']} % of the time, expected {_WHOLE:g} %")
        counts[event] = int(line["value"])
    if not counts[_INSTRUCTIONS]:
        raise InputError("perf: counted no instructions")
    return _PER_THOUSAND * counts[_MISSES] / counts[_INSTRUCTIONS]


def _command(perf: Path) -> list[str]:
    return [str(perf), "stat", "-x", ";", "-e", f"{_INSTRUCTIONS},{_MISSES}"]


CONNECTIONS = (1, 8, 16, 32)
#: as many connections as keep so many of a hundred CPUs busy: in the study 8, 16 and 32 on 32 CPUs
CPU_SHARES = (25, 50, 100)

#: the buffer pool is taken in pieces; the server takes the largest pages that fit into one, whatever is asked for
_CHUNK = 256 * MIB

_MORE_SECONDS = 120.0
_FILL_SECONDS = 3600.0
_LATE = 0.8


class MariadbOltp(Workload):
    """Reads and writes of sysbench against a private server on a socket."""

    name = "mariadb-oltp"
    metrics = (
        *(Metric(f"mariadb-oltp-tps-{number}", "tps", "higher") for number in CONNECTIONS),
        *(Metric(f"mariadb-oltp-tps-per-cpu-{number}", "tps", "higher") for number in CONNECTIONS),
        *(Metric(f"mariadb-oltp-tps-cpu-{share}", "tps", "higher") for share in CPU_SHARES),
        Metric("mariadb-oltp-page-tables", "kB", "lower"),
        Metric("mariadb-oltp-huge-code", "kB", "higher", "count"),
        # only where the CPU counts them
        Metric("mariadb-oltp-itlb-mpki", "misses per 1000 instructions", "lower"),
    )
    programs = (
        Program("sysbench", "sysbench", "sysbench"),
        Program("mariadb-install-db", "mariadb-server-core", "mariadb-server"),
        # which the one above starts; its package in Debian does not depend on it
        Program("my_print_defaults", "mariadb-client-core", "mariadb-server"),
    )
    profiles: Mapping[str, Mapping[str, Fact]] = {
        "quick": {"tables": 1, "rows": 20_000, "buffer_pool": "256M", "seconds": 2, "durable": False},
        "reference": {"tables": 10, "rows": 1_000_000, "buffer_pool": "4G", "seconds": 60, "durable": True},
    }

    #: madvise(2) is for programs that call it
    texts = tuple(one for one in ProgramText if one is not ProgramText.COLLAPSED)

    def backings(self, there: Sequence[Backing]) -> tuple[Backing, ...]:
        """Static pages have to be smaller than the pieces of the buffer pool."""
        return tuple(one for one in there if one.page_size < _CHUNK)

    @contextmanager
    def prepare(self, profile: str, scratch: Path, disk: Path) -> Iterator[Prepared]:  # noqa: ARG002 - needs the disk
        """Fill a database; each block starts from a copy of it."""
        installation = MariadbInstallation.find()
        sysbench = find_program("sysbench", "sysbench")
        version = installation.version()
        parameters = self.profiles[profile]
        with MariaDb(disk / "mariadb", installation).made() as full:
            with full.running(settings(parameters, Backing(Kind.BASE, 0))):
                run_program([*_client(sysbench, full, parameters), "prepare"], deadline=_FILL_SECONDS)
            perf, counters = _counters()

            def block(backing: Backing) -> Figures:
                with full.copied(disk / "mariadb-block") as copy:
                    return _block(copy, _client(sysbench, copy, parameters), parameters, backing, perf)

            yield Prepared(
                block,
                parse_size(str(parameters["buffer_pool"])) * 5 // 4,
                {"binary": files_digest(sysbench), "cpu_counters": counters},
                {"mariadb": version},
            )


def settings(parameters: Mapping[str, Fact], backing: Backing) -> dict[str, str]:
    """Return the settings of a server whose buffer pool is on ``backing``; where pages do not suffice it falls back."""
    return {
        "large-pages": "1" if backing.kind is Kind.STATIC else "0",
        "innodb-buffer-pool-size": str(parameters["buffer_pool"]),
        "innodb-buffer-pool-chunk-size": str(_CHUNK),
        "innodb-flush-log-at-trx-commit": "1" if parameters["durable"] else "0",
        # a file system in memory has no direct I/O
        "innodb-flush-method": "fsync",
        "max-connections": str(2 * max(CONNECTIONS)),
    }


def parse_oltp(output: str) -> float:
    """Return the transactions per second. Raises InputError for none, for broken connections, and if nobody knows."""
    run = read_run(output, "sysbench")
    if not run.transactions or run.reconnects is None:
        raise InputError(f"sysbench: expected 'transactions: ... per sec.' and 'reconnects:', got {output[-200:]!r}")
    if run.reconnects:
        raise InputError(f"sysbench: {run.reconnects:g} connections broke, expected none")
    return run.transactions


def _counters() -> tuple[Path | None, str]:
    """Return perf where it can count, and what is to be known about that."""
    try:
        perf = find_program("perf", "linux-perf")
        parse_misses(run_program([*_command(perf), "--", "true"], deadline=_PERF_SECONDS))
    except (Unavailable, InputError):
        return None, "n/a"
    return perf, "counted"


def _client(sysbench: Path, server: MariaDb, parameters: Mapping[str, Fact]) -> list[str]:
    return [
        str(sysbench),
        "oltp_read_write",
        f"--mysql-socket={server.socket}",
        "--mysql-user=root",
        f"--mysql-db={DATABASE}",
        f"--tables={parameters['tables']}",
        f"--table-size={parameters['rows']}",
    ]


def _block(
    server: MariaDb, client: list[str], parameters: Mapping[str, Fact], backing: Backing, perf: Path | None
) -> Figures:
    seconds = int(parameters["seconds"] or 0)
    figures: dict[str, list[float]] = {}
    with server.running(settings(parameters, backing)) as pid:
        # fills the buffer pool
        run_program([*client, "--threads=8", "--time=1", "run"], deadline=_MORE_SECONDS)
        if backing.is_all_static:
            # a piece is mapped whole or not at all, and touched where it is needed
            expect_static(pid, backing.page_size, "mariadbd")
        at_share = connections_at_shares(os.cpu_count() or 1)
        for number in sorted({*CONNECTIONS, *at_share.values()}):
            words = [*client, f"--threads={number}", f"--time={seconds}", "run"]
            look = partial(_look, figures, perf, pid, seconds) if number == max(CONNECTIONS) else None
            before, began = cpu_seconds(pid), time.monotonic()
            output = run_program(words, deadline=seconds + _MORE_SECONDS, while_running=look)
            busy = (cpu_seconds(pid) - before) / (time.monotonic() - began)
            rate = parse_oltp(output)
            if busy <= 0:
                raise InputError("mariadbd: has used no CPU time, expected it to run")
            if number in CONNECTIONS:
                figures[f"mariadb-oltp-tps-{number}"] = [rate]
                figures[f"mariadb-oltp-tps-per-cpu-{number}"] = [rate / busy]
            figures |= {f"mariadb-oltp-tps-cpu-{share}": [rate] for share, own in at_share.items() if own == number}
    return figures


def connections_at_shares(cpus: int) -> dict[int, int]:
    """Return the connections that make so many of a hundred CPUs busy; a machine with few CPUs has no quarter."""
    return {share: cpus * share // 100 for share in CPU_SHARES if cpus * share % 100 == 0}


def _look(figures: dict[str, list[float]], perf: Path | None, server: int, seconds: int, _client: int) -> None:
    """Look at the server while it is busy."""
    if perf is not None:
        words = [*_command(perf), "-p", str(server), "--", "sleep", str(_LATE * seconds)]
        output = run_program(words, deadline=_LATE * seconds + _PERF_SECONDS)
        figures["mariadb-oltp-itlb-mpki"] = [parse_misses(output)]
    else:
        time.sleep(_LATE * seconds)
    figures["mariadb-oltp-page-tables"] = [page_tables_of(server) / KIB]
    figures["mariadb-oltp-huge-code"] = [huge_code_of(server) / KIB]
