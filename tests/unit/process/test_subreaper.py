"""The parent of a program that leaves orphans: it waits for each, and ends as the program does."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.unit.process.waiting import wait_for

from hugepage_qa.process import subreaper
from hugepage_qa.process.child import PIPE, Child
from hugepage_qa.process.process_table import children_of, has_ended

#: leaves an orphan, which ends when it is told, and tells its process id
LEAVES_AN_ORPHAN = "(while [ ! -e {end} ]; do sleep 0.02; done & echo $! >{pid}); sleep 600"


def under_a_subreaper(command: Sequence[str]) -> Child:
    return Child([sys.executable, "-I", "-S", subreaper.__file__, *command], output=PIPE, errors=PIPE)


def test_an_orphan_is_no_zombie_when_it_has_ended(tmp_path: Path) -> None:
    end, pid_file = tmp_path / "end", tmp_path / "pid"
    with under_a_subreaper(["sh", "-c", LEAVES_AN_ORPHAN.format(end=end, pid=pid_file)]) as parent:
        wait_for(lambda: pid_file.exists() and bool(pid_file.read_text(encoding="ascii").strip()))
        orphan = int(pid_file.read_text(encoding="ascii"))
        wait_for(lambda: orphan in children_of(parent.pid))
        end.touch()
        # a zombie is there, too
        wait_for(lambda: not Path(f"/proc/{orphan}").exists())
        assert not parent.has_ended


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -KILL $$", 128 + signal.SIGKILL)])
def test_it_ends_as_the_program_does(script: str, code: int) -> None:
    with under_a_subreaper(["sh", "-c", script]) as parent:
        parent.read(20)
        assert parent.exit_code == code


def test_the_program_ends_with_it() -> None:
    with under_a_subreaper(["sleep", "600"]) as parent:
        wait_for(lambda: bool(children_of(parent.pid)))
        [program] = children_of(parent.pid)
        os.kill(parent.pid, signal.SIGKILL)
        wait_for(lambda: has_ended(program))


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with under_a_subreaper([str(tmp_path / "none")]) as parent:
        assert parent.read(20) == ("", f"{tmp_path}/none: No such file or directory\n")
        assert parent.exit_code == 127
