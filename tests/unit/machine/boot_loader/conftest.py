"""Machines as directories, and fake tools in PATH that behave on them as the real ones do."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hugepage_qa.machine.boot_loader.find_loader import find_boot_loader
from hugepage_qa.machine.boot_loader.loader import BootLoader
from hugepage_qa.process import child

HERE = Path(__file__).parent


class FakeMachine:
    """The files of a machine below ``root``, and the tools that are installed on it."""

    def __init__(self, root: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._programs = programs
        self._monkeypatch = monkeypatch

    def install(self, *names: str) -> None:
        """Put the fake tools ``names`` into PATH."""
        for name in names:
            (self._programs / name).symlink_to(HERE / "bin" / name)

    def run(self, name: str) -> None:
        """Run a tool without arguments: zipl makes its bootmap."""
        subprocess.run([str(self._programs / name)], check=True)

    def write(self, path: str, text: str) -> None:
        """Write a file of the machine."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def lose(self, words: str) -> None:
        """Have the tools lose ``words`` without saying so; "zipl" is for a zipl that writes nothing."""
        self._monkeypatch.setenv("FAKE_LOSE", words)

    def fail(self, name: str) -> None:
        """Have the tool ``name`` fail."""
        self._monkeypatch.setenv("FAKE_FAIL", name)

    def loader(self) -> BootLoader:
        return find_boot_loader(self.root)

    def files(self) -> dict[str, bytes]:
        """Return every file of the machine."""
        paths = (path for path in sorted(self.root.rglob("*")) if path.is_file())
        return {str(path.relative_to(self.root)): path.read_bytes() for path in paths}


GetMachine = Callable[..., FakeMachine]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GetMachine:
    """Return machine(name, *tools): a copy of machines/<name> with these tools in PATH and no others."""

    def make(name: str, *tools: str) -> FakeMachine:
        root, programs = tmp_path / "root", tmp_path / "bin"
        shutil.copytree(HERE / "machines" / name, root)
        # ostree flips between loader.0 and loader.1; an archive of the sources cannot hold a link to a directory
        if (root / "boot" / "loader.1").exists():
            (root / "boot" / "loader").symlink_to("loader.1")
        programs.mkdir()
        (programs / "python3").symlink_to(sys.executable)
        monkeypatch.setenv("PATH", str(programs))
        monkeypatch.setattr(child, "_SYSTEM_DIRECTORIES", str(programs))
        monkeypatch.setenv("FAKE_ROOT", str(root))
        found = FakeMachine(root, programs, monkeypatch)
        found.install(*tools)
        return found

    return make
