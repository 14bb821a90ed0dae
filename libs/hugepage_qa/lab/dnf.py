"""Packages of any RPM architecture through ``dnf download``: nothing is installed."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.lab.archive import Package

# what rpm -qp prints for one package: name and version as the file name has them
_FILE = re.compile(r"(?P<name>.+)-(?P<version>[^-]+-[^-]+)\.(?P<architecture>[^.]+)\.rpm")


class DnfRoot:
    """Downloads for one architecture, with dnf's own cache in a directory of ours."""

    def __init__(self, root: Path, architecture: str, release: str | None, report: Callable[[str], None]) -> None:
        """``release`` is a value of --releasever, None for that of the machine."""
        self._root = root
        self._architecture = architecture
        self._release = release
        self._report = report

    def fetch_kernel(self, package: str) -> Package:
        """Download kernel ``package``; ``kernel`` itself is empty, its image lies in ``kernel-core``."""
        return self.fetch("kernel-core" if package == "kernel" else package)

    def fetch(self, package: str) -> Package:
        """Download the newest ``package``; InputError with dnf's own message when that fails."""
        downloads = self._root / "downloads"
        downloads.mkdir(parents=True, exist_ok=True)
        for file in downloads.glob("*.rpm"):
            file.unlink()
        self._report(f"downloading {package} ({self._architecture})")
        self._run(self._command(package, downloads))
        found = [(file, match) for file in downloads.glob("*.rpm") if (match := _FILE.fullmatch(file.name))]
        for file, match in found:
            if match["name"] == package:
                return Package(match["name"], match["version"], (file,))
        raise InputError(f"package {package} for {self._architecture}: dnf downloaded nothing of that name")

    def _command(self, package: str, downloads: Path) -> list[str]:
        release = [f"--releasever={self._release}"] if self._release else []
        return [
            *("dnf", "--quiet", "--assumeyes", f"--forcearch={self._architecture}", *release),
            f"--setopt=cachedir={self._root / 'cache'}",
            # without it every version in the repositories would come
            *("download", "--latest-limit=1", f"--arch={self._architecture}", f"--destdir={downloads}", package),
        ]

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode != 0:
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            raise InputError(f"dnf download failed: {lines[-1] if lines else f'exit code {done.returncode}'}")
