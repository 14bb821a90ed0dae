"""The machine and its guests as one backend, and its drivers as a case asks them: all that it does with guests."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

from hugepage_qa.cache import cache_directory
from hugepage_qa.cases.guest.refusal import refusal
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.pools import read_pools
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.kernel.uapi import NOBODY
from hugepage_qa.machine.backend import Backend, MachineKind
from hugepage_qa.machine.host import CannotRun, Host
from hugepage_qa.machine.real_machine import real_machine
from hugepage_qa.process.marks import RUN
from hugepage_qa.qemu.guest.booted_states import BootedStates
from hugepage_qa.qemu.guest.driver import Driver, GuestError
from hugepage_qa.qemu.guest.guest_site import NotHere, Site, default_site
from hugepage_qa.qemu.guest.libvirt_configuration import QemuSettings
from hugepage_qa.qemu.guest.libvirt_daemon import PrivateDaemon
from hugepage_qa.qemu.guest.libvirt_driver import LibvirtDriver
from hugepage_qa.qemu.guest.libvirt_host import import_libvirt
from hugepage_qa.qemu.guest.qemu_driver import QemuDriver
from hugepage_qa.qemu.installed_emulator import NotOffered
from hugepage_qa.schema import build

#: drivers by name; libvirt has a daemon that is told which hugetlbfs to use, or that there is none, or nothing of
#: them, or who is to own what a guest needs
QEMU, LIBVIRT, LIBVIRT_WITHOUT_MOUNTS = "qemu", "libvirt", "libvirt-without-mounts"
#: a second driver of each kind, with directories, a daemon and a hugetlbfs of its own, as another host has
ELSEWHERE = {QEMU: "qemu-elsewhere", LIBVIRT: "libvirt-elsewhere"}
_OF_QEMU_ALONE = (QEMU, ELSEWHERE[QEMU])
LIBVIRT_LOOKING_FOR_MOUNTS, LIBVIRT_OF_NOBODY = "libvirt-looking-for-mounts", "libvirt-of-nobody"

#: the operation that a guest machine knows besides those of the machine, and the parts of its answer
GUEST = "guest"
DONE, REFUSED, CANNOT = "done", "refused", "cannot"

_AnyDriver = TypeVar("_AnyDriver", bound=Driver)
_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")


class AskedDriver:
    """The driver ``name`` of the machine behind ``host``; ``kind`` is its class, ``site`` what it starts guests with.

    What it is asked to do are methods of its class: ``ask(Driver.start, "guest", True)``.
    """

    def __init__(self, host: Host, name: str) -> None:
        """Raises CannotRun where the machine has no such driver, InputError when it does not come up."""
        self._backend = host.backend
        self._name = name
        self.kind: type[Driver] = QemuDriver if name in _OF_QEMU_ALONE else LibvirtDriver
        self.site = build(Site, self.ask(Driver.site))

    def ask(self, method: Callable[[_AnyDriver, *_Arguments], _Result], *arguments: *_Arguments) -> _Result:
        """Have the driver call its ``method``, and return what that returns, as JSON holds it.

        Raises GuestError when it is refused, CannotRun where the machine has nothing for it, InputError where the
        machine around it is at fault.
        """
        answer = self._backend.perform(GUEST, [self._name, method.__name__, *arguments])
        if CANNOT in answer:
            raise CannotRun(answer[CANNOT])
        if REFUSED in answer:
            raise refusal(answer[REFUSED])
        done: _Result = answer[DONE]
        return done


class GuestMachine:
    """Carries out the operations of ``machine``, and ``guest``: driver, method of it, arguments -> a document.

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
        self._drivers: dict[str, Driver | NotHere | InputError] = {}

    @property
    def kind(self) -> MachineKind:
        """What ``machine`` is."""
        return self._machine.kind

    def perform(self, operation: str, arguments: Sequence[Any]) -> Any:
        """Carry out ``operation``."""
        if operation != GUEST:
            return self._machine.perform(operation, arguments)
        name, method, *others = arguments
        try:
            return {DONE: getattr(self._find(name), method)(*others)}
        except (NotHere, NotOffered) as error:
            return {CANNOT: str(error)}
        except GuestError as error:
            return {REFUSED: str(error)}
        except OSError as error:
            # of ours: no process could be started, a socket broke. What the kernel refuses QEMU, QEMU tells
            raise InputError(f"driver {name}: {method}: {error}") from error

    def _find(self, name: str) -> Driver:
        if name not in self._drivers:
            try:
                self._drivers[name] = self._start_qemu() if name in _OF_QEMU_ALONE else self._start_libvirt(name)
            # it would take as long each time
            except NotHere as error:
                self._drivers[name] = error
            except (GuestError, InputError) as error:
                # no refusal of a guest, by which the kernel is judged
                self._drivers[name] = InputError(f"driver {name}: {error}")
        found = self._drivers[name]
        if isinstance(found, Exception):
            raise found
        return found

    def _start_qemu(self) -> Driver:
        site = self._make_site()
        driver = QemuDriver(site, _booted_states(QEMU, site))
        self._stack.callback(driver.close)
        return driver

    def _start_libvirt(self, name: str) -> Driver:
        import_libvirt()
        site = self._make_site()
        if name == LIBVIRT_OF_NOBODY:
            site = _readable_for_all(site, self._scratch)
        mounts = tuple(site.mounts.values())
        settings = {
            LIBVIRT: QemuSettings(mounts),
            ELSEWHERE[LIBVIRT]: QemuSettings(mounts),
            LIBVIRT_WITHOUT_MOUNTS: QemuSettings(()),
            LIBVIRT_LOOKING_FOR_MOUNTS: QemuSettings(mounts, looks=True),
            LIBVIRT_OF_NOBODY: QemuSettings(mounts, user=NOBODY),
        }[name]
        visible = [self._scratch, cache_directory()]
        daemon = PrivateDaemon(Path(site.directory), visible, site.emulator, settings, site.environment)
        self._stack.callback(daemon.close)
        daemon.start()
        # what root has saved the user of the guests cannot read
        booted = None if name == LIBVIRT_OF_NOBODY else _booted_states(LIBVIRT, site)
        driver = LibvirtDriver(replace(site, emulator=str(daemon.emulator)), daemon, booted)
        self._stack.callback(driver.close)
        return driver

    @cached_property
    def _image(self) -> Site:
        return default_site(cache_directory(), self._kernel, lambda _line: None)

    def _mount(self) -> dict[int, str]:
        """Mount a hugetlbfs of each page size, before the driver starts that has it: it goes after that has ended."""
        mounts = {}
        for pool in read_pools(DirectoryTree(Path("/"))):
            mounts[pool.size] = self._machine.perform("mount", [f"pagesize={pool.size}", "hugetlbfs"])
            self._stack.callback(self._machine.perform, "unmount", [mounts[pool.size]])
        return mounts

    def _make_site(self) -> Site:
        """Return the site of guests that have a directory and a hugetlbfs of their own."""
        image, mounts = self._image, self._mount()
        directory = tempfile.mkdtemp(prefix="guests-", dir=self._scratch)
        # what marks a process of this run, so that it is found after SIGKILL
        marks = {RUN: os.environ[RUN]} if RUN in os.environ else {}
        return replace(image, directory=directory, mounts=mounts, environment=marks)


def _booted_states(kind: str, site: Site) -> BootedStates:
    return BootedStates(cache_directory() / "booted", kind, site)


def _readable_for_all(site: Site, scratch: Path) -> Site:
    """Return a site with a kernel of its own, which a user without privileges finds: the cache may be in a home."""
    directory = Path(site.directory)
    for path in (scratch, directory):
        path.chmod(0o711)
    copies = {name: directory / name for name in ("kernel", "initramfs")}
    for name, copy in copies.items():
        shutil.copyfile(getattr(site, name), copy)
    return replace(site, kernel=str(copies["kernel"]), initramfs=str(copies["initramfs"]))


@contextmanager
def guest_machine(scratch: Path, kernel: Path | None = None) -> Iterator[GuestMachine]:
    """Yield the machine with its guests, which boot ``kernel``; what it started is ended after the block."""
    with real_machine(scratch) as machine, ExitStack() as stack:
        yield GuestMachine(machine, scratch, kernel, stack)
