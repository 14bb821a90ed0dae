"""Stop signals end the body and wait for what is around it."""

import signal
import threading
from collections.abc import Iterator

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.machine.protection import StopSignals

STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[list[int]]:
    """Signals that reach the handlers from before."""
    received: list[int] = []
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in STOP}
    yield received
    for number, handler in before.items():
        signal.signal(number, handler)


def stop(number: signal.Signals) -> None:
    """Run a body that gets a signal in the middle."""
    with StopSignals() as signals, signals.let_through():
        signal.raise_signal(number)
        pytest.fail("it went on")


def test_the_body_is_ended(handlers: list[int]) -> None:
    with pytest.raises(KeyboardInterrupt):
        stop(signal.SIGINT)
    with pytest.raises(SystemExit) as caught:
        stop(signal.SIGTERM)
    assert caught.value.code == 143
    with pytest.raises(SystemExit) as caught:
        stop(signal.SIGHUP)
    assert caught.value.code == 129
    assert handlers == []


def test_one_that_comes_before_the_body_ends_it_at_its_start() -> None:
    entered = False
    with pytest.raises(SystemExit), StopSignals() as signals:
        signal.raise_signal(signal.SIGTERM)
        with signals.let_through():
            entered = True
    assert not entered


def test_one_that_comes_after_the_body_waits_until_the_end(handlers: list[int]) -> None:
    with StopSignals() as signals:
        with signals.let_through():
            pass
        signal.raise_signal(signal.SIGTERM)
        assert handlers == []
    assert handlers == [signal.SIGTERM]


def test_only_the_first_one_ends_the_body() -> None:
    put_back = False
    with pytest.raises(KeyboardInterrupt), StopSignals() as signals:
        try:
            with signals.let_through():
                try:
                    signal.raise_signal(signal.SIGINT)
                finally:
                    # as when somebody presses Ctrl-C twice
                    signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
            put_back = True
    assert put_back


def test_ignored_signals_stay_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignals() as signals, signals.let_through():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in STOP]
    with pytest.raises(KeyboardInterrupt):
        stop(signal.SIGINT)
    assert [signal.getsignal(number) for number in STOP] == before


def test_another_thread() -> None:
    errors = []

    def enter() -> None:
        try:
            with StopSignals():
                pass
        except InputError as error:
            errors.append(str(error))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert errors
    assert "main thread only" in errors[0]
