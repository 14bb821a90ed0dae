"""``hugepage-qa ps``."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.unit.kernel.process_capture import CHILD, HOLDER, processes

from hugepage_qa.commands.ps import ps
from hugepage_qa.errors import InputError
from hugepage_qa.sizes import MIB

RUN_PS = "import sys; from hugepage_qa.commands.ps import ps; ps(sys.argv[1:])"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with the captured processes and a pool."""
    pool = "sys/kernel/mm/hugepages/hugepages-2048kB"
    numbers = {"nr_hugepages": 8, "free_hugepages": 4, "resv_hugepages": 2, "surplus_hugepages": 0}
    files = {**processes().files, **{f"{pool}/{name}": f"{number}\n" for name, number in numbers.items()}}
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(text.encode())
    return tmp_path


def run(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(ps, ["--root", str(root), *arguments], catch_exceptions=False)


def pids(root: Path, *arguments: str) -> list[int]:
    return [process["pid"] for process in json.loads(run(root, "--json", *arguments).stdout)["processes"]]


def test_table(root: Path) -> None:
    lines = run(root).stdout.splitlines()
    assert lines[0].startswith("  PID  2M MAPPED  2M PRIVATE  2M SHARED  1G MAPPED")
    holder = [str(HOLDER), "16M", "2M", "6M", "1G", "0", "1G", "12M", "8M", "0", "72K", "ps_hold"]
    child = [str(CHILD), "16M", "0", "6M", "1G", "0", "1G", "10M", "0", "0", "64K", r"\x1b[31mchild\n\\"]
    assert [line.split() for line in lines[1:3]] == [holder, child]
    assert lines[3].split()[:4] == ["total", "32M", "2M", "12M"]
    assert lines[-1].startswith("pool of 2M pages: 8, of which 4 in use (8M)")


def test_json_has_the_fields_that_the_help_shows(root: Path) -> None:
    found = json.loads(run(root, "--json").stdout)
    assert list(found) == ["base_page_size", "processes", "total", "pools", "not_readable"]
    process = found["processes"][1]
    assert process["name"] == "\x1b[31mchild\n\\"
    assert process["hugetlb"][str(2 * MIB)] == {"mappings": 3, "mapped": 16 * MIB, "private": 0, "shared": 6 * MIB}
    assert found["pools"][str(2 * MIB)]["free_hugepages"] == 4
    text = run(root, "--help").stdout
    for name in (*found, *process, *process["hugetlb"][str(2 * MIB)]):
        assert f'"{name}"' in text


def test_largest_first(root: Path) -> None:
    assert pids(root) == pids(root, "--sort", "huge-pages") == [HOLDER, CHILD]
    assert pids(root, "--sort", "thp") == pids(root, "--sort", "page-tables") == [HOLDER, CHILD]
    assert pids(root, "--sort", "pid") == [HOLDER, CHILD]
    assert pids(root, "--sort", "name") == [CHILD, HOLDER]
    (root / f"proc/{HOLDER}/smaps").write_bytes((root / "proc/self/smaps").read_bytes())
    assert pids(root, "--sort", "hugetlb", "--all") == [CHILD, HOLDER]
    assert pids(root, "--sort", "page-tables", "--all") == [HOLDER, CHILD]
    assert pids(root) == [CHILD]


def test_names_that_the_terminal_has_no_code_for(root: Path) -> None:
    status = (root / f"proc/{HOLDER}/status").read_text(encoding="utf-8")
    (root / f"proc/{HOLDER}/status").write_text(status.replace("ps_hold", "日本"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", RUN_PS, "--root", str(root)],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert rb"\u65e5\u672c" in done.stdout


def test_watch_prints_again(root: Path) -> None:
    command = [sys.executable, "-c", RUN_PS, "--root", str(root), "--json", "--watch", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        shutil.rmtree(root / f"proc/{HOLDER}")
        while (later := json.loads(process.stdout.readline())) == first:
            pass
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert [one["pid"] for one in first["processes"]] == [HOLDER, CHILD]
    assert [one["pid"] for one in later["processes"]] == [CHILD]
    assert process.returncode != 0


def test_this_machine() -> None:
    found = json.loads(run(Path("/"), "--json", "--all").stdout)
    assert found["processes"]
    assert found["total"]["page_tables"] == sum(process["page_tables"] for process in found["processes"])


@pytest.mark.parametrize("arguments", [("--watch", "0"), ("--watch", "x"), ("--sort", "colour")])
def test_wrong_options(root: Path, arguments: tuple[str, ...]) -> None:
    done = run(root, *arguments)
    assert done.exit_code != 0
    assert arguments[1] in done.output


def test_wrong_root(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--root .*: expected a directory with proc/"):
        run(tmp_path)
