"""The machine and its guests as one backend: everything that a case does with a guest goes through it."""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from hugepage_qa.cache import cache_directory
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.pools import read_pools
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine.host import Backend
from hugepage_qa.machine.real_machine import real_machine
from hugepage_qa.process.marks import RUN
from hugepage_qa.process.process_table import has_ended
from hugepage_qa.qemu.guest.console import await_output, converse
from hugepage_qa.qemu.guest.driver import (
    Driver,
    GuestError,
    NotHere,
    State,
)
from hugepage_qa.qemu.guest.guest_site import Image, Site, default_image
from hugepage_qa.qemu.guest.libvirt_daemon import PrivateDaemon
from hugepage_qa.qemu.guest.libvirt_driver import LibvirtDriver, LibvirtPools, import_libvirt
from hugepage_qa.qemu.guest.qemu_driver import QemuDriver

#: drivers by name; the last one is libvirt with a daemon that finds no hugetlbfs
QEMU, LIBVIRT, LIBVIRT_WITHOUT_MOUNTS = "qemu", "libvirt", "libvirt-without-mounts"

#: the operation that a guest machine knows besides those of the machine, and the parts of its answer
GUEST = "guest"
DONE, REFUSED, CANNOT = "done", "refused", "cannot"

_PAUSE_SECONDS = 0.02

_Actions = Mapping[str, Callable[..., Any]]


class GuestMachine:
    """Carries out the operations of ``machine``, and ``guest``: driver, action, arguments -> a document.

    The document tells what was ``done``, how it was ``refused``, or why the machine ``cannot``; where the suite or its
    surroundings broke there is none, but an InputError. Drivers are started when they are first asked for. ``scratch``
    is a directory of its own, also of ``machine``.
    """

    def __init__(self, machine: Backend, scratch: Path, kernel: Path | None, stack: ExitStack) -> None:
        """Guests boot ``kernel``, None for that of the distribution."""
        self._machine = machine
        self._kernel = kernel
        self._scratch = scratch
        self._stack = stack
        self._image: Image | None = None
        self._mounts: dict[int, str] | None = None
        self._actions: dict[str, _Actions | NotHere | InputError] = {}

    def perform(self, operation: str, arguments: Sequence[Any]) -> Any:
        """Carry out ``operation``."""
        if operation != GUEST:
            return self._machine.perform(operation, arguments)
        driver, action, *others = arguments
        try:
            return {DONE: self._find(driver)[action](*others)}
        except NotHere as error:
            return {CANNOT: str(error)}
        except GuestError as error:
            return {REFUSED: str(error)}
        except OSError as error:
            # of ours: no process could be started, a socket broke. What the kernel refuses QEMU, QEMU tells
            raise InputError(f"driver {driver}: {action}: {error}") from error

    def _find(self, name: str) -> _Actions:
        if name not in self._actions:
            try:
                self._actions[name] = self._start_qemu() if name == QEMU else self._start_libvirt(name)
            # it would take as long each time
            except NotHere as error:
                self._actions[name] = error
            except (GuestError, InputError) as error:
                # no refusal of a guest, by which the kernel is judged
                self._actions[name] = InputError(f"driver {name}: {error}")
        found = self._actions[name]
        if isinstance(found, Exception):
            raise found
        return found

    def _start_qemu(self) -> _Actions:
        image, directory = self._find_image(), self._make_directory()
        driver = QemuDriver(image.emulator, directory)
        self._stack.callback(driver.close)
        site = self._site(directory, image.emulator)
        return {
            **_actions_of(driver, site),
            "enter_group": driver.enter_group,
            "run_as": driver.run_as,
            "give_mounts": self._give_mounts,
            "migrate": driver.migrate,
            "request": driver.request,
        }

    def _start_libvirt(self, name: str) -> _Actions:
        import_libvirt()
        image, directory = self._find_image(), self._make_directory()
        mounts = self._find_mounts() if name == LIBVIRT else {}
        visible = [self._scratch, cache_directory()]
        daemon = PrivateDaemon(directory, visible, image.emulator, mounts.values(), _marks())
        self._stack.callback(daemon.close)
        daemon.start()
        driver = LibvirtDriver(daemon.uri, daemon.pid_file)
        self._stack.callback(driver.close)
        pools = LibvirtPools(driver)

        def restart(number: int, killed: int | None) -> None:
            daemon.stop(signal.Signals(number))
            if killed is not None:
                os.kill(killed, signal.SIGKILL)
            daemon.start()
            driver.reconnect()

        def start_interrupted(name: str, seconds: float) -> None:
            with ThreadPoolExecutor(1) as threads:
                started = threads.submit(driver.race, [name])
                time.sleep(seconds)
                daemon.stop(signal.SIGKILL)
                # nobody answers
                with suppress(InputError):
                    started.result()
            daemon.start()
            driver.reconnect()

        return {
            **_actions_of(driver, self._site(directory, str(daemon.emulator))),
            "request": driver.request,
            "restart": restart,
            "start_interrupted": start_interrupted,
            "enter_group": daemon.enter_group,
            "free_pages": pools.free_pages,
            "allocate_pages": pools.allocate_pages,
            "page_sizes": pools.page_sizes,
        }

    def _site(self, directory: Path, emulator: str) -> Site:
        image = self._find_image()
        return Site(
            architecture=image.board.architecture,
            machine=image.machine,
            cpu=image.cpu,
            accelerator=image.accelerator,
            emulator=emulator,
            kernel=str(image.kernel),
            initramfs=str(image.initramfs),
            words=image.words,
            directory=str(directory),
            mounts=self._find_mounts(),
            environment=_marks(),
        )

    def _find_image(self) -> Image:
        if self._image is None:
            self._image = default_image(cache_directory(), self._kernel, lambda _line: None)
        return self._image

    def _find_mounts(self) -> dict[int, str]:
        """Mount a hugetlbfs of each page size, once."""
        if self._mounts is None:
            self._mounts = {}
            for pool in read_pools(DirectoryTree(Path("/"))):
                point = self._machine.perform("mount", [f"pagesize={pool.size}", "hugetlbfs"])
                self._stack.callback(self._machine.perform, "unmount", [point])
                self._mounts[pool.size] = point
        return self._mounts

    def _give_mounts(self, user: int) -> None:
        """Have ``user`` own the hugetlbfs of each page size."""
        for point in self._find_mounts().values():
            os.chown(point, user, -1)

    def _make_directory(self) -> Path:
        # mounts come first: they go last
        self._find_mounts()
        return Path(tempfile.mkdtemp(prefix="guests-", dir=self._scratch))


@contextmanager
def guest_machine(scratch: Path, kernel: Path | None = None) -> Iterator[GuestMachine]:
    """Yield the machine with its guests, which boot ``kernel``; what it started is ended after the block."""
    with real_machine(scratch) as machine, ExitStack() as stack:
        yield GuestMachine(machine, scratch, kernel, stack)


def _actions_of(driver: Driver, site: Site) -> dict[str, Callable[..., Any]]:
    def type_line(name: str, line: str, pattern: str, seconds: float) -> str:
        try:
            return converse(Path(site.console(name)), line, pattern, seconds)
        except OSError as error:
            if driver.state(name) is State.OFF:
                raise GuestError(f"{name} has ended by itself: {error} at its console") from error
            raise

    def await_line(name: str, pattern: str, seconds: float) -> None:
        await_output(Path(site.log(name)), pattern, seconds, partial(driver.pid, name))

    return {
        "site": site.document,
        "define": driver.define,
        "start": driver.start,
        "race": driver.race,
        "start_killed": driver.start_killed,
        "state": driver.state,
        "pid": driver.pid,
        "resume": driver.resume,
        "destroy": driver.destroy,
        "save": driver.save,
        "restore": driver.restore,
        "attach": driver.attach,
        "detach": driver.detach,
        "set_balloon": driver.set_balloon,
        "balloon": driver.balloon,
        "await_output": await_line,
        "type": type_line,
        "kill": partial(_kill, driver),
        "await_end": partial(_await_end, driver),
    }


def _kill(driver: Driver, name: str) -> None:
    """Kill the guest's QEMU behind its driver's back."""
    os.kill(driver.pid(name), signal.SIGKILL)


def _await_end(driver: Driver, name: str, pid: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    # in this order: a QEMU 7.2 that is asked for its state just when its guest ends may neither answer nor end
    while not has_ended(pid) or driver.state(name) is not State.OFF:
        if time.monotonic() > deadline:
            raise InputError(f"{name} is {driver.state(name)} {seconds:g} s after its end, its QEMU is process {pid}")
        time.sleep(_PAUSE_SECONDS)


def _marks() -> dict[str, str]:
    """Return what marks a process of this run, so that it is found after SIGKILL."""
    return {RUN: os.environ[RUN]} if RUN in os.environ else {}
