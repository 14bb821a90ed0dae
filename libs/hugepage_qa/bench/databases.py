"""Private databases on a unix socket, as a user without rights: PostgreSQL and MariaDB.

An empty one is made, its server runs, and each block starts from a copy of the filled one.
"""

import os
import re
import shutil
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from hugepage_qa.bench.benchmark_program import find_program, private_directory, run_program, running_server
from hugepage_qa.bench.workload import Program
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.uapi import NOBODY

_COPY_SECONDS = 600.0


@dataclass(frozen=True)
class Database(ABC):
    """A database in ``directory``, which belongs to nobody: its files, and the socket of its server beside them."""

    directory: Path

    @abstractmethod
    def fill_directory(self) -> None:
        """Put an empty database into the directory. Raises InputError."""

    @abstractmethod
    def running(self, settings: Mapping[str, str]) -> AbstractContextManager[int]:
        """Run the server with ``settings`` and yield its process id. Raises InputError when it does not come up."""

    @contextmanager
    def made(self) -> Iterator[Self]:
        """Make the directory with an empty database, and remove it after the block. Raises InputError."""
        with private_directory(self.directory):
            self.fill_directory()
            yield self

    @contextmanager
    def copied(self, directory: Path) -> Iterator[Self]:
        """Yield a copy of it, which must not run, in a new directory that is removed after the block."""
        try:
            run_program(["cp", "-a", "--reflink=auto", self.directory, directory], deadline=_COPY_SECONDS)
            yield replace(self, directory=directory)
        finally:
            # a copy that fails may have begun, on a full disk above all
            if directory.exists():
                shutil.rmtree(directory)


#: Debian keeps the programs of the server out of PATH, one directory for each version
_DEBIAN = Path("/usr/lib/postgresql")
#: the client's package has a "pgbench", too, which fails where the server is missing
PROGRAMS = (
    Program("initdb", "postgresql", "postgresql-server", "usr/lib/postgresql/*/bin/initdb"),
    Program("pgbench", "postgresql", "postgresql-contrib"),
)

_DEADLINE_SECONDS = 120.0
#: how a server says its version, by its program, and an example
_VERSIONS = {
    "postgres": (re.compile(r"\(PostgreSQL\) (?P<version>[0-9]+(?:\.[0-9]+)*)"), "(PostgreSQL) 15.1"),
    "mariadbd": (re.compile(r"Ver (?P<version>[0-9]+(?:\.[0-9]+)*)-MariaDB"), "Ver 10.11.4-MariaDB"),
}
_DIRECTORIES = ("--sharedir", "--pkglibdir")
_DATABASE = "postgres"


def parse_version(server: str, text: str) -> str:
    """Return the version in what ``server --version`` prints. Raises InputError."""
    pattern, example = _VERSIONS[server]
    found = pattern.search(text)
    if found is None:
        raise InputError(f"{server} --version: expected '{example}', got {text[:100]!r}")
    return found["version"]


@dataclass(frozen=True)
class PostgresqlInstallation:
    """The programs of one PostgreSQL. Raises Unavailable where there is none."""

    initdb: Path
    postgres: Path
    pgbench: Path

    @classmethod
    def find(cls) -> "PostgresqlInstallation":
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
        """Return the version of the server. Raises InputError."""
        output = run_program([self.postgres, "--version"], deadline=_DEADLINE_SECONDS)
        return parse_version("postgres", output)


@dataclass(frozen=True)
class Cluster(Database):
    """The directory of a cluster: ``data``, and the socket beside it."""

    installation: PostgresqlInstallation

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


DATABASE = "sbtest"

# Debian and Fedora keep the server out of a user's PATH
_SERVERS = (Path("/usr/sbin"), Path("/usr/libexec"))


@dataclass(frozen=True)
class MariadbInstallation:
    """The programs of MariaDB."""

    install: Path
    server: Path

    @classmethod
    def find(cls) -> "MariadbInstallation":
        """Return them. Raises Unavailable where they are not installed."""
        find_program("my_print_defaults", "mariadb-client-core")
        return cls(
            find_program("mariadb-install-db", "mariadb-server-core"),
            find_program("mariadbd", "mariadb-server-core", _SERVERS),
        )

    def version(self) -> str:
        """Return the version of the server. Raises InputError."""
        output = run_program([self.server, "--no-defaults", "--version"], deadline=_DEADLINE_SECONDS)
        return parse_version("mariadbd", output)


@dataclass(frozen=True)
class MariaDb(Database):
    """The directory of a server: ``data``, and the socket beside it."""

    installation: MariadbInstallation

    @property
    def socket(self) -> Path:
        """Where clients connect to; only root and nobody come there."""
        return self.directory / "socket"

    def fill_directory(self) -> None:
        """Make an empty data directory with the database. Raises InputError."""
        words = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        run_program(
            [self.installation.install, "--no-defaults", f"--datadir={self.directory / 'data'}", *words],
            deadline=_DEADLINE_SECONDS,
            user=NOBODY,
            directory=self.directory,
        )
        # a directory is a database
        database = self.directory / "data" / DATABASE
        database.mkdir(mode=0o700)
        os.chown(database, NOBODY, NOBODY)

    @contextmanager
    def running(self, settings: Mapping[str, str]) -> Iterator[int]:
        """Run the server with ``settings`` and yield its process id. Raises InputError when it does not come up."""
        command: list[str | Path] = [
            self.installation.server,
            "--no-defaults",
            f"--datadir={self.directory / 'data'}",
            f"--socket={self.socket}",
            f"--pid-file={self.directory / 'pid'}",
            f"--tmpdir={self.directory}",
            "--skip-networking",
            *(f"--{name}={value}" for name, value in settings.items()),
        ]
        with running_server(command, self.directory, self.socket.exists, signal.SIGTERM) as pid:
            yield pid
