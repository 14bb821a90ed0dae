"""What shares this host: jobs for several workers, as many machines at once as cores and free memory allow."""

import os
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from hugepage_qa.errors import InputError
from hugepage_qa.sizes import MIB

T = TypeVar("T")
R = TypeVar("R")

#: works in a thread, and tells what it has to tell by the function that it is called with
Worker = Callable[[Callable[[T], None]], None]

_MEMINFO = Path("/proc/meminfo")
_STOP_POLL = 0.1
"""Seconds between two calls of the stop function while workers still end."""


@dataclass(frozen=True)
class _Ended:
    """What a worker tells last: the error that ended it, None where it has nothing left to do."""

    error: BaseException | None = None


def run_workers(workers: Sequence[Worker[T]], stop: Callable[[], None]) -> Generator[T, None, None]:
    """Run ``workers``, each in a thread, and yield what they tell, as it comes.

    A worker blocks on a child process, so the GIL does not matter. An error of one, Ctrl-C, or a caller that stops
    listening ends all by ``stop``, which is called until they have ended: one may be about to start its process.
    """
    told: queue.SimpleQueue[T | _Ended] = queue.SimpleQueue()
    # daemons: a second Ctrl-C must not wait for them
    threads = [threading.Thread(target=_work, args=(worker, told), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    running = len(threads)
    try:
        while running:
            one = told.get()
            if not isinstance(one, _Ended):
                yield one
            elif one.error is None:
                running -= 1
            else:
                raise one.error
    finally:
        while running and any(thread.is_alive() for thread in threads):
            stop()
            for thread in threads:
                thread.join(_STOP_POLL)


def _work(worker: Worker[T], told: "queue.SimpleQueue[T | _Ended]") -> None:
    try:
        worker(told.put)
        told.put(_Ended())
    except BaseException as error:  # it is raised again in the thread that waits
        told.put(_Ended(error))


class Jobs(Generic[T]):
    """Jobs that workers take, one after the other, as long as there is memory for them."""

    def __init__(
        self, jobs: Iterable[T], need: Callable[[T], int], free: int, held: Mapping[Any, int] | None = None
    ) -> None:
        """Share ``free`` bytes; ``need`` tells those of a job, and a single one has what it needs.

        ``held`` are those that workers hold until they take a job.
        """
        self._waiting = list(jobs)
        self._need = need
        self._free = free
        self._held = dict(held or {})
        self._changed = threading.Condition()

    def take(self, worker: object, rank: Callable[[T], Any] = lambda _job: 0, *, waits: bool) -> T | None:
        """Return the first job that there is memory for, of those that ``rank`` has the least for.

        What it held is given back. None when all are taken or, unless it ``waits``, others hold what they need.
        """
        with self._changed:
            self._held[worker] = 0
            self._changed.notify_all()
            while self._waiting:
                held = sum(self._held.values())
                fitting = [job for job in self._waiting if not held or held + self._need(job) <= self._free]
                if fitting:
                    job = min(fitting, key=rank)
                    self._waiting.remove(job)
                    self._held[worker] = self._need(job)
                    return job
                if not waits:
                    break
                self._changed.wait()
            return None

    def drop(self) -> None:
        """Have nobody take another one."""
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()


def run_jobs(
    jobs: Sequence[T],
    work: Callable[[T], R],
    need: Callable[[T], int],
    *,
    machines: int | None = None,
    memory: int | None = None,
    stop: Callable[[], None] = lambda: None,
) -> Iterator[tuple[T, R]]:
    """Yield each job with what ``work`` returned for it, in the order in which they end.

    At most ``machines`` run at once (None: one for each core) within ``memory`` bytes (None: what is free) as ``need``
    tells it for each. Raises InputError, before anything starts, when one needs more than there is. All jobs end as
    with ``run_workers``; ``stop`` makes those that run end soon, and may be called more than once.
    """
    free = free_memory() if memory is None else memory
    largest = max(map(need, jobs), default=0)
    if largest > free:
        raise InputError(
            f"a machine needs {-(-largest // MIB)} MiB of host memory and {free // MIB} MiB are free:"
            " use smaller machines or another host"
        )
    waiting = Jobs(jobs, need, free)

    def run(tell: Callable[[tuple[T, R]], None]) -> None:
        worker = object()
        while (job := waiting.take(worker, waits=True)) is not None:
            tell((job, work(job)))

    def end() -> None:
        waiting.drop()
        stop()

    yield from run_workers([run] * min(len(jobs), machines or len(os.sched_getaffinity(0))), end)


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
