"""The agent as a process of this machine, without a boot: its channel is a socket, and it acts where it is told to."""

import errno
import platform
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.process.c_compiler import ACTOR
from hugepage_qa.process.child import Child
from hugepage_qa.process.static_program import AGENT, build_static
from hugepage_qa.qemu.agent_channel import AgentChannel
from hugepage_qa.qemu.lost_machine import Loss, MachineLost

_SECONDS = 60.0


@dataclass(frozen=True)
class LocalAgent:
    """The agent's process, our end of its line, and the channel over it."""

    child: Child
    line: socket.socket
    channel: AgentChannel
    base_page: int


def lost_by(cut: str) -> MachineLost:
    """Tell that a machine is lost whose line was cut; for no other reason is it ever."""
    return MachineLost(Loss.NO_ANSWER, cut, "the serial console")


@contextmanager
def start_agent(before: Sequence[str] = ()) -> Iterator[LocalAgent]:
    """Start the agent, by the command ``before`` if there is one, and yield it when it has answered."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            command = [*before, str(build_static(AGENT, platform.machine()))]
            child = Child(command, death_signal=None, standard_input=theirs.fileno())
        with child:
            channel = AgentChannel(ours, lambda: None, lost_by)
            yield LocalAgent(child, ours, channel, int(channel.receive(_SECONDS)[5:]))


def actor_program() -> Path:
    """Return the actor as throwaway machines have it."""
    return build_static(ACTOR, platform.machine())


def refusal(channel: AgentChannel, letter: str, *fields: str | bytes | int) -> str:
    """Return the name of the errno that a request is refused with."""
    try:
        channel.ask(letter, *fields)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "no refusal"
