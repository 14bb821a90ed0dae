"""The actors of a throwaway machine answer, fork, starve and go as those of the real one do."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from tests.unit.machine.throwaway.backends import Backend

from hugepage_qa.errors import InputError
from hugepage_qa.machine.host import Host
from hugepage_qa.machine.throwaway_machine import ThrowawayMachine
from hugepage_qa.process import actor_link
from hugepage_qa.process.actor_link import ActorGone, ActorStarved


def test_an_actor_answers_as_on_the_real_machine(either: Backend) -> None:
    host = Host(either)
    actor = host.start_actor()
    try:
        address = actor.mmap(3 * host.base_page, 3, 0x22)
        actor.fill(address, 3 * host.base_page, host.base_page, 7)
        assert actor.check(address, 3 * host.base_page, host.base_page, 7) == 0
        with pytest.raises(OSError, match="EBADF"):
            actor.call("close", 99)
        assert host.read(f"proc/{actor.pid}/stat") is not None
    finally:
        actor.end()
    assert host.read(f"proc/{actor.pid}/stat") is None


def test_a_forked_actor_is_as_on_the_real_machine(either: Backend) -> None:
    actor = Host(either).start_actor()
    child = actor.fork()
    grandchild = child.fork()
    assert len({actor.pid, child.pid, grandchild.pid}) == 3
    actor.exit()
    with pytest.raises(ActorGone):
        actor.text()
    assert child.text() == grandchild.text() == 0
    actor.end()
    for one in (actor, child, grandchild):
        with pytest.raises(ActorGone):
            one.text()
        one.end()


def test_one_that_was_killed_is_gone_as_on_the_real_machine(either: Backend) -> None:
    actor = Host(either).start_actor()
    os.kill(actor.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(ActorGone, match=rf"the actor \(process {actor.pid}\)"):
            actor.text()
    actor.end()


def test_a_request_that_is_too_long_is_a_mistake_of_the_case(either: Backend) -> None:
    actor = Host(either).start_actor()
    with pytest.raises(ValueError, match="an actor takes at most 65536"):
        actor.call("write", 1, bytes(40_000), 40_000)
    assert actor.call("memfd_create", "x" * 100, 0) > 0
    actor.end()


@pytest.mark.parametrize("mode", [None, 0o644, 0o755], ids=["missing", "not runnable", "no program"])
def test_a_program_that_cannot_be_started_says_nothing_of_the_kernel(
    either: Backend, tmp_path: Path, mode: int | None
) -> None:
    program = tmp_path / "program"
    if mode is not None:
        program.write_bytes(b"\x7fELF")
        program.chmod(mode)
    with pytest.raises(InputError, match=str(program)):
        Host(either).start_program(str(program))


def test_an_actor_that_gets_no_cpu_says_nothing_of_the_kernel(either: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_link, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(actor_link, "_STARVED_SECONDS", 0.5)
    actor = Host(either).start_actor()
    os.kill(actor.pid, signal.SIGSTOP)
    with pytest.raises(ActorStarved, match="0 s of a CPU"):
        actor.text()
    actor.end()
    assert Host(either).read("proc/version"), "the machine answers on"


def test_nobody_waits_twice_for_an_actor_that_does_not_end(
    machine: ThrowawayMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that the kernel keeps for ever: who has been told so once would wait for minutes again."""
    actor = Host(machine).start_actor()
    with monkeypatch.context() as patched:

        def never(*_arguments: object, **_named: object) -> NoReturn:
            raise ActorGone("blocked in the kernel for 301 s")

        patched.setattr(machine._channel, "ask_actor", never)
        with pytest.raises(ActorGone, match="blocked"):
            actor.end()
        actor.end()
    os.kill(actor.pid, signal.SIGKILL)


def test_who_did_not_answer_is_waited_for_shortly_when_it_is_killed(
    machine: ThrowawayMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, other = (Host(machine).start_actor() for _number in range(2))
    waited: list[float | None] = []
    patience = machine._patience

    def noted(pid: int, what: str, blocked: float | None = None) -> Callable[[list[bytes]], None]:
        waited.append(blocked)
        return patience(pid, what, blocked)

    def gone(*_arguments: object, **_named: object) -> NoReturn:
        raise ActorGone("blocked in the kernel for 301 s")

    with monkeypatch.context() as patched:
        patched.setattr(machine._channel, "ask_actor", gone)
        with pytest.raises(ActorGone, match="blocked"):
            silent.text()
    monkeypatch.setattr(machine, "_patience", noted)
    silent.end()
    other.end()
    assert waited == [actor_link.BLOCKED_BEFORE_SECONDS, None]
