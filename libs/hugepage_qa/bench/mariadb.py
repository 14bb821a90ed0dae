"""A private MariaDB: a data directory of its own, on a unix socket, as a user without rights."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.bench.database import Database
from hugepage_qa.bench.program import find_program, run_program
from hugepage_qa.bench.server import NOBODY, running_server

DATABASE = "sbtest"

# Debian and Fedora keep the server out of a user's PATH
_SERVERS = (Path("/usr/sbin"), Path("/usr/libexec"))
_DEADLINE_SECONDS = 120.0


@dataclass(frozen=True)
class Installation:
    """The programs of MariaDB."""

    install: Path
    server: Path

    @classmethod
    def find(cls) -> "Installation":
        """Return them. Raises Unavailable where they are not installed."""
        find_program("my_print_defaults", "mariadb-client-core")
        return cls(
            find_program("mariadb-install-db", "mariadb-server-core"),
            find_program("mariadbd", "mariadb-server-core", _SERVERS),
        )

    def version(self) -> str:
        """Return what ``mariadbd --version`` prints. Raises InputError."""
        return run_program([self.server, "--no-defaults", "--version"], deadline=_DEADLINE_SECONDS).strip()


@dataclass(frozen=True)
class MariaDb(Database):
    """The directory of a server: ``data``, and the socket beside it."""

    installation: Installation

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
