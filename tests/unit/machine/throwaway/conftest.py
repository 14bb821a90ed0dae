"""A throwaway machine whose agent is real, though no machine boots, and the real one beside it.

It is a process of this machine: it gets no disk, no place outside of the directory of the test, and mounts nothing.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.unit.machine.throwaway.backends import CONFIG, Backend, boot
from tests.unit.process.local_agent import LocalAgent, actor_program, start_agent

from hugepage_qa.machine import throwaway_files, throwaway_machine
from hugepage_qa.machine.real_machine import RealMachine
from hugepage_qa.machine.throwaway_machine import ThrowawayMachine
from hugepage_qa.process.text_program_build import loaded_with


@pytest.fixture
def agent() -> Iterator[LocalAgent]:
    with start_agent() as started:
        yield started


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the machine has all that it makes, below the directory of the test."""
    root = tmp_path / "machine"
    (root / "tmp").mkdir(parents=True)
    (root / "disk").mkdir()
    monkeypatch.setattr(throwaway_files, "_SCRATCH", str(root / "tmp"))
    monkeypatch.setattr(throwaway_files, "_DISK", str(root / "disk"))
    monkeypatch.setattr(throwaway_machine, "_ACTOR", str(actor_program()))
    monkeypatch.setattr(
        throwaway_machine,
        "loaded_with",
        lambda program, compiler: {f"{root}{path}": file for path, file in loaded_with(program, compiler).items()},
    )
    return root


@pytest.fixture
def machine(agent: LocalAgent, place: Path, tmp_path: Path) -> ThrowawayMachine:
    assert place.is_dir()
    return boot(agent, tmp_path / "scratch", CONFIG)


@pytest.fixture
def disk(machine: ThrowawayMachine, monkeypatch: pytest.MonkeyPatch) -> ThrowawayMachine:
    """The machine, whose directory for a disk is taken for one."""
    monkeypatch.setattr(machine._files, "_disk_refusal", "")
    return machine


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealMachine]:
    (tmp_path / "real").mkdir()
    with ExitStack() as stack:
        yield RealMachine(tmp_path / "real", stack)


@pytest.fixture(params=["throwaway", "real"])
def either(request: pytest.FixtureRequest) -> Backend:
    """One machine after the other."""
    found: Backend = request.getfixturevalue("machine" if request.param == "throwaway" else "real")
    return found


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Files of every kind; a path as a Host takes it has no leading slash."""
    made = tmp_path / "files"
    (made / "empty").mkdir(parents=True)
    (made / "text").write_bytes(b"one\r\ntwo\n\n")
    (made / "binary").write_bytes(bytes(range(256)))
    (made / "link").symlink_to("text")
    (made / "dangling").symlink_to("none")
    Path(os.fsdecode(os.fsencode(made) + b"/\xff \n")).touch()
    return made
