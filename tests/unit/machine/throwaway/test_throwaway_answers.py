"""What a throwaway machine knows of its kernel, what it remembers, and that it says nothing once it is gone."""

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.machine.throwaway.backends import CONFIG, below, boot
from tests.unit.process.local_agent import LocalAgent

from hugepage_qa.errors import InputError
from hugepage_qa.machine.host import Host
from hugepage_qa.machine.throwaway_machine import ThrowawayMachine
from hugepage_qa.qemu.lost_machine import MachineLost


@pytest.mark.parametrize("packed", [True, False])
def test_an_option_is_one_of_the_configuration(
    agent: LocalAgent, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    assert place.is_dir()
    ask = agent.channel.ask
    answers = [gzip.compress(b"CONFIG_CMA=y\n# CONFIG_NUMA is not set\n")]

    def asked(letter: str, *fields: Any) -> list[bytes]:
        return answers[:1] if fields == ("/proc/config.gz",) else ask(letter, *fields)

    monkeypatch.setattr(agent.channel, "ask", asked)
    host = Host(boot(agent, tmp_path / "scratch", None if packed else CONFIG))
    assert (host.kernel_option("CMA"), host.kernel_option("NUMA")) == (True, False)


def test_an_option_is_not_known_where_no_file_tells(
    agent: LocalAgent, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place.is_dir()
    ask = agent.channel.ask
    monkeypatch.setattr(
        agent.channel, "ask", lambda letter, path, *rest: ask(letter, f"{path}-none" if letter == "r" else path, *rest)
    )
    assert Host(boot(agent, tmp_path / "scratch")).kernel_option("CMA") is None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([b"6,1,2,-;a line\n SUBSYSTEM=mm\n", b"4,2,2,-;\xff;b\n"], ["a line", "\ufffd;b"]),
        ([], []),
        (BrokenPipeError(32, "Broken pipe"), InputError),
        (PermissionError(1, "not permitted"), PermissionError),
    ],
    ids=["lines", "none", "overwritten", "refused"],
)
def test_the_kernel_log_is_its_lines(
    agent: LocalAgent, machine: ThrowawayMachine, monkeypatch: pytest.MonkeyPatch, answer: Any, expected: Any
) -> None:
    def asked(_letter: str) -> list[bytes]:
        if isinstance(answer, OSError):
            raise answer
        found: list[bytes] = answer
        return found

    monkeypatch.setattr(agent.channel, "ask", asked)
    if isinstance(expected, list):
        assert machine.perform("new_kernel_log", []) == expected
    else:
        with pytest.raises(expected):
            machine.perform("new_kernel_log", [])


def test_the_last_operations_that_may_change_something_are_remembered(machine: ThrowawayMachine, files: Path) -> None:
    machine.perform("read", [below(files / "text")])
    machine.perform("clock", [])
    machine.perform("write", [below(files / "text"), "x" * 1000])
    (action,) = machine.actions
    assert action.startswith(f'write ["{below(files / "text")}", "xxx')
    assert len(action) < 310
    for _ in range(60):
        machine.perform("pause", [0])
    assert len(machine.actions) == 40


def test_what_is_tried_on_a_machine_that_is_lost_does_not_push_out_what_lost_it(
    agent: LocalAgent, machine: ThrowawayMachine, files: Path
) -> None:
    machine.perform("pause", [0])
    agent.child.kill()
    for _ in range(60):
        with pytest.raises(MachineLost):
            machine.perform("write", [below(files / "text"), "text"])
    assert list(machine.actions) == ["pause [0]", f'write ["{below(files / "text")}", "text"]']


def test_what_is_read_after_an_action_is_what_is_there_then(machine: ThrowawayMachine, files: Path) -> None:
    path = below(files / "text")
    others: Sequence[str] = [below(files / "binary"), path]
    for number in range(4):
        assert machine.perform("read", [others[0]]) is not None
        machine.perform("write", [path, str(number)])
        assert machine.perform("read", [others[0]]) is not None
        found = machine.perform("read", [path])
        assert found is not None and found[0] == str(number)
        (files / "text").write_text(f"{number + 5}")
        assert machine.perform("observe", [path]) == str(number + 5)


@pytest.mark.parametrize(
    "operation",
    [
        lambda machine: machine.perform("read", ["proc/version"]),
        lambda machine: machine.perform("names", ["proc"]),
        lambda machine: machine.perform("write", ["dev/null", ""]),
        lambda machine: machine.perform("start_actor", []),
        lambda machine: machine.perform("kernel_option", ["CMA"]),
    ],
    ids=["read", "names", "write", "start_actor", "kernel_option"],
)
def test_a_machine_that_is_gone_is_no_answer_of_a_kernel(
    agent: LocalAgent, place: Path, tmp_path: Path, operation: Callable[[ThrowawayMachine], object]
) -> None:
    assert place.is_dir()
    machine = boot(agent, tmp_path / "scratch")
    agent.child.kill()
    with pytest.raises(MachineLost):
        operation(machine)


def test_a_machine_that_goes_while_an_actor_is_asked_is_lost(agent: LocalAgent, machine: ThrowawayMachine) -> None:
    actor = Host(machine).start_actor()
    agent.child.kill()
    with pytest.raises(MachineLost):
        actor.text()
