"""apt-file in the machine: installed files are answered at once, all else by the real one."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hugepage_qa.qemu.system import root_layout

Install = Callable[[Path, str, str], None]


@pytest.fixture
def apt_file(tmp_path: Path, install: Install) -> Callable[..., str]:
    install(
        tmp_path / "bin",
        "dpkg-query",
        '[ "$2" = /usr/bin/flock ] && echo "util-linux: /usr/bin/flock" && exit; '
        '[ "$2" = /usr/lib/x ] && echo "libx:amd64, libx:i386: /usr/lib/x" && exit; exit 1',
    )
    install(tmp_path / "bin", "real", 'echo "real $*"')
    script = Path(root_layout.__file__).with_name("apt-file.sh").read_text()
    install(tmp_path / "bin", "apt-file", script.replace("/usr/bin/apt-file", str(tmp_path / "bin" / "real")))

    def run(*words: str) -> str:
        environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
        command = [str(tmp_path / "bin" / "apt-file"), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    return run


def test_installed_files(apt_file: Callable[..., str]) -> None:
    assert apt_file("search", "--package-only", "/usr/bin/flock") == "util-linux\n"
    assert apt_file("search", "--package-only", "/usr/lib/x") == "libx\n"


@pytest.mark.parametrize(
    "words", [("update",), ("search", "--package-only", "/usr/bin/absent"), ("search", "/usr/bin/flock")]
)
def test_all_else_is_the_real_one(apt_file: Callable[..., str], words: tuple[str, ...]) -> None:
    assert apt_file(*words) == f"real {' '.join(words)}\n"
