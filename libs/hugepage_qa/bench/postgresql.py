"""A private PostgreSQL: a cluster of its own below a directory, on a unix socket, as a user without rights."""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.bench.database import Database
from hugepage_qa.bench.program import find_program, run_program
from hugepage_qa.bench.server import NOBODY, running_server
from hugepage_qa.bench.workload import Program

#: Debian keeps the programs of the server out of PATH, one directory for each version
_DEBIAN = Path("/usr/lib/postgresql")
#: the client's package has a "pgbench", too, which fails where the server is missing
PROGRAMS = (
    Program("initdb", "postgresql", "postgresql-server", "usr/lib/postgresql/*/bin/initdb"),
    Program("pgbench", "postgresql", "postgresql-contrib"),
)

_DEADLINE_SECONDS = 120.0
_DIRECTORIES = ("--sharedir", "--pkglibdir")
_DATABASE = "postgres"


@dataclass(frozen=True)
class Installation:
    """The programs of one PostgreSQL. Raises Unavailable where there is none."""

    initdb: Path
    postgres: Path
    pgbench: Path

    @classmethod
    def find(cls) -> "Installation":
        """Return the newest PostgreSQL that is installed."""
        versions = [path for path in _DEBIAN.glob("*/bin") if path.parent.name.isdigit()]
        newest = sorted(versions, key=lambda path: int(path.parent.name), reverse=True)[:1]
        return cls(
            find_program("initdb", "postgresql", newest),
            find_program("postgres", "postgresql", newest),
            find_program("pgbench", "postgresql", newest),
        )

    def directories(self) -> tuple[Path, Path]:
        """Return where the server's files, such as time zones, and its modules are. Raises Unavailable."""
        config = find_program("pg_config", "postgresql", [self.postgres.parent])
        shared, modules = (run_program([config, one], deadline=_DEADLINE_SECONDS).strip() for one in _DIRECTORIES)
        return Path(shared), Path(modules)

    def version(self) -> str:
        """Return what ``postgres --version`` prints. Raises InputError."""
        return run_program([self.postgres, "--version"], deadline=_DEADLINE_SECONDS).strip()


@dataclass(frozen=True)
class Cluster(Database):
    """The directory of a cluster: ``data``, and the socket beside it."""

    installation: Installation

    @property
    def data(self) -> Path:
        """Where the databases are."""
        return self.directory / "data"

    def fill_directory(self) -> None:
        """Make an empty cluster. Raises InputError."""
        words = ["--username", "postgres", "--auth", "trust", "--encoding", "UTF8", "--no-locale", "--no-sync"]
        self._run([self.installation.initdb, "--pgdata", self.data, *words])

    @contextmanager
    def running(self, settings: Mapping[str, str]) -> Iterator[int]:
        """Run the server with ``settings`` and yield its process id. Raises InputError when it does not come up."""
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        private = ["-c", f"unix_socket_directories={self.directory}", "-c", "listen_addresses="]
        command: list[str | Path] = [self.installation.postgres, "-D", self.data, *private, *options]
        # SIGINT ends its sessions in order ("fast shutdown")
        with running_server(command, self.directory, self._is_ready, signal.SIGINT) as pid:
            yield pid

    def pgbench(self, words: Sequence[str], deadline: float, while_running: Callable[[int], None] | None = None) -> str:
        """Return what pgbench prints; the other arguments are those of ``run_program``. Raises InputError."""
        connection = ["--host", str(self.directory), "--username", "postgres"]
        return self._run([self.installation.pgbench, *connection, *words, _DATABASE], deadline, while_running)

    def _is_ready(self) -> bool:
        # the last line tells of the state (PostgreSQL documentation, "Database File Layout")
        with suppress(OSError):
            text = (self.data / "postmaster.pid").read_text(encoding="utf-8", errors="replace")
            return text.split()[-1:] == ["ready"]
        return False

    def _run(
        self,
        command: Sequence[str | Path],
        deadline: float = _DEADLINE_SECONDS,
        while_running: Callable[[int], None] | None = None,
    ) -> str:
        return run_program(
            command, deadline=deadline, user=NOBODY, directory=self.directory, while_running=while_running
        )
