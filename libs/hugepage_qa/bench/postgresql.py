"""A private PostgreSQL: a cluster of its own below a directory, on a unix socket, as a user without rights."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.bench.program import find_program, run_program
from hugepage_qa.errors import InputError

#: PostgreSQL refuses to run as root; this user owns nothing else (overflowuid)
NOBODY = 65534

#: Debian keeps the programs of the server out of PATH, one directory for each version
_DEBIAN = Path("/usr/lib/postgresql")

_DEADLINE_SECONDS = 120.0
_PAUSE_SECONDS = 0.05
_SHOWN_CHARACTERS = 300
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

    def version(self) -> str:
        """Return what ``postgres --version`` prints. Raises InputError."""
        return run_program([self.postgres, "--version"], deadline=_DEADLINE_SECONDS).strip()


@dataclass(frozen=True)
class Cluster:
    """The directory of a cluster, which belongs to nobody: ``data``, and the socket beside it."""

    installation: Installation
    directory: Path

    @property
    def data(self) -> Path:
        """Where the databases are."""
        return self.directory / "data"

    def create(self) -> None:
        """Make an empty cluster. Raises InputError."""
        self.directory.mkdir(mode=0o700)
        os.chown(self.directory, NOBODY, NOBODY)
        words = ["--username", "postgres", "--auth", "trust", "--encoding", "UTF8", "--no-locale", "--no-sync"]
        self._run([self.installation.initdb, "--pgdata", self.data, *words])

    def copy(self, directory: Path) -> "Cluster":
        """Return a copy of this cluster, which must not run, in a new directory."""
        run_program(["cp", "-a", "--reflink=auto", self.directory, directory], deadline=_DEADLINE_SECONDS)
        return Cluster(self.installation, directory)

    def remove(self) -> None:
        """Remove all files."""
        shutil.rmtree(self.directory)

    @contextmanager
    def running(self, settings: Mapping[str, str]) -> Iterator[int]:
        """Run the server with ``settings`` and yield its process id. Raises InputError when it does not come up."""
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        private = ["-c", f"unix_socket_directories={self.directory}", "-c", "listen_addresses="]
        log = self.directory / "log"
        with log.open("wb") as stream:
            server = subprocess.Popen(
                [str(self.installation.postgres), "-D", str(self.data), *private, *options],
                user=NOBODY,
                group=NOBODY,
                extra_groups=[],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait(server, log)
            yield server.pid
        finally:
            _stop(server)

    def pgbench(self, words: Sequence[str], deadline: float, while_running: Callable[[int], None] | None = None) -> str:
        """Return what pgbench prints; the other arguments are those of ``run_program``. Raises InputError."""
        connection = ["--host", str(self.directory), "--username", "postgres"]
        return self._run([self.installation.pgbench, *connection, *words, _DATABASE], deadline, while_running)

    def _wait(self, server: "subprocess.Popen[bytes]", log: Path) -> None:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        pid_file = self.data / "postmaster.pid"
        while time.monotonic() < deadline:
            if server.poll() is not None:
                said = log.read_text(encoding="utf-8", errors="replace").strip()[:_SHOWN_CHARACTERS]
                raise InputError(f"postgres: ended with {server.returncode} at its start: {' '.join(said.split())}")
            with suppress(OSError):
                # the last line tells of the state (PostgreSQL documentation, "Database File Layout")
                if pid_file.read_text(encoding="utf-8", errors="replace").split()[-1:] == ["ready"]:
                    return
            time.sleep(_PAUSE_SECONDS)
        raise InputError(f"postgres: was not ready after {_DEADLINE_SECONDS:.0f} s")

    def _run(
        self,
        command: Sequence[str | Path],
        deadline: float = _DEADLINE_SECONDS,
        while_running: Callable[[int], None] | None = None,
    ) -> str:
        return run_program(
            command, deadline=deadline, user=NOBODY, directory=self.directory, while_running=while_running
        )


def _stop(server: "subprocess.Popen[bytes]") -> None:
    """End the server: by SIGINT, which ends its sessions in order ("fast shutdown"), then by force."""
    if server.poll() is not None:
        return
    server.send_signal(signal.SIGINT)
    try:
        server.wait(_DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        # its processes end when they see that it has gone
        server.kill()
        server.wait()
