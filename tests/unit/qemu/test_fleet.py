"""Many jobs at once within cores and memory."""

import os
import threading
import time

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.qemu import fleet
from hugepage_qa.qemu.fleet import free_memory, machines_at_once, run_jobs


class Load:
    """Work that records how many jobs, and how much memory, ran at once."""

    def __init__(self) -> None:
        self.running = self.most = self.memory = self.most_memory = 0
        self._lock = threading.Lock()

    def __call__(self, size: int) -> int:
        with self._lock:
            self.running += 1
            self.memory += size
            self.most = max(self.most, self.running)
            self.most_memory = max(self.most_memory, self.memory)
        time.sleep(0.02)
        with self._lock:
            self.running -= 1
            self.memory -= size
        return size * 2


def identity(size: int) -> int:
    return size


def test_all_jobs_run_and_no_more_than_machines_at_once() -> None:
    load = Load()
    results = list(run_jobs(range(20), load, identity, machines=3, memory=1000))
    assert sorted(results) == [(size, size * 2) for size in range(20)]
    assert load.most == 3


def test_memory_limits_what_runs_at_once() -> None:
    load = Load()
    assert len(list(run_jobs([60, 60, 40, 40, 60], load, identity, machines=8, memory=100))) == 5
    assert load.most_memory <= 100
    assert load.most == 2, "a small job runs beside a large one"


def test_job_that_can_never_fit_is_refused_before_anything_starts() -> None:
    load = Load()
    with pytest.raises(InputError, match="needs 200 MiB of host memory and 100 MiB are free"):
        list(run_jobs([1, 200 << 20], load, identity, memory=100 << 20))
    assert load.most == 0


def test_no_jobs() -> None:
    assert list(run_jobs([], identity, identity)) == []


def test_free_memory_is_what_the_kernel_says() -> None:
    assert 0 < free_memory() < 1 << 50


class Blocking:
    """Work that lasts until it is stopped."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.started: list[int] = []

    def __call__(self, job: int) -> int:
        self.started.append(job)
        if job == 0:
            return job
        self.stopped.wait(10)
        raise RuntimeError("stopped")


def no_job_threads(before: int) -> bool:
    return threading.active_count() == before


def test_caller_that_stops_listening_ends_all() -> None:
    work = Blocking()
    before = threading.active_count()
    running = run_jobs(range(9), work, lambda _: 1, machines=3, memory=10, stop=work.stopped.set)
    assert next(running) == (0, 0)
    running.close()  # type: ignore[attr-defined]
    assert no_job_threads(before)
    assert len(work.started) <= 4, "nothing new is started"


def test_error_of_one_job_ends_all_and_is_raised() -> None:
    work = Blocking()

    def one_fails(job: int) -> int:
        if job == 2:
            raise ValueError("broken")
        return work(job + 1)

    before = threading.active_count()
    with pytest.raises(ValueError, match="broken"):
        list(run_jobs(range(9), one_fails, lambda _: 1, machines=3, memory=10, stop=work.stopped.set))
    assert no_job_threads(before)


@pytest.mark.parametrize(
    ("cores", "free", "machines"), [(8, 100, 3), (2, 100, 2), (8, 29, 1), (8, 0, 1)], ids=["memory", "cores", "-", "0"]
)
def test_as_many_machines_at_once_as_cores_and_memory_allow(
    monkeypatch: pytest.MonkeyPatch, cores: int, free: int, machines: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    monkeypatch.setattr(fleet, "free_memory", lambda: free)
    assert machines_at_once(30) == machines
