"""This host as a daemon of libvirt knows it: its pools, which libvirt tells and changes, and its NUMA nodes."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from xml.etree import ElementTree

from hugepage_qa.errors import InputError
from hugepage_qa.process.child import run_to_end
from hugepage_qa.qemu.guest.booted_states import BootedStates
from hugepage_qa.qemu.guest.driver import Driver, GuestError
from hugepage_qa.qemu.guest.guest_site import NotHere, Site
from hugepage_qa.qemu.guest.libvirt_daemon import PrivateDaemon
from hugepage_qa.sizes import KIB

#: characters of what the daemon said last
_SHOWN = 500
#: flags of virNodeAllocPages
_ADD, _SET = 0, 1


def import_libvirt() -> Any:
    """Return the module. Raises NotHere without it."""
    try:
        import libvirt  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise NotHere("the Python package libvirt-python is not installed: install hugepage-qa[guest]") from error
    # else it prints every error on standard error
    libvirt.registerErrorHandler(lambda *_: None, None)
    return libvirt


class LibvirtHost(Driver):
    """A driver with a connection to ``daemon``, and what it sees and sets of the host."""

    def __init__(self, site: Site, daemon: PrivateDaemon, booted: BootedStates | None = None) -> None:
        """Raises NotHere without the binding, InputError when the daemon does not answer."""
        super().__init__(site, booted)
        self._libvirt = import_libvirt()
        self._daemon = daemon
        self._connection = self._connect()

    def enter_group(self, path: str | None) -> None:
        """Move the daemon, and thereby the guests that it starts."""
        self._daemon.enter_group(path)

    def unmount_pages(self, size: int) -> None:
        """Take each hugetlbfs of pages of ``size`` bytes from the daemon, and from nobody else."""
        self._daemon.unmount_pages(size)

    def mount_pages(self, size: int) -> str:
        """Mount a hugetlbfs of pages of ``size`` bytes where the daemon sees it, and return where."""
        return self._daemon.mount_pages(size)

    def free_pages(self, size: int, cell: int) -> int:
        """Return the free pages of ``size`` bytes of a cell, which is a NUMA node (virNodeGetFreePages)."""
        answer = self._call(partial(self._connection.getFreePages, [size // KIB], cell, 1))
        return int(answer[cell][size // KIB])

    def allocate_pages(self, size: int, pages: int, cell: int, add: bool) -> int:
        """Have the pool of a cell hold ``pages`` pages, or that many more, and return the cells that were changed.

        This is virNodeAllocPages. Raises GuestError.
        """
        flags = _ADD if add else _SET
        return int(self._call(partial(self._connection.allocPages, {size // KIB: pages}, cell, 1, flags)))

    def allocate_pages_read_only(self, size: int, pages: int, cell: int) -> int:
        """Ask for ``pages`` more pages of a cell as a client that may only read. Raises GuestError."""
        connection = self._call(partial(self._libvirt.openReadOnly, self._daemon.uri))
        try:
            return int(self._call(partial(connection.allocPages, {size // KIB: pages}, cell, 1, _ADD)))
        finally:
            connection.close()

    def virsh(self, words: list[str]) -> str:
        """Return what the program virsh prints for ``words``. Raises GuestError, NotHere without it."""
        program = shutil.which("virsh")
        if program is None:
            raise NotHere("the program virsh is not installed (Debian: package libvirt-clients)")
        ran = run_to_end([program, "--connect", self._daemon.uri, *words], environment={"LC_ALL": "C"})
        if ran.returncode != 0:
            raise GuestError(ran.stderr)
        return ran.stdout

    def host_cells(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return what the capabilities tell of each cell, which is a NUMA node. Raises GuestError.

        That are ``pages`` by their size in KiB, ``distances`` by node, and ``cpus``, the cell of each processor.
        """
        return {
            name: {
                "pages": {page.get("size", ""): int(page.text or 0) for page in cell.findall("pages")},
                "distances": {to.get("id", ""): int(to.get("value", "0")) for to in cell.findall("distances/sibling")},
                "cpus": {cpu.get("id", ""): int(name) for cpu in cell.findall("cpus/cpu")},
            }
            for cell in self._capabilities().findall("./host/topology/cells/cell")
            if (name := cell.get("id", ""))
        }

    def page_sizes(self) -> dict[str, dict[str, int]]:
        """Return cell -> page size in KiB -> pages in its pool, as the capabilities have it. Raises GuestError."""
        return {cell: found["pages"] for cell, found in self.host_cells().items()}

    def _capabilities(self) -> ElementTree.Element:
        try:
            return ElementTree.fromstring(self._call(self._connection.getCapabilities))  # noqa: S314 - of the daemon
        except ElementTree.ParseError as error:
            raise GuestError(f"capabilities of libvirt: {error}") from error

    def _start_daemon(self) -> None:
        self._daemon.start()
        with suppress(self._libvirt.libvirtError):
            self._connection.close()
        self._connection = self._connect()

    def _connect(self) -> Any:
        return self._call(partial(self._libvirt.open, self._daemon.uri))

    def close(self) -> None:
        """Part with the daemon."""
        with suppress(self._libvirt.libvirtError):
            self._connection.close()
        super().close()

    def _call(self, call: Callable[[], Any]) -> Any:
        """Return what ``call`` of the binding returns.

        Where it raises, raises GuestError for what libvirt refuses, InputError where its daemon is out of reach.
        """
        try:
            return call()
        except self._libvirt.libvirtError as error:
            raise self._judged(error) from error

    def _judged(self, error: Any) -> Exception:
        """Return an error of the binding as a refusal, or as one of the way to the daemon."""
        is_lost = error.get_error_domain() in (self._libvirt.VIR_FROM_RPC, self._libvirt.VIR_FROM_REMOTE)
        if is_lost or error.get_error_code() == self._libvirt.VIR_ERR_OPERATION_TIMEOUT:
            # it takes clients before its drivers are up, and may end because of one
            return InputError(f"libvirt: {error}; its daemon said: {' '.join(self._daemon.said.split())[-_SHOWN:]}")
        return GuestError(str(error))
