"""The actor and the agent, built and started."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.process.local_agent import LocalAgent, start_agent

from hugepage_qa.process.actor import Actor, start_actor
from hugepage_qa.process.c_compiler import build_actor
from hugepage_qa.qemu.agent_channel import AgentChannel


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of an actor."""
    return build_actor(tmp_path_factory.mktemp("actor"))


@pytest.fixture
def actor(program: Path) -> Iterator[Actor]:
    """An actor that runs."""
    with start_actor(program) as started:
        yield started


@pytest.fixture
def agent() -> Iterator[LocalAgent]:
    with start_agent() as started:
        yield started


@pytest.fixture
def channel(agent: LocalAgent) -> AgentChannel:
    return agent.channel
