"""Many jobs that each need host memory: as many at once as cores and free memory allow."""

import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from hugepage_qa.errors import InputError
from hugepage_qa.sizes import MIB

T = TypeVar("T")
R = TypeVar("R")

_MEMINFO = Path("/proc/meminfo")
_STOP_POLL = 0.1
"""Seconds between two calls of the stop function while jobs still end."""


@dataclass(frozen=True)
class _Outcome(Generic[T, R]):
    """How one job ended: with a result or with an error."""

    job: T
    need: int
    result: R | None = None
    error: BaseException | None = None


class Fleet:
    """Runs jobs in threads; a job is what blocks on a child process, so the GIL does not matter."""

    def __init__(
        self, machines: int | None = None, *, memory: int | None = None, stop: Callable[[], None] | None = None
    ) -> None:
        """Run at most ``machines`` jobs at once (None: one for each core) within ``memory`` bytes (None: what is free).

        ``stop`` makes running jobs end soon; it may be called more than once. Without it, jobs that run
        when everything ends are left to themselves: give ``Lab.stop``.
        """
        if machines is not None and machines < 1:
            raise InputError(f"{machines} machines at once: expected at least 1")
        self._machines = machines or len(os.sched_getaffinity(0))
        self._memory = memory
        self._stop = stop

    def run(self, jobs: Iterable[T], work: Callable[[T], R], need: Callable[[T], int]) -> Iterator[tuple[T, R]]:
        """Yield each job with what ``work`` returned for it, in the order in which they end.

        ``need`` tells the host memory of a job in bytes. Raises InputError, before anything starts, when one job needs
        more than there is. An error of ``work``, Ctrl-C, or a caller that stops listening ends all jobs.
        """
        free = free_memory() if self._memory is None else self._memory
        waiting = [(job, need(job)) for job in jobs]
        _refuse_giants(waiting, free)
        done: queue.SimpleQueue[_Outcome[T, R]] = queue.SimpleQueue()
        threads: list[threading.Thread] = []
        running = 0
        try:
            while waiting or running:
                while running < self._machines and (index := _fitting(waiting, free)) is not None:
                    job, size = waiting.pop(index)
                    free -= size
                    running += 1
                    threads = [*filter(threading.Thread.is_alive, threads), _start(job, size, work, done)]
                outcome = done.get()
                free += outcome.need
                running -= 1
                if outcome.error is not None:
                    raise outcome.error
                yield outcome.job, outcome.result  # type: ignore[misc]  # no error, so there is a result
        finally:
            if running:
                self._end(threads)

    def _end(self, threads: list[threading.Thread]) -> None:
        """Stop the running jobs and wait for them; again and again, since one may be about to start its process."""
        while self._stop is not None and any(thread.is_alive() for thread in threads):
            self._stop()
            for thread in threads:
                thread.join(_STOP_POLL)


def _start(job: T, size: int, work: Callable[[T], R], done: "queue.SimpleQueue[_Outcome[T, R]]") -> threading.Thread:
    def run() -> None:
        try:
            done.put(_Outcome(job, size, result=work(job)))
        except BaseException as error:  # it is raised again in the thread that waits
            done.put(_Outcome(job, size, error=error))

    # daemon: a second Ctrl-C must not wait for it
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _fitting(waiting: list[tuple[T, int]], free: int) -> int | None:
    """Return the index of the first job that fits into ``free`` bytes, None when there is none."""
    return next((index for index, (_, size) in enumerate(waiting) if size <= free), None)


def _refuse_giants(waiting: list[tuple[T, int]], free: int) -> None:
    largest = max((size for _, size in waiting), default=0)
    if largest > free:
        raise InputError(
            f"a machine needs {-(-largest // MIB)} MiB of host memory and {free // MIB} MiB are free:"
            " use smaller machines or another host"
        )


def machines_at_once(memory: int) -> int:
    """Return how many machines of ``memory`` bytes each this host has cores and free memory for, at least one."""
    return max(1, min(len(os.sched_getaffinity(0)), free_memory() // memory))


def free_memory() -> int:
    """Return the bytes that new processes can have without swapping (MemAvailable)."""
    for line in _MEMINFO.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise InputError(f"{_MEMINFO} has no MemAvailable")
