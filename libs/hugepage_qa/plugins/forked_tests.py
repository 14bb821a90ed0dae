"""Avocado whose tests are forks of it: ``python -m hugepage_qa.plugins.forked_tests run ...``.

Avocado starts Python for every test, and once more to ask a runner what it can. Each such start imports all of Avocado
and of this suite, which takes half a minute in an emulated system machine: longer than most tests there. A fork has
imported everything before.
"""

import asyncio
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from avocado.core.main import main as avocado
from avocado.core.nrunner.runnable import RUNNERS_REGISTRY_STANDALONE_EXECUTABLE, STANDALONE_EXECUTABLE_CONFIG_USED
from avocado.core.utils import messages
from avocado.plugins.runners import avocado_instrumented
from avocado.plugins.spawners import process as spawners

# what every test of the suite imports
import hugepage_qa.plugins.avocado_test  # noqa: F401

#: the kind of test that is forked; others are started as Avocado does it
_KIND = "avocado-instrumented"
_RUNNER = [sys.executable, "-m", avocado_instrumented.__name__]
#: seconds between two messages that a test still runs
_TOLD_EVERY = 5.0


class ForkingSpawner(spawners.ProcessSpawner):  # type: ignore[misc] # Avocado has no types
    """Runs a test of Avocado's own kind in a fork."""

    async def spawn_task(self, runtime_task: Any) -> bool:
        """Start the test of ``runtime_task`` and tell whether it runs."""
        task = runtime_task.task
        if task.runnable.kind != _KIND:
            return bool(await super().spawn_task(runtime_task))
        self.create_task_output_dir(runtime_task)
        runtime_task.spawner_handle = spawners.ProcessSpawnerHandle(_Fork(lambda: _run_task(task.get_command_args())))
        return True


class _Fork:
    """A forked process, to be asked as those of ``asyncio``; ``run`` is what it does."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._pid = os.fork()
        if not self._pid:
            try:
                run()
            except BaseException:  # nobody is above us who could do anything with it
                os._exit(1)
            os._exit(0)
        # one thread, so that there is one who waits
        self._waiter = ThreadPoolExecutor(1)
        self._ended = self._waiter.submit(os.waitpid, self._pid, 0)

    async def wait(self) -> int:
        """Wait for its end and return its exit code."""
        return os.waitstatus_to_exitcode((await asyncio.wrap_future(self._ended))[1])

    def terminate(self) -> None:
        """Ask it to end. Raises ProcessLookupError when it has ended."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End it. Raises ProcessLookupError when it has ended."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self._ended.done():
            raise ProcessLookupError
        os.kill(self._pid, number)


def _monitor(queue: Any) -> Iterator[dict[str, Any]]:
    """Yield what the test that was started last tells through ``queue``, as it tells it.

    Avocado asks, and tells, a hundred times a second, which takes an emulated machine more than the test does; and it
    asks for ever when the test has ended without a word.
    """
    (test,) = multiprocessing.active_children()
    heard = queue._reader  # nothing else can be waited for
    while True:
        ready = multiprocessing.connection.wait([heard, test.sentinel], _TOLD_EVERY)
        if heard in ready:
            message = queue.get()
            if message.get("type") != "early_state":
                yield message
            if message.get("status") == "finished":
                return
        elif ready:
            test.join()
            why = f"the test ended without a result (exit code {test.exitcode})"
            yield messages.FinishedMessage.get("error", fail_reason=why)
            return
        else:
            yield messages.RunningMessage.get()


def _run_task(arguments: list[str]) -> None:
    """Do what Avocado's runner does when it is started with ``arguments``, in the state that it would be in then."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGTSTP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    # what the job logs would be written twice
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            logger.handlers.clear()
            logger.propagate = True
            logger.setLevel(logging.NOTSET if logger.parent else logging.WARNING)
    avocado_instrumented.AvocadoInstrumentedTestRunner._monitor = staticmethod(_monitor)
    sys.argv = [avocado_instrumented.__file__, "task-run", *arguments]
    avocado_instrumented.main()
    for process in multiprocessing.active_children():
        process.join()


def main() -> int:
    """Run Avocado by the arguments of this process and return its exit code."""
    # where Avocado looks for the spawner that it takes unless asked for another. A plugin of ours, as Avocado has them,
    # is found only where pkg_resources knows all that we require, and it takes qemu.qmp for qemu-qmp
    spawners.ProcessSpawner = ForkingSpawner
    # it starts the runner to learn this
    RUNNERS_REGISTRY_STANDALONE_EXECUTABLE[_KIND] = _RUNNER
    used = avocado_instrumented.AvocadoInstrumentedTestRunner.CONFIGURATION_USED
    STANDALONE_EXECUTABLE_CONFIG_USED[" ".join(_RUNNER)] = used
    return int(avocado())


if __name__ == "__main__":
    sys.exit(main())
