"""The program that keeps memory busy in guests says that all is right only as long as it is."""

import os
import platform
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.process.static_program import BUSY_MEMORY, build_static

SIZE = 1 << 20

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return what runs the program in a directory of its own and returns its exit code and its output."""
    try:
        program = build_static(BUSY_MEMORY, platform.machine())
    except InputError as error:
        pytest.skip(str(error))

    def run(*words: str) -> tuple[int, str]:
        # not waited for by its output: the program that goes on would keep a pipe open if it had not closed it
        done = subprocess.run([program, *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stdout

    return run


@pytest.fixture
def pid(run: Run, tmp_path: Path) -> Iterator[int]:
    """Start it, and yield the process that goes on."""
    assert run("start", str(SIZE)) == (0, "")
    (found,) = (int(process.name) for process in Path("/proc").glob("[0-9]*") if _works_in(process, tmp_path))
    yield found
    if _works_in(Path("/proc", str(found)), tmp_path):
        os.kill(found, signal.SIGKILL)


def _works_in(process: Path, directory: Path) -> bool:
    try:
        return (process / "cwd").readlink() == directory
    except OSError:
        return False


def _overwrite(pid: int, offset: int, content: bytes) -> None:
    """Write into the memory of the program, which is its only mapping of this size."""
    for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines():
        start, end = (int(address, 16) for address in re.findall(r"^(\w+)-(\w+) ", line)[0])
        if end - start == SIZE:
            try:
                with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
                    memory.seek(start + offset)
                    memory.write(content)
            except PermissionError:
                pytest.skip("nobody may write into the memory of another process here (kernel.yama.ptrace_scope)")


@pytest.mark.usefixtures("pid")
def test_memory_that_nobody_touches_is_right(run: Run) -> None:
    for rounds in ("2", "100"):
        assert run("await", rounds) == (0, "right\n")


@pytest.mark.parametrize("lost", [8, 4096, SIZE // 2])
def test_content_that_is_lost_is_told_from_then_on(run: Run, pid: int, lost: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    _overwrite(pid, SIZE // 2, bytes(lost))
    os.kill(pid, signal.SIGCONT)
    code, said = run("await", "2")
    assert code == 0
    found = re.fullmatch(r"(\d+) words are wrong, the first at (0x\w+): 0 instead of 0x\w+\n", said)
    assert found, said
    # one that had been read, and not been written yet, may be none of them
    lines = -(-lost // 64)
    assert max(1, lines - 1) <= int(found[1]) <= lines
    assert SIZE // 2 <= int(found[2], 16) < SIZE // 2 + lost
    assert run("await", "2") == (0, said)


def test_one_that_was_killed_is_not_waited_for(run: Run, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert run("await", "2") == (1, "ended by itself\n")


def test_memory_that_is_not_there_is_told(run: Run) -> None:
    code, said = run("start", str(1 << 60))
    assert code == 1
    assert said == "memory: Cannot allocate memory\n"
    code, said = run("await", "1")
    assert code == 1
