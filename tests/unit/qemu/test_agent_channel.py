"""The channel to an agent: frames in and out, what is refused, and how a machine is lost. The agent is a double."""

import errno
import itertools
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugepage_qa.qemu import agent_channel
from hugepage_qa.qemu.agent_channel import AgentChannel, ReadAhead
from hugepage_qa.qemu.lost_machine import Loss, MachineLost

PANIC = MachineLost(Loss.PANICKED, "Kernel panic - not syncing: Fatal exception", "what it printed")


def frame(letter: str, *fields: bytes) -> bytes:
    payload = letter.encode() + b"".join(struct.pack(">I", len(field)) + field for field in fields)
    return struct.pack(">I", len(payload)) + payload


class Machine:
    """Tells how it was lost: as it is told to, else by what was cut; and how often it was looked at."""

    def __init__(self) -> None:
        self.lost: MachineLost | None = None
        self.looks: list[str] = []

    def find_loss(self) -> MachineLost | None:
        """Tell."""
        self.looks.append("")
        return self.lost

    def lost_by(self, cut: str) -> MachineLost:
        """Tell."""
        self.looks.append(cut)
        return self.lost or MachineLost(Loss.NO_ANSWER, cut, "")


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def agent(ends: tuple[socket.socket, socket.socket]) -> socket.socket:
    """The other end: what is sent before it is asked for is there when it is asked for."""
    return ends[1]


@pytest.fixture
def channel(ends: tuple[socket.socket, socket.socket], machine: Machine) -> AgentChannel:
    return AgentChannel(ends[0], machine.find_loss, machine.lost_by)


@pytest.fixture
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_channel, "_LOOK_SECONDS", 0.02)


def never(_told: list[bytes]) -> None:
    pytest.fail("nothing is waited for")


def test_a_request_is_a_letter_and_fields_with_their_lengths(channel: AgentChannel, agent: socket.socket) -> None:
    agent.sendall(frame("k", b"", b"two"))
    assert channel.ask("f", "/p\udcff", 12, b"\0\xff") == [b"", b"two"]
    assert agent.recv(100) == frame("f", b"/p\xff", b"12", b"\0\xff")


def test_an_answer_may_have_no_field(channel: AgentChannel, agent: socket.socket) -> None:
    agent.sendall(frame("k"))
    assert channel.ask("d", "/place") == []


def test_a_refusal_is_that_of_the_kernel(channel: AgentChannel, agent: socket.socket) -> None:
    agent.sendall(frame("e", b"2") + frame("k", b"in step"))
    with pytest.raises(FileNotFoundError, match=os.strerror(errno.ENOENT)):
        channel.ask("r", "/none")
    assert channel.ask("r", "/file") == [b"in step"]


def test_an_answer_of_no_kind_is_a_mistake_of_the_agent(channel: AgentChannel, agent: socket.socket) -> None:
    agent.sendall(frame("?"))
    with pytest.raises(OSError, match="the agent answers b'\\?'") as caught:
        channel.ask("r", "/file")
    assert caught.value.errno == errno.EPROTO


def test_many_answers_come_in_the_order_of_their_requests(channel: AgentChannel, agent: socket.socket) -> None:
    agent.sendall(frame("k", b"one") + frame("e", b"13") + frame("k") + frame("e", b"2"))
    one, refused, nothing, missing = channel.ask_many([("r", ("/a",)), ("r", ("/b",)), ("d", ("/c",)), ("x", ("/d",))])
    assert (one, nothing) == ([b"one"], [])
    assert isinstance(refused, PermissionError)
    assert isinstance(missing, FileNotFoundError)
    assert agent.recv(200) == frame("r", b"/a") + frame("r", b"/b") + frame("d", b"/c") + frame("x", b"/d")


def test_an_answer_in_pieces_is_one(channel: AgentChannel, agent: socket.socket) -> None:
    whole = frame("k", bytes(100_000)) + frame("k", b"next")

    def send() -> None:
        for start in range(0, len(whole), 999):
            agent.sendall(whole[start : start + 999])

    sender = threading.Thread(target=send)
    sender.start()
    assert channel.ask("r", "/file") == [bytes(100_000)]
    assert channel.ask("r", "/file") == [b"next"]
    sender.join()


# --- losses ---


def test_a_line_that_is_cut_is_a_loss(channel: AgentChannel, agent: socket.socket, machine: Machine) -> None:
    agent.shutdown(socket.SHUT_WR)
    with pytest.raises(MachineLost, match="no answer came: its line was cut"):
        channel.ask("r", "/file")
    assert machine.looks == ["its line was cut"]


def test_a_line_that_is_cut_within_an_answer_is_a_loss(channel: AgentChannel, agent: socket.socket) -> None:
    agent.sendall(frame("k", b"half")[:-2])
    agent.shutdown(socket.SHUT_WR)
    with pytest.raises(MachineLost, match="its line was cut"):
        channel.ask("r", "/file")


def test_a_request_that_cannot_be_sent_is_a_loss(channel: AgentChannel, agent: socket.socket) -> None:
    agent.close()
    with pytest.raises(MachineLost, match=r"a request cannot be sent: .*Broken pipe"):
        channel.ask("r", "/file")


@pytest.mark.usefixtures("short_looks")
def test_a_machine_that_dies_while_it_is_asked_is_a_loss(channel: AgentChannel, machine: Machine) -> None:
    machine.lost = PANIC
    with pytest.raises(MachineLost) as caught:
        channel.ask("r", "/file")
    assert (caught.value.loss, caught.value.serial) == (Loss.PANICKED, "what it printed")
    assert machine.looks == [""], "nothing was cut"


@pytest.mark.usefixtures("short_looks")
def test_a_machine_that_lives_and_does_not_answer_is_lost_in_the_end(channel: AgentChannel, machine: Machine) -> None:
    with pytest.raises(MachineLost, match=r"no answer came: in 0\.1 s") as caught:
        channel.receive(0.1)
    assert caught.value.loss is Loss.NO_ANSWER
    assert len(machine.looks) > 2
    assert set(machine.looks[:-1]) == {""}


@pytest.mark.usefixtures("short_looks")
def test_a_late_answer_is_one(channel: AgentChannel, agent: socket.socket, machine: Machine) -> None:
    late = threading.Timer(0.1, agent.sendall, [frame("k", b"late")])
    late.start()
    assert channel.ask("r", "/file") == [b"late"]
    assert machine.looks
    late.join()


@pytest.mark.usefixtures("short_looks")
def test_once_lost_is_always_lost(channel: AgentChannel, agent: socket.socket, machine: Machine) -> None:
    machine.lost = PANIC
    with pytest.raises(MachineLost):
        channel.ask("r", "/file")
    machine.lost = None
    agent.sendall(frame("k") * 3)
    asks: list[Callable[[], object]] = [
        lambda: channel.ask("r", "/file"),
        lambda: channel.ask_many([("r", ("/file",))]),
        lambda: channel.ask_actor("q", 0, "text", waiting=never),
    ]
    for ask in asks:
        with pytest.raises(MachineLost) as caught:
            ask()
        assert caught.value is PANIC
    assert len(machine.looks) == 1


def test_a_loss_between_many_answers_is_no_answer(channel: AgentChannel, agent: socket.socket) -> None:
    agent.sendall(frame("k", b"one"))
    agent.shutdown(socket.SHUT_WR)
    with pytest.raises(MachineLost):
        channel.ask_many([("r", ("/a",)), ("r", ("/b",))])


# --- actors ---


def test_what_an_actor_does_is_told_until_it_answers(channel: AgentChannel, agent: socket.socket) -> None:
    agent.sendall(frame("p", b"stat", b"stack") + frame("p", b"", b"") + frame("k", b"ok 0"))
    told: list[list[bytes]] = []
    assert channel.ask_actor("q", 3, "text", waiting=told.append) == [b"ok 0"]
    assert told == [[b"stat", b"stack"], [b"", b""]]
    assert agent.recv(100) == frame("q", b"3", b"text")


def test_an_actor_that_answers_at_once_is_not_waited_for(channel: AgentChannel, agent: socket.socket) -> None:
    agent.sendall(frame("k", b"ok 0") + frame("e", b"32"))
    assert channel.ask_actor("q", 3, "text", waiting=never) == [b"ok 0"]
    with pytest.raises(BrokenPipeError):
        channel.ask_actor("q", 3, "text", waiting=never)


@pytest.mark.parametrize(
    "meanwhile", [b"", frame("p", b"", b"") * 3, frame("k", b"ok 0"), frame("e", b"32")], ids=["no", "p", "k", "e"]
)
def test_who_waits_no_longer_is_in_step_afterwards(
    channel: AgentChannel, agent: socket.socket, meanwhile: bytes
) -> None:
    def no_longer(_told: list[bytes]) -> None:
        raise TimeoutError("no longer")

    agent.sendall(frame("p", b"", b"") + meanwhile + frame("!") + frame("k", b"in step"))
    with pytest.raises(TimeoutError, match="no longer"):
        channel.ask_actor("q", 3, "text", waiting=no_longer)
    assert channel.ask("r", "/file") == [b"in step"]
    assert agent.recv(200) == frame("q", b"3", b"text") + frame("!") + frame("r", b"/file")


# --- reading ahead ---


class Files:
    """A channel to files in memory: answers ``ask_many`` and keeps what was asked together."""

    def __init__(self, **files: bytes) -> None:
        self.files = files
        self.asked: list[list[str]] = []

    def ask_many(self, requests: list[tuple[str, tuple[str, ...]]]) -> list[list[bytes] | OSError]:
        """Answer."""
        self.asked.append([f"{letter}{path}" for letter, (path,) in requests])
        return [
            [letter.encode(), self.files[path]] if path in self.files else OSError(errno.ENOENT, "no such file")
            for letter, (path,) in requests
        ]


def ahead_of(files: Files) -> ReadAhead:
    return ReadAhead(files)  # type: ignore[arg-type]  # a double of the channel


def read_all(ahead: ReadAhead, paths: str) -> list[list[bytes]]:
    return [ahead.read("r", path) for path in paths]


def test_it_tells_the_same_as_reading_one_by_one() -> None:
    files = Files(a=b"1", b=b"2", c=b"3")
    ahead = ahead_of(files)
    for _round in range(3):
        assert read_all(ahead, "abc") == [[b"r", b"1"], [b"r", b"2"], [b"r", b"3"]]
        ahead.forget()
    assert files.asked == [["ra"], ["rb"], ["rc"], ["ra", "rb", "rc"], ["ra", "rb", "rc"]]


def test_a_request_of_another_kind_is_another_one() -> None:
    files = Files(a=b"1")
    ahead = ahead_of(files)
    for _round in range(2):
        assert (ahead.read("r", "a"), ahead.read("n", "a")) == ([b"r", b"1"], [b"n", b"1"])
        ahead.forget()
    assert files.asked == [["ra"], ["na"], ["ra", "na"]]


def test_a_refusal_is_raised_where_it_is_asked_for() -> None:
    files = Files(a=b"1", b=b"2")
    ahead = ahead_of(files)
    for _round in range(2):
        assert ahead.read("r", "a") == [b"r", b"1"]
        with pytest.raises(OSError, match="no such file"):
            ahead.read("r", "none")
        assert ahead.read("r", "b") == [b"r", b"2"]
        ahead.forget()
    assert files.asked[-1] == ["ra", "rnone", "rb"]


def test_what_was_fetched_is_forgotten_at_an_action() -> None:
    files = Files(a=b"1", b=b"2")
    ahead = ahead_of(files)
    read_all(ahead, "ab")
    ahead.forget()
    ahead.read("r", "a")
    ahead.forget()
    files.files["b"] = b"new"
    assert ahead.read("r", "b") == [b"r", b"new"]


def test_a_file_that_is_read_again_without_an_action_is_read_anew() -> None:
    files = Files(a=b"1", b=b"2")
    ahead = ahead_of(files)
    for number in range(3):
        files.files["a"] = b"old"
        assert ahead.read("r", "a") == [b"r", b"old"], number
        files.files["a"] = b"new"
        assert ahead.read("r", "b") == [b"r", b"2"]
        assert ahead.read("r", "a") == [b"r", b"new"], number
        ahead.forget()
    assert files.asked[-2:] == [["ra", "rb"], ["ra"]]


@given(st.lists(st.text("abcd", min_size=1, max_size=8), min_size=1, max_size=6))
def test_what_is_read_later_is_not_older(rounds: list[str]) -> None:
    fetches = itertools.count()

    class Clock(Files):
        def ask_many(self, requests: list[tuple[str, tuple[str, ...]]]) -> list[list[bytes] | OSError]:
            return [[b"%06d" % next(fetches)] for _request in requests]

    ahead = ahead_of(Clock())
    for paths in rounds:
        read = read_all(ahead, paths)
        assert read == sorted(read)
        ahead.forget()


def test_it_follows_another_way_when_the_reader_does() -> None:
    files = Files(a=b"1", b=b"2", c=b"3")
    ahead = ahead_of(files)
    read_all(ahead, "ab")
    ahead.forget()
    read_all(ahead, "ac")
    ahead.forget()
    files.asked.clear()
    assert read_all(ahead, "ac") == [[b"r", b"1"], [b"r", b"3"]]
    assert files.asked == [["ra", "rc"]]


def test_at_most_two_hundred_are_fetched_at_once() -> None:
    names = [str(number) for number in range(300)]
    files = Files(**dict.fromkeys(names, b""))
    ahead = ahead_of(files)
    for _round in range(2):
        for name in names:
            ahead.read("r", name)
        ahead.forget()
    assert max(map(len, files.asked)) == 200
