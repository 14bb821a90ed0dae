"""The agent and its actors, for real: what becomes of those that it starts, asks and ends."""

import os
import signal
import struct
import time
from pathlib import Path

import pytest
from tests.unit.process.local_agent import LocalAgent, actor_program, refusal
from tests.unit.process.waiting import wait_for

from hugepage_qa.process.process_table import split_stat
from hugepage_qa.qemu.agent_channel import AgentChannel


def never(_told: list[bytes]) -> None:
    """Wait on."""


@pytest.fixture
def actor(channel: AgentChannel) -> tuple[int, int]:
    """The number and the process id of an actor."""
    number, pid = channel.ask("a", str(actor_program()))
    return int(number), int(pid)


def ask(channel: AgentChannel, number: int, request: str) -> list[bytes]:
    return channel.ask_actor("q", number, request, waiting=never)


def kill(channel: AgentChannel, number: int) -> None:
    assert channel.ask_actor("k", number, waiting=never) == []


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_an_actor_answers_as_it_does_without_an_agent(channel: AgentChannel, actor: tuple[int, int]) -> None:
    assert ask(channel, actor[0], "text") == [b"ok 0"]
    assert ask(channel, actor[0], "call close 99") == [b"errno 9"]
    assert ask(channel, actor[0], "nonsense") == [b"malformed"]


def test_a_killed_actor_is_gone_when_the_answer_is_there(channel: AgentChannel, actor: tuple[int, int]) -> None:
    number, pid = actor
    assert not is_gone(pid)
    kill(channel, number)
    assert is_gone(pid)
    kill(channel, number)
    assert refusal(channel, "q", number, "text") == "EBADF"


def test_an_actor_is_killed_once(channel: AgentChannel, actor: tuple[int, int]) -> None:
    kill(channel, actor[0])
    # this one gets the descriptor that the other one had
    number, _pid = channel.ask("a", str(actor_program()))
    kill(channel, actor[0])
    assert ask(channel, int(number), "text") == [b"ok 0"]


def test_an_actor_that_never_was_is_refused(channel: AgentChannel) -> None:
    assert refusal(channel, "q", 7, "text") == "ESRCH"
    assert refusal(channel, "q", -1, "text") == "ESRCH"
    kill(channel, 7)


def test_a_program_that_cannot_be_started_is_refused_with_the_reason(channel: AgentChannel, tmp_path: Path) -> None:
    assert refusal(channel, "a", str(tmp_path / "none")) == "ENOENT"
    (tmp_path / "file").write_text("no program")
    assert refusal(channel, "a", str(tmp_path / "file")) == "EACCES"
    (tmp_path / "file").chmod(0o755)
    assert refusal(channel, "a", str(tmp_path / "file")) == "ENOEXEC"
    assert int(channel.ask("a", str(actor_program()))[0]) == 0


def test_a_forked_actor_is_one_of_its_own(channel: AgentChannel, actor: tuple[int, int]) -> None:
    answer, number, pid = ask(channel, actor[0], "fork")
    assert answer == b"ok %s" % pid
    assert int(number) != actor[0]
    assert ask(channel, int(number), "text") == [b"ok 0"]
    kill(channel, actor[0])
    assert ask(channel, int(number), "text") == [b"ok 0"]
    kill(channel, int(number))
    wait_for(lambda: is_gone(int(pid)))


def test_many_actors_are_told_apart(channel: AgentChannel) -> None:
    started = [channel.ask("a", str(actor_program())) for _ in range(20)]
    assert [int(number) for number, _pid in started] == list(range(20))
    assert ask(channel, 11, "call openat -100 x2f00 0 0")[0].startswith(b"ok ")
    for number, pid in started:
        kill(channel, int(number))
        assert is_gone(int(pid))


def test_one_that_has_ended_by_itself_is_a_broken_pipe(channel: AgentChannel, actor: tuple[int, int]) -> None:
    number, pid = actor
    os.kill(pid, signal.SIGKILL)
    assert refusal(channel, "q", number, "text") in ("EPIPE", "ECONNRESET")
    assert refusal(channel, "q", number, "text") == "EPIPE"
    kill(channel, number)
    assert is_gone(pid)


def test_one_that_ends_before_its_answer_is_a_broken_pipe(channel: AgentChannel, actor: tuple[int, int]) -> None:
    number, pid = actor
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        channel.ask_actor("q", number, "text", waiting=lambda _told: os.kill(pid, signal.SIGKILL))
    assert channel.ask("n", "/proc/self/task") != []


def test_what_an_actor_does_is_told_each_second_until_it_answers(channel: AgentChannel, actor: tuple[int, int]) -> None:
    number, pid = actor
    told: list[list[bytes]] = []

    def waiting(fields: list[bytes]) -> None:
        told.append(fields)
        if len(told) == 2:
            os.kill(pid, signal.SIGCONT)

    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    assert channel.ask_actor("q", number, "text", waiting=waiting) == [b"ok 0"]
    assert time.monotonic() - began >= 2
    stat, _stack = told[0]
    assert stat.startswith(b"%d (actor" % pid)
    assert split_stat(stat.decode())[0] == "T"


def test_the_waiting_for_an_actor_can_be_ended(channel: AgentChannel, actor: tuple[int, int], tmp_path: Path) -> None:
    number, pid = actor

    def no_longer(_told: list[bytes]) -> None:
        raise TimeoutError("no longer")

    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError, match="no longer"):
        channel.ask_actor("q", number, "text", waiting=no_longer)
    (tmp_path / "file").write_bytes(b"in step")
    assert channel.ask("r", str(tmp_path / "file")) == [b"in step"]
    kill(channel, number)
    assert is_gone(pid)


def test_the_end_of_a_waiting_that_is_over_is_answered_too(agent: LocalAgent) -> None:
    agent.line.sendall(struct.pack(">Ic", 1, b"!"))
    assert agent.channel.receive() == b"!"


def test_an_answer_that_crosses_the_end_of_the_waiting_leaves_the_channel_in_step(
    channel: AgentChannel, actor: tuple[int, int], tmp_path: Path
) -> None:
    number, pid = actor

    def too_late(_told: list[bytes]) -> None:
        # the actor answers before the agent is told that nobody waits
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.3)
        raise TimeoutError("no longer")

    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError, match="no longer"):
        channel.ask_actor("q", number, "text", waiting=too_late)
    (tmp_path / "file").write_bytes(b"in step")
    assert channel.ask("r", str(tmp_path / "file")) == [b"in step"]


def test_its_actors_end_with_it(agent: LocalAgent) -> None:
    _number, pid = agent.channel.ask("a", str(actor_program()))
    os.kill(agent.child.pid, signal.SIGKILL)
    wait_for(lambda: is_gone(int(pid)) or split_stat(Path(f"/proc/{int(pid)}/stat").read_text())[0] == "Z")
